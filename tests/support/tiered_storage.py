"""Objects of a remote tier, written as Aiven's plugin for Apache Kafka's tiered storage writes them."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam

Put = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class TierWriter:
    """A writer of segments. ``put`` gets each object's key below the prefix, and its bytes."""

    put: Put
    chunk_bytes: int = 1000
    is_compressed: bool = True

    def upload(self, segment: Path, topic_id: bytes, end_offset: int, segment_id: bytes = bytes(16)) -> None:
        """Upload a segment of a partition's directory; its manifest comes last."""
        topic, _, partition = segment.parent.name.rpartition("-")
        folder = f"{topic}-{_uuid(topic_id)}/{partition}"
        key = f"{folder}/{segment.stem}-{_uuid(segment_id)}"
        data = segment.read_bytes()
        pieces = [data[at : at + self.chunk_bytes] for at in range(0, len(data), self.chunk_bytes)]
        if self.is_compressed:
            pieces = [bytes(cramjam.zstd.compress(piece)) for piece in pieces]
        self.put(f"{key}.log", b"".join(pieces))
        self.put(f"{key}.indexes", b"")
        manifest = {
            "version": "1",
            "chunkIndex": self._chunk_index(len(data), [len(piece) for piece in pieces]),
            "segmentIndexes": {},
            "compression": self.is_compressed,
            "remoteLogSegmentMetadata": {"startOffset": int(segment.stem), "endOffset": end_offset},
        }
        self.put(f"{key}.rsm-manifest", json.dumps(manifest).encode())

    def _chunk_index(self, size: int, sizes: list[int]) -> dict[str, Any]:
        index: dict[str, Any] = {"originalChunkSize": self.chunk_bytes, "originalFileSize": size}
        if not self.is_compressed:
            last = sizes[-1] if sizes else 0
            return {"type": "fixed", **index, "transformedChunkSize": self.chunk_bytes,
                    "finalTransformedChunkSize": last}  # fmt: skip
        text = base64.b64encode(bytes(cramjam.zstd.compress(encode_sizes(sizes)))).decode()
        return {"type": "variable", **index, "transformedChunks": text}


def encode_sizes(sizes: list[int]) -> bytes:
    """Sizes of chunks as the manifest has them."""
    if len(sizes) < 2:
        return struct.pack(f">{1 + len(sizes)}i", len(sizes), *sizes)
    base = min(sizes[:-1])
    width = max(1, (max(sizes[:-1]) - base).bit_length() + 7 >> 3)
    body = b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return struct.pack(">iib", len(sizes), base, width) + body + struct.pack(">i", sizes[-1])


def _uuid(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
