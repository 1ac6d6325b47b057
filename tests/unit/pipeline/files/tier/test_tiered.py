"""A remote tier in the format of Aiven's plugin, read in place, alone and together with the local segments."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pyarrow.fs import FileSelector, LocalFileSystem

import tidelog
from tests.support.moto_store import BUCKET, MotoStore, moto_store
from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, fill
from tests.support.requirements import require_packages
from tests.support.tiered_storage import Encryption, TierWriter, encode_sizes
from tidelog.pipeline.errors import DataLossError, OptionError, PipelineError
from tidelog.pipeline.files.remote import forget_listing, remote_path
from tidelog.pipeline.files.tier.keys import chunk_decrypter, parse_encryption, remove_padding
from tidelog.pipeline.files.tier.tiered import (
    MAX_OFFSET,
    SegmentReader,
    TieredHandler,
    TieredSegment,
    _choose_uploads,
    decode_sizes,
    parse_manifest,
)
from tidelog.pipeline.files.tier.view import TIER_ROOT
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record, build_batch

require_packages("moto")

PREFIX = "tier/"
SEEDS = int(os.environ.get("TIDELOG_TIER_SEEDS", "10"))
BOUNCY_CASTLE = Path(__file__).with_name("bouncy_castle.txt")
"""A private key, and what Bouncy Castle 1.81 encrypted for it."""


@pytest.fixture(scope="module")
def store() -> Iterator[MotoStore]:
    with moto_store() as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    fill(directory.log("orders"), 60)
    fill(directory.log("orders", 1), 3)
    directory.close()
    return directory


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{tmp_path.name}/{PREFIX}"


def address(store: MotoStore, prefix: str, **options: Any) -> str:
    given = {"endpoint_override": store.endpoint, "region": "us-east-1", **options}
    query = "&".join(f"{name}={str(value).replace(':', '%3A').replace('/', '%2F')}" for name, value in given.items())
    return f"tiered+s3://{BUCKET}/{prefix}?{query}"


def upload(
    store: MotoStore, data: DataDirectory, prefix: str, *, is_compressed: bool, encryption: Encryption | None = None
) -> list[Path]:
    """Upload all segments of each partition except the newest; return the uploaded ones."""

    def put(key: str, content: bytes) -> None:
        with store.client().open_output_stream(f"{BUCKET}/{prefix}{key}") as stream:
            stream.write(content)

    writer, done = TierWriter(put, is_compressed=is_compressed, encryption=encryption), []
    for directory in sorted(data.path.glob("orders-*")):
        segments = sorted(directory.glob("*.log"))
        for segment, following in pairwise(segments):
            writer.upload(segment, TOPIC_ID, int(following.stem) - 1)
            done.append(segment)
    return done


def rows(path: str, **options: Any) -> list[dict[str, Any]]:
    columns = ["key", "value", "partition", "offset", "timestamp"]
    found: list[dict[str, Any]] = tidelog.scan(path, "orders", columns=columns, **options).read_all().to_pylist()
    return found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-so-secret")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_the_tier_and_the_local_tail_are_the_log(
    store: MotoStore, data: DataDirectory, prefix: str, is_compressed: bool
) -> None:
    expected = rows(str(data.path))
    done = upload(store, data, prefix, is_compressed=is_compressed)
    assert len(done) > 2
    end = int(sorted((data.path / "orders-0").glob("*.log"))[-1].stem)
    alone = address(store, prefix)
    assert rows(alone) == [row for row in expected if row["partition"] == 0 and row["offset"] < end]
    both = address(store, prefix, local=data.path)
    for gone in (0, len(done)):
        for segment in done[:gone]:
            segment.unlink(missing_ok=True)
        forget_listing(remote_path(both) + "/orders-0")
        assert rows(both) == expected
    assert rows(both, offsets=(17, 53)) == [row for row in expected if 17 <= row["offset"] < 53]


@pytest.mark.parametrize("has_local", [False, True])
def test_segments_of_two_leaders_overlap(
    store: MotoStore, data: DataDirectory, prefix: str, tmp_path: Path, has_local: bool
) -> None:
    expected = [row for row in rows(str(data.path)) if row["partition"] == 0]

    def put(key: str, content: bytes) -> None:
        with store.client().open_output_stream(f"{BUCKET}/{prefix}{key}") as stream:
            stream.write(content)

    segments = sorted((data.path / "orders-0").glob("*.log"))
    starts = [int(segment.stem) for segment in segments]
    longer = tmp_path / "other" / "orders-0" / segments[1].name
    _write(longer, segments[1].read_bytes() + segments[2].read_bytes())
    writer = TierWriter(put)
    writer.upload(segments[0], TOPIC_ID, starts[1] - 1)
    writer.upload(longer, TOPIC_ID, starts[3] - 1)
    if has_local:
        for segment in segments[:2]:
            segment.unlink()
        assert [row for row in rows(address(store, prefix, local=data.path)) if row["partition"] == 0] == expected
    else:
        writer.upload(segments[2], TOPIC_ID, starts[3] - 1)
        assert rows(address(store, prefix)) == [row for row in expected if row["offset"] < starts[3]]


class Leaders:
    """A log whose leaders truncate it and write it again, and the segments that each of them has uploaded."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tier, self.local = path / "tier", path / "local"
        self.writer = TierWriter(lambda key, content: _write(self.tier / key, content), is_compressed=False)
        self.batches: list[tuple[int, list[bytes]]] = []
        self.copied = self.uploads = 0

    def lead(self, epoch: int) -> None:
        """Lead for an epoch: truncate, append, roll at random, upload the segments that are not in the tier."""
        del self.batches[self.chance.randint(len(self.batches) * 2 // 3, len(self.batches)) :]
        self.copied = min(self.copied, len(self.batches))
        for _ in range(self.chance.randint(1, 12)):
            self.batches.append((epoch, [b"%d" % self.chance.randrange(1 << 30) for _ in range(3)]))
        rolls = [0, *sorted(self.chance.sample(range(1, len(self.batches)), len(self.batches) // 4)), len(self.batches)]
        for first, after in pairwise(rolls[:-1]):
            if after > self.copied and self.chance.random() < 0.8:
                self._upload(first, after)
                self.copied = after
            elif after > self.copied:
                break
        shutil.rmtree(self.local, ignore_errors=True)
        for first, after in pairwise(rolls):
            if after > self.copied:
                _write(self.local / "orders-0" / f"{3 * first:020d}.log", self._bytes(first, after))

    def _upload(self, first: int, after: int) -> None:
        place = self.local / "upload" / "orders-0" / f"{3 * first:020d}.log"
        _write(place, self._bytes(first, after))
        epochs = {epoch: 3 * number for number, (epoch, _) in reversed([*enumerate(self.batches)][first:after])}
        self.uploads += 1
        self.writer.upload(place, TOPIC_ID, 3 * after - 1, self.uploads.to_bytes(16, "big"), epochs)

    def _bytes(self, first: int, after: int) -> bytes:
        batches = (
            build_batch([Record(3 * number + n, NOW_MS, None, value) for n, value in enumerate(values)])
            for number, (_, values) in enumerate(self.batches[first:after], first)
        )
        return b"".join(bytes(batch) for batch in batches)

    def values(self) -> list[bytes]:
        """Return the log's values."""
        return [value for _, values in self.batches for value in values]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_records_that_leaders_truncated_are_left_out(tmp_path: Path, seed: int) -> None:
    """The tier keeps truncated records: uploads of later epochs show that they are no part of the log any more."""
    leaders = Leaders(tmp_path, seed)
    for epoch in range(5):
        leaders.lead(epoch)
        handler = TieredHandler(LocalFileSystem(), f"{leaders.tier}/", str(leaders.local))
        files = sorted(info.path for info in handler.get_file_info_selector(FileSelector(f"{TIER_ROOT}/orders-0")))
        found = [
            (record.offset, record.value)
            for file in files
            if file.endswith(".log")
            for batch in iter_batches(handler.open_input_file(file).read())
            for record in batch.records()
        ]
        assert found == list(enumerate(leaders.values()))


def segment_of(base: int, end: int, *epochs: tuple[int, int]) -> TieredSegment:
    return TieredSegment("key", base, end, 1, 1, (), compressed=False, file_size=1, epochs=epochs)


def test_segments_of_a_leader_epoch_that_the_last_leader_never_had_are_left_out() -> None:
    """Two unclean changes: epoch 3 began at 600 of epoch 2; then one led who had epoch 2 up to 999, and not epoch 3."""
    ours = [segment_of(0, 499, (2, 0)), segment_of(500, 999, (2, 500)), segment_of(800, 1100, (2, 800), (4, 1000))]
    others = [
        segment_of(550, 650, (2, 550), (3, 600)), segment_of(651, 700, (3, 651)), segment_of(1000, 1499, (2, 1000))
    ]  # fmt: skip
    found = _choose_uploads([*others, *ours], MAX_OFFSET)
    assert found == list(zip(ours, (500, 800, MAX_OFFSET), strict=True))


def test_uploads_without_epochs_are_chosen_by_their_ends() -> None:
    earlier, later = segment_of(0, 700), segment_of(500, 999)
    assert _choose_uploads([later, earlier, segment_of(0, 300)], MAX_OFFSET) == [(earlier, 500), (later, MAX_OFFSET)]


def test_a_segment_that_is_in_neither_is_missing(store: MotoStore, data: DataDirectory, prefix: str) -> None:
    done = upload(store, data, prefix, is_compressed=False)
    for segment in done:
        segment.unlink()
    (manifest,) = (one for one in store.names_below(prefix) if done[1].stem in one and one.endswith("manifest"))
    store.client().delete_file(manifest.removeprefix("s3://"))
    with pytest.raises(DataLossError, match="are missing between"):
        rows(address(store, prefix, local=data.path))


@pytest.fixture(scope="module")
def private() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def write_key(directory: Path, key: PrivateKeyTypes) -> Path:
    """Write the private key of the pair ``tier-1``. Returns its directory."""
    directory.mkdir()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "tier-1.pem").write_bytes(text)
    return directory


@pytest.mark.parametrize("is_compressed", [False, True])
def test_encrypted_segments_are_read_with_their_key(
    store: MotoStore, data: DataDirectory, prefix: str, tmp_path: Path, private: RSAPrivateKey, is_compressed: bool
) -> None:
    expected = rows(str(data.path))
    done = upload(store, data, prefix, is_compressed=is_compressed, encryption=Encryption("tier-1", private))
    for segment in done:
        segment.unlink()
    keys = write_key(tmp_path / "keys", private)
    assert rows(address(store, prefix, local=data.path, pem=keys)) == expected
    with pytest.raises(PipelineError, match=r"encrypted: expected pem=DIRECTORY with the private key tier-1\.pem"):
        rows(address(store, prefix, local=data.path))


def test_other_keys_are_reported(tmp_path: Path, private: RSAPrivateKey) -> None:
    encryption = parse_encryption(Encryption("tier-1", private).metadata())
    (tmp_path / "none").mkdir()
    with pytest.raises(OSError, match=r"tier-1\.pem is missing"):
        chunk_decrypter(encryption, str(tmp_path / "none"))
    other = write_key(tmp_path / "other", generate_private_key(65537, 2048))
    with pytest.raises(OSError, match=r"for another key than that of .*tier-1\.pem"):
        chunk_decrypter(encryption, str(other))
    elliptic = write_key(tmp_path / "elliptic", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(OSError, match="is not an RSA key"):
        chunk_decrypter(encryption, str(elliptic))
    (other / "tier-1.pem").write_text("no key")
    with pytest.raises(OSError, match="is not a private key"):
        chunk_decrypter(encryption, str(other))
    with pytest.raises(ValueError, match="names no key pair"):
        parse_encryption({"dataKey": "../tier-1:AAAA", "aad": ""})


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 129, 130])
def test_a_block_without_room_for_the_padding_has_none(size: int) -> None:
    """The keys of a short RSA key: an error of arithmetic came out of a read of the tier."""
    for filled in (b"\0", b"\xff"):
        with pytest.raises(ValueError, match="no OAEP padding"):
            remove_padding(filled * size)


def test_a_changed_chunk_is_reported(tmp_path: Path, private: RSAPrivateKey) -> None:
    secret = Encryption("tier-1", private)
    decrypt = chunk_decrypter(parse_encryption(secret.metadata()), str(write_key(tmp_path / "keys", private)))
    chunk = bytearray(secret.encrypt(b"a chunk"))
    assert decrypt(bytes(chunk)) == b"a chunk"
    for at in range(len(chunk)):
        chunk[at] ^= 1
        with pytest.raises(OSError, match="changed after it was encrypted"):
            decrypt(bytes(chunk))
        chunk[at] ^= 1
    with pytest.raises(OSError, match="changed after it was encrypted"):
        decrypt(b"short")


def test_chunks_of_bouncy_castle_are_decrypted(tmp_path: Path) -> None:
    """The plugin encrypts with that library, by ``RSA/NONE/OAEPWithSHA3-512AndMGF1Padding``."""
    written = dict(line.split(": ", 1) for line in BOUNCY_CASTLE.read_text().splitlines() if ": " in line)
    (tmp_path / "tier-1.pem").write_text(BOUNCY_CASTLE.read_text().partition("-----\nchunk")[0] + "-----\n")
    encryption = parse_encryption({"dataKey": f"tier-1:{written['key']}", "aad": written["aad"]})
    assert chunk_decrypter(encryption, str(tmp_path))(base64.b64decode(written["chunk"])) == b"a chunk of a segment"


WITHOUT_KEY = (
    b'{"version": "1", "chunkIndex": {"type": "fixed", "originalChunkSize": 9, "originalFileSize": 0,'
    b' "transformedChunkSize": 9, "finalTransformedChunkSize": 0}, "compression": false, "encryption": {}}'
)

NO_TEXT = WITHOUT_KEY.replace(b'"encryption": {}', b'"encryption": {"dataKey": 5, "aad": ""}')


FIXED = {
    "type": "fixed", "originalChunkSize": 10, "originalFileSize": 25, "transformedChunkSize": 10,
    "finalTransformedChunkSize": 5,
}  # fmt: skip


def variable(sizes: list[int], **fields: Any) -> dict[str, Any]:
    """Build the chunk index of a segment of 25 bytes, which has three chunks."""
    packed = bytes(cramjam.zstd.compress(encode_sizes(sizes)))
    text = base64.b64encode(packed).decode()
    return {"type": "variable", "originalChunkSize": 10, "originalFileSize": 25, "transformedChunks": text, **fields}


def manifest_with(index: Any, **fields: Any) -> bytes:
    metadata = {"startOffset": 7, "endOffset": 9}
    whole = {"version": "1", "chunkIndex": index, "compression": False, "remoteLogSegmentMetadata": metadata, **fields}
    return json.dumps(whole).encode()


def test_a_manifest_is_parsed() -> None:
    fixed = parse_manifest(manifest_with(FIXED), "x.log", 7)
    assert (fixed.end, fixed.size, fixed.starts) == (9, 25, (0, 10, 20, 25))
    assert parse_manifest(manifest_with(variable([12, 14, 3])), "x.log", 7).starts == (0, 12, 26, 29)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version": "2"}',
        b'{"version": "1", "chunkIndex": {}}',
        WITHOUT_KEY,
        NO_TEXT,
        *(
            manifest_with({**FIXED, name: value})
            for name in ("originalChunkSize", "originalFileSize", "transformedChunkSize", "finalTransformedChunkSize")
            for value in (-1, 1.5, True, None, "9", 2**31, 1e400)
        ),
        manifest_with({**FIXED, "originalChunkSize": 0}),
        manifest_with({**FIXED, "originalChunkSize": 1, "originalFileSize": 2**31 - 1}),
        manifest_with({**FIXED, "type": "other"}),
        manifest_with(variable([12, 14])),
        manifest_with(variable([12, 14, 3, 4])),
        manifest_with(variable([12, 14, -3])),
        manifest_with(variable([12, -14, 3])),
        manifest_with(variable([], transformedChunks="no base64")),
        manifest_with(variable([], transformedChunks=base64.b64encode(b"no zstd").decode())),
        manifest_with(FIXED, compression="yes"),
        manifest_with(FIXED, remoteLogSegmentMetadata={"startOffset": 8, "endOffset": 9}),
        manifest_with(FIXED, remoteLogSegmentMetadata={"startOffset": 7, "endOffset": 6}),
        manifest_with(FIXED, remoteLogSegmentMetadata=[]),
    ],
)
def test_damaged_manifests_are_reported(text: bytes) -> None:
    with pytest.raises(OSError, match=r"x\.rsm-manifest"):
        parse_manifest(text, "x.rsm-manifest", 7)


def test_a_manifest_of_very_many_chunks_is_reported() -> None:
    """A test of its own: each worker would encode them while it collects."""
    test_damaged_manifests_are_reported(manifest_with(variable([1] * 1_000_000)))


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("size", [9, 11, 10_000_000])
def test_a_chunk_of_another_size_is_reported(is_compressed: bool, size: int) -> None:
    """Else the bytes after it would be taken for those of the next one."""
    chunks = [b"a" * 10, b"b" * size, b"c" * 5]
    if is_compressed:
        chunks = [bytes(cramjam.zstd.compress(chunk)) for chunk in chunks]
    index = variable([len(chunk) for chunk in chunks])
    segment = parse_manifest(manifest_with(index, compression=is_compressed), "x.log", 7)
    with SegmentReader(pa.BufferReader(b"".join(chunks)), segment, None) as reader:
        assert reader.read(10) == b"a" * 10
        with pytest.raises(OSError, match=r"x\.log, chunk 1"):
            reader.read(1)


def test_a_segment_that_is_cut_is_reported() -> None:
    segment = parse_manifest(manifest_with(FIXED), "x.log", 7)
    reader = SegmentReader(pa.BufferReader(b"a" * 22), segment, None)
    with reader, pytest.raises(OSError, match=r"x\.log, chunk 2: it has 2 bytes, expected 5"):
        reader.read()


def test_an_address_without_a_bucket_is_refused() -> None:
    with pytest.raises(OptionError, match=r"expected tiered\+s3"):
        remote_path("tiered+s3:///x")


def test_sizes_of_chunks_have_their_bytes() -> None:
    chance = random.Random(20_261_122)
    for _ in range(200):
        sizes = [chance.randrange(1, chance.choice((3, 300, 70_000, 2**24 + 9))) for _ in range(chance.randrange(9))]
        assert decode_sizes(encode_sizes(sizes)) == sizes
    # Count, base, width, all but the last, the last: the layout of the plugin's description.
    assert decode_sizes(bytes.fromhex("00000003 000f4240 01 00 0a 000f4254")) == [1_000_000, 1_000_010, 1_000_020]


def test_topics_of_one_name_need_the_local_directory(tmp_path: Path) -> None:
    for number in (b"a" * 16, b"b" * 16):
        writer = TierWriter(lambda key, content: _write(tmp_path / "tier" / key, content))
        segment = tmp_path / "orders-0" / f"{0:020d}.log"
        _write(segment, b"12345")
        writer.upload(segment, number, 0)
    handler = TieredHandler(LocalFileSystem(), f"{tmp_path}/tier/", None)
    assert {info.path for info in handler.get_file_info_selector(FileSelector(TIER_ROOT))} == {"orders-0"}
    with pytest.raises(OSError, match="the tier has 2 topics of the name orders"):
        handler.get_file_info_selector(FileSelector(f"{TIER_ROOT}/orders-0"))


def _write(path: Path, content: bytes) -> None:
    os.makedirs(path.parent, exist_ok=True)
    path.write_bytes(content)
