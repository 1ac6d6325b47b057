"""Logs of magic 0 and 1, as brokers of 0.8 to 0.10 wrote them: served, recovered, truncated and refused like others.

The message sets are made here, single and in wrappers of every codec, and lie in the segments byte for byte.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import NOW_MS, LogBench, append, batch, read_bytes, read_records, values
from tidelog.log.check import check_directory
from tidelog.log.config import LogConfig
from tidelog.log.recovery.segment_recovery import LogLoadError
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record

SETTINGS: dict[str, Any] = {"segment_bytes": 2500, "index_interval_bytes": 200}
CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]
FORMATS = [(magic, codec) for magic in (0, 1) for codec in CODECS]


def value_of(offset: int) -> bytes:
    return b"value %d" % offset + b"-" * (offset % 50)


def old_log(directory: Path, magic: int, codec: CompressionType, sets: int = 60) -> tuple[LogBench, UnifiedLog, int]:
    """Write message sets of three to a topic of that format; returns its end too."""
    version = "0.9.0" if magic == 0 else "0.10.2"
    bench = LogBench(str(directory), **SETTINGS, message_format_version=version)
    log = bench.open()
    for _ in range(sets):
        first = log.log_end_offset
        records = [Record(n, NOW_MS + first + n, b"k%d" % n, value_of(first + n)) for n in range(3)]
        append(log, bytearray(build_message_set(records, MessageSetOptions(magic, codec))))
    return bench, log, log.log_end_offset


def stored_magics(log: UnifiedLog) -> set[int]:
    return {header.magic for segment in log.segments for header in segment.headers()}


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_served_and_found_by_time_from_any_offset(tmp_path: Path, magic: int, codec: CompressionType) -> None:
    _, log, end = old_log(tmp_path, magic, codec)
    assert stored_magics(log) == {magic}
    assert len(log.segments) > 1
    assert values(log) == {offset: value_of(offset) for offset in range(end)}
    for offset in range(0, end, 11):
        assert read_records(log, offset)[0].offset == offset
        if magic == 1:
            found = log.fetch_offset_by_timestamp(NOW_MS + offset)
            assert found is not None
            assert (found.offset, found.timestamp) == (offset, NOW_MS + offset)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_recovered_from_nothing_but_the_records(tmp_path: Path, magic: int, codec: CompressionType) -> None:
    bench, log, end = old_log(tmp_path, magic, codec)
    log.close()
    before = {name: Path(bench.directory, name).read_bytes() for name in os.listdir(bench.directory)}
    for name in before:
        if not name.endswith(".log"):
            os.unlink(os.path.join(bench.directory, name))
    recovered = bench.open()
    assert values(recovered) == {offset: value_of(offset) for offset in range(end)}
    recovered.close()
    for name, data in before.items():
        # An append of several single messages makes one entry, a rebuild one for each of them that is due: both serve.
        if name.endswith(".log") or (name.endswith("index") and codec is not CompressionType.NONE):
            assert Path(bench.directory, name).read_bytes() == data, name
    assert check_directory(OsFileSystem(), bench.directory) == []


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
@pytest.mark.parametrize("at", [3, 9, 14, 17, 30])
def test_flip_in_the_unsynced_tail_is_cut(tmp_path: Path, magic: int, codec: CompressionType, at: int) -> None:
    bench, log, _ = old_log(tmp_path, magic, codec)
    headers = list(log.segments.active.headers())
    damaged, base = headers[len(headers) // 2], log.segments.active.base_offset
    before = headers[len(headers) // 2 - 1].last_offset if len(headers) > 1 else base - 1
    path = log.segments.active.records.path
    log.close()
    with open(path, "r+b") as file:
        file.seek(damaged.position + at)
        byte = file.read(1)[0]
        file.seek(damaged.position + at)
        file.write(bytes([byte ^ 0x20]))
    recovered = bench.open(recovery_point=base)
    # An offset is not under the CRC of a message: one that still grows looks like a correct one.
    end = recovered.log_end_offset
    assert end == before + 1 or at < 8
    if at >= 8:
        assert values(recovered) == {offset: value_of(offset) for offset in range(before + 1)}


@pytest.mark.parametrize("magic", [0, 1])
def test_torn_tail_is_cut_at_every_byte(tmp_path: Path, magic: int) -> None:
    bench, log, end = old_log(tmp_path, magic, CompressionType.NONE, sets=2)
    headers = list(log.segments.active.headers())
    path, size = log.segments.active.records.path, log.segments.active.size
    data = Path(path).read_bytes()
    log.close()
    assert end == len(headers) == 6
    for kept in range(headers[-2].position, size + 1, 3):
        Path(path).write_bytes(data[:kept])
        recovered = bench.open()
        whole = sum(header.position + header.size <= kept for header in headers)
        assert recovered.log_end_offset == whole
        recovered.close()


def test_synced_damage_is_refused_without_a_valid_batch_after_it(tmp_path: Path) -> None:
    """Old headers are too short to be found again, and a truncation would free offsets, so the partition is refused."""
    bench, log, end = old_log(tmp_path, 1, CompressionType.NONE)
    log.flush()
    headers = list(log.segments.active.headers())
    path = log.segments.active.records.path
    log.close()
    with open(path, "r+b") as file:
        file.seek(headers[1].position + 8)
        file.write(b"\x7f")
    with pytest.raises((LogLoadError, CorruptMessageError)):
        bench.open(recovery_point=end)


def test_segments_of_all_formats_are_served_as_they_were_written(tmp_path: Path) -> None:
    """A topic with batches of all formats: each batch stays as it was written."""
    bench, log, first_end = old_log(tmp_path, 0, CompressionType.GZIP)
    log.update_config(LogConfig({"segment.bytes": 2500, "message.format.version": "0.10.2"}))
    for _ in range(20):
        offset = log.log_end_offset
        record = [Record(0, NOW_MS, None, value_of(offset))]
        append(log, bytearray(build_message_set(record, MessageSetOptions(1))))
    log.update_config(LogConfig({"segment.bytes": 2500}))
    for _ in range(20):
        append(log, batch(1, value=value_of(log.log_end_offset)))
    end = log.log_end_offset
    assert stored_magics(log) == {0, 1, 2}
    assert end == first_end + 40
    for reopened in (log, bench.open(), bench.open(recovery_point=end)):
        assert values(reopened) == {offset: value_of(offset) for offset in range(end)}
        data = read_bytes(reopened, 0, 1 << 20)
        assert all(entry.is_valid() for entry in iter_batches(data))
