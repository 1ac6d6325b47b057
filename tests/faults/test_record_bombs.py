"""Batches and message sets that decompress to far more bytes than they have, or declare far more (fault F15 of
docs/internals/faults.md): they are refused with a documented error, with bounded memory and CPU time."""

from __future__ import annotations

import gzip
import json
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard

from tidelog.log.validation.params import ValidationParams
from tidelog.log.validation.validator import LogValidator
from tidelog.protocol.errors import InvalidRecordError, MessageTooLargeError
from tidelog.protocol.record.compression import XERIAL_HEADER, CompressionType
from tidelog.protocol.record.message_writer import MessageWriter
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, BatchOptions, Record, build_batch, set_crc

ROOT = Path(__file__).resolve().parents[2]
GIBIBYTE = 1 << 30
NOW_MS = 1_700_000_000_000
#: Limit of memory. A batch may decompress to 16 MiB here; these bytes may exist in chunks and joined, beside one window
#: of zstd.
MEMORY_BYTES = 64 << 20
#: Limit of CPU time. On a slow machine the limit is the time that it takes to decompress YARDSTICK_BYTES of gzip.
CPU_SECONDS = 0.1
YARDSTICK_BYTES = 32 << 20


def gzip_bomb() -> bytes:
    return gzip.compress(bytes(256 << 20), 1)


def snappy_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    return XERIAL_HEADER + 20 * (struct.pack(">i", len(block)) + block)


def snappy_claim() -> bytes:
    """Build a raw snappy block whose header declares 4 GiB of decompressed bytes."""
    return b"\xff\xff\xff\xff\x0f" + bytes(40)


def lz4_bomb() -> bytes:
    return bytes(lz4.frame.compress(bytes(192 << 20)))


def zstd_bomb() -> bytes:
    return zstandard.ZstdCompressor(1).compress(bytes(256 << 20))


def zstd_claim() -> bytes:
    """Build a frame that declares 4 GiB in one segment, so that the window, too, is 4 GiB."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 4 * GIBIBYTE) + b"\x01\x00\x00"


BOMBS: dict[str, tuple[CompressionType, Callable[[], bytes]]] = {
    "gzip": (CompressionType.GZIP, gzip_bomb),
    "snappy": (CompressionType.SNAPPY, snappy_bomb),
    "snappy-claim": (CompressionType.SNAPPY, snappy_claim),
    "lz4": (CompressionType.LZ4, lz4_bomb),
    "zstd": (CompressionType.ZSTD, zstd_bomb),
    "zstd-claim": (CompressionType.ZSTD, zstd_claim),
}


def batch_around(name: str) -> bytearray:
    """Build a batch with a valid header and checksum whose records section is the bomb."""
    codec, bomb = BOMBS[name]
    batch = build_batch([Record(0, NOW_MS, b"k", b"v")])[:61] + bomb()
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    struct.pack_into(">h", batch, 21, codec)
    set_crc(batch, 0, len(batch))
    return batch


def wrapper_around(name: str) -> bytearray:
    """Build a compressed message of magic 1 whose value, the inner message set, is the bomb."""
    codec, bomb = BOMBS[name]
    writer = MessageWriter()
    with writer.entry(0), writer.message(1, codec, NOW_MS, None):
        writer.write_nullable(bomb())
    return bytearray(writer.to_bytes())


def measure(path: str) -> None:
    """Validate the records in a file and print the error, the memory and the CPU time; runs in a child process."""
    records = bytearray(Path(path).read_bytes())
    validator = LogValidator(ValidationParams(max_message_bytes=2 << 20))
    for codec in CompressionType:  # so that imports are not counted
        warm = memoryview(build_batch([Record(0, NOW_MS, b"k", b"v")], BatchOptions(compression=codec)))
        validator.validate_and_assign_offsets(warm, 0, 0, NOW_MS)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        validator.validate_and_assign_offsets(memoryview(records), 0, 0, NOW_MS)
        answer = "accepted"
    except (InvalidRecordError, MessageTooLargeError) as error:
        answer = type(error).__name__
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    yardstick = gzip.compress(bytes(YARDSTICK_BYTES), 1)
    start = time.process_time()
    gzip.decompress(yardstick)
    limit = max(CPU_SECONDS, time.process_time() - start)
    sys.stdout.write(json.dumps({"answer": answer, "bytes": grown, "seconds": seconds, "limit": limit}))


@pytest.mark.parametrize(
    ("name", "around"),
    [(name, batch_around) for name in BOMBS]
    + [(name, wrapper_around) for name in BOMBS if not name.startswith("zstd")],  # message sets do not know zstd
)
def test_a_bomb_is_refused_cheaply(name: str, around: Callable[[str], bytearray], tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(around(name))
    code = "import sys; from tests.faults.test_record_bombs import measure; measure(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["answer"] in {"InvalidRecordError", "MessageTooLargeError"}
    assert measured["bytes"] <= MEMORY_BYTES
    assert measured["seconds"] <= measured["limit"]


def test_two_to_the_31_records_in_a_tiny_batch() -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v")])
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    set_crc(batch, 0, len(batch))
    start = time.process_time()
    with pytest.raises(InvalidRecordError, match="count"):
        LogValidator(ValidationParams()).validate_and_assign_offsets(memoryview(batch), 0, 0, NOW_MS)
    assert time.process_time() - start < CPU_SECONDS


def test_a_wrapper_in_a_wrapper_is_not_unpacked_twice() -> None:
    inner = wrapper_around("gzip")
    writer = MessageWriter()
    with writer.entry(0), writer.message(1, CompressionType.GZIP, NOW_MS, None):
        writer.write_nullable(gzip.compress(inner))
    with pytest.raises(InvalidRecordError, match="must not be compressed"):
        LogValidator(ValidationParams(max_message_bytes=2 << 20)).validate_and_assign_offsets(
            memoryview(bytearray(writer.to_bytes())), 0, 0, NOW_MS
        )
