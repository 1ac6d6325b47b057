"""A writer of remote segments with the objects that Aiven's plugin for Apache Kafka's tiered storage stores."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidelog.pipeline.files.tier.keys import IV_BYTES, generate_mask

Put = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Encryption:
    """Keys of encrypted segments: ``data_key`` and ``aad`` encrypt chunks, and ``private`` is the key pair ``pair``.

    ``pair`` names a key pair of the plugin's configuration, whose public key encrypts the data key.
    """

    pair: str
    private: RSAPrivateKey
    data_key: bytes = b"k" * 32
    aad: bytes = b"a" * 32

    def encrypt(self, chunk: bytes) -> bytes:
        """Encrypt a chunk; return its bytes in the store: a random IV, then the ciphertext."""
        iv = os.urandom(IV_BYTES)
        return iv + AESGCM(self.data_key).encrypt(iv, chunk, self.aad)

    def metadata(self) -> dict[str, str]:
        """Return the encryption part of a manifest."""
        public = self.private.public_key().public_numbers()
        size = (public.n.bit_length() + 7) // 8
        block = pow(int.from_bytes(add_padding(self.data_key, size), "big"), public.e, public.n).to_bytes(size, "big")
        return {
            "dataKey": f"{self.pair}:{base64.b64encode(block).decode()}",
            "aad": base64.b64encode(self.aad).decode(),
        }


def add_padding(message: bytes, size: int) -> bytes:
    """Pad the message to a block of ``size`` bytes with OAEP, both hashes SHA3-512."""
    seed, label = os.urandom(64), hashlib.sha3_512().digest()
    data = label + b"\0" * (size - len(message) - 2 * 64 - 2) + b"\1" + message
    masked = bytes(one ^ other for one, other in zip(data, generate_mask(seed, len(data)), strict=True))
    masked_seed = bytes(one ^ other for one, other in zip(seed, generate_mask(masked, 64), strict=True))
    return b"\0" + masked_seed + masked


@dataclass(frozen=True, slots=True)
class TierWriter:
    """A writer of segments. It calls ``put`` with the key of each object, without the store's prefix, and its bytes."""

    put: Put
    chunk_bytes: int = 1000
    is_compressed: bool = True
    encryption: Encryption | None = None

    def upload(
        self,
        segment: Path,
        topic_id: bytes,
        end_offset: int,
        segment_id: bytes = bytes(16),
        epochs: Mapping[int, int] | None = None,
    ) -> None:
        """Upload a segment from a partition's directory, its manifest last.

        ``epochs`` maps the leader epochs of its records to the first offset of each.
        """
        topic, _, partition = segment.parent.name.rpartition("-")
        folder = f"{topic}-{_uuid(topic_id)}/{partition}"
        key = f"{folder}/{segment.stem}-{_uuid(segment_id)}"
        data = segment.read_bytes()
        pieces = [data[at : at + self.chunk_bytes] for at in range(0, len(data), self.chunk_bytes)]
        if self.is_compressed:
            pieces = [bytes(cramjam.zstd.compress(piece)) for piece in pieces]
        if self.encryption is not None:
            pieces = [self.encryption.encrypt(piece) for piece in pieces]
        self.put(f"{key}.log", b"".join(pieces))
        self.put(f"{key}.indexes", b"")
        secret = {} if self.encryption is None else {"encryption": self.encryption.metadata()}
        manifest = {
            **secret,
            "version": "1",
            "chunkIndex": self._chunk_index(len(data), [len(piece) for piece in pieces]),
            "segmentIndexes": {},
            "compression": self.is_compressed,
            "remoteLogSegmentMetadata": {
                "startOffset": int(segment.stem),
                "endOffset": end_offset,
                "segmentLeaderEpochs": {str(epoch): start for epoch, start in (epochs or {0: 0}).items()},
            },
        }
        self.put(f"{key}.rsm-manifest", json.dumps(manifest).encode())

    def _chunk_index(self, size: int, sizes: list[int]) -> dict[str, Any]:
        index: dict[str, Any] = {"originalChunkSize": self.chunk_bytes, "originalFileSize": size}
        if not self.is_compressed:
            last = sizes[-1] if sizes else 0
            return {"type": "fixed", **index, "transformedChunkSize": max(sizes, default=self.chunk_bytes),
                    "finalTransformedChunkSize": last}  # fmt: skip
        text = base64.b64encode(bytes(cramjam.zstd.compress(encode_sizes(sizes)))).decode()
        return {"type": "variable", **index, "transformedChunks": text}


def encode_sizes(sizes: list[int]) -> bytes:
    """Encode the sizes of chunks as in a manifest: all but the last as differences from the smallest of them."""
    if len(sizes) < 2:
        return struct.pack(f">{1 + len(sizes)}i", len(sizes), *sizes)
    base = min(sizes[:-1])
    width = max(1, (max(sizes[:-1]) - base).bit_length() + 7 >> 3)
    body = b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return struct.pack(">iib", len(sizes), base, width) + body + struct.pack(">i", sizes[-1])


def _uuid(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
