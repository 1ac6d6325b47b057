"""Kafka's own record classes against Tidelog's: every magic and codec, written by each and read by the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.java_tools import run_program
from tests.support.jvm import RECORD_FORMATS
from tests.support.kafka_jars import KAFKA_3
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

pytestmark = pytest.mark.java

FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in CompressionType if magic == 2 or codec <= CompressionType.LZ4
]


def expected_records(magic: int) -> list[Record]:
    """Return the records that ``RecordFormats.java`` writes."""
    return [
        Record(
            100 + i,
            1_700_000_000_000 + i * 37 % 1000 if magic else -1,
            None if i % 7 == 0 else b"key-%d" % i,
            None if i % 11 == 0 else b"value-%d" % (i * 7919 % 1000) * 5,
            (("h", b"\x01\x02"), ("null", None)) if magic == 2 and i % 3 == 0 else (),
        )
        for i in range(2000)
    ]


def run_java(mode: str, directory: Path) -> None:
    done = run_program(RECORD_FORMATS, [mode, str(directory)], version=KAFKA_3, timeout_s=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def from_java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("java")
    run_java("write", directory)
    return directory


@pytest.fixture(scope="module")
def from_us(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ours")
    for magic, codec in FORMATS:
        (directory / f"{magic}-{codec}").write_bytes(ours(magic, codec))
    run_java("read", directory)
    return directory


def ours(magic: int, codec: CompressionType) -> bytes:
    if magic == 2:
        return bytes(build_batch(expected_records(2), BatchOptions(compression=codec)))
    return build_message_set(expected_records(magic), MessageSetOptions(magic, codec))


def line(record: Record) -> str:
    headers = "".join(f"{name}={text(value)}" for name, value in record.headers)
    return f"{record.offset} {record.timestamp} {text(record.key)} {text(record.value)} {headers}"


def text(value: bytes | None) -> str:
    return "-" if value is None else value.decode("latin-1")


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_batches_of_java_are_read(from_java: Path, magic: int, codec: CompressionType) -> None:
    records = []
    for batch in iter_batches((from_java / f"{magic}-{codec}").read_bytes()):
        batch.ensure_valid()
        records += list(batch.records())
    assert records == expected_records(magic)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_java_reads_batches_of_tidelog(from_us: Path, magic: int, codec: CompressionType) -> None:
    lines = (from_us / f"{magic}-{codec}.txt").read_text(encoding="latin-1").splitlines()
    assert lines == [line(record) for record in expected_records(magic)]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_uncompressed_sets_are_equal_byte_for_byte(from_java: Path, magic: int) -> None:
    assert ours(magic, CompressionType.NONE) == (from_java / f"{magic}-0").read_bytes()
