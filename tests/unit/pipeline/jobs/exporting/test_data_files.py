"""Records with any timestamp in Iceberg tables: a producer that writes microseconds must not make an export fail for
good."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.iceberg import NAME, run, table_of, target_below
from tests.support.pipelines import NOW_MS, DataDirectory, write
from tidelog.log.follower.append import append_as_follower
from tidelog.pipeline.jobs import iceberg as iceberg_job
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.iceberg import DEAD_LETTER_SUFFIX, IcebergTarget
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record, build_batch

pytestmark = pytest.mark.usefixtures("catalogs")

YEAR_1 = -62_135_596_800_000
"""The first millisecond of the calendar."""
YEAR_9999 = 253_402_300_799_999
"""The last millisecond of the calendar."""
AFTER = (YEAR_9999 + 1, NOW_MS * 1000, 2**31 * 3_600_000, 9_223_372_036_854_775)
"""The next millisecond, microseconds in place of milliseconds, hours that do not fit 32 bits, the last time of a
column."""
BEFORE = (YEAR_1 - 1, -9_223_372_036_854_775)
WITHIN = (YEAR_1, -1, 0, NOW_MS, YEAR_9999)
HEADERS = [("source", b"web"), ("empty", None)]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    found = DataDirectory(tmp_path / "data")
    for number, time in enumerate((*WITHIN, *BEFORE, *AFTER)):
        write_any(found, Record(number, time, b"key-%d" % number, b"value", HEADERS))
    return found


def write_any(data: DataDirectory, record: Record) -> None:
    """Write as a follower of a broker before Kafka 4, which by default accepts any timestamp."""
    log = data.log("t")
    append_as_follower(log, memoryview(build_batch([record])), 0)
    log.update_high_watermark(log.log_end_offset)


def times(target: IcebergTarget, chosen: str = "topic == 't'") -> list[int]:
    rows = table_of(target).scan(chosen).to_arrow()
    return sorted(time // 1000 for time in rows.column("timestamp").cast(pa.int64()).to_pylist())


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("fields", [(), ("topic", "partition"), ("hour(timestamp)",), ("topic", "day(timestamp)")])
def test_records_of_any_time(data: DataDirectory, tmp_path: Path, mode: str, fields: tuple[str, ...]) -> None:
    """No table loses them: those that no hour or day of the calendar holds become dead letters."""
    target = target_below(tmp_path, fields)
    by_time = "timestamp" in "".join(fields)
    strange = (*BEFORE, *AFTER)
    expected = sorted(WITHIN if by_time else (*WITHIN, *strange))
    for turn in range(2):
        result = run(data, target, mode=mode)
        assert result.dead_letters == (len(strange) if by_time and turn == 0 else 0)
        assert times(target) == expected
        assert times(target, "timestamp >= '2020-01-01T00:00:00+00:00'") == [
            time for time in expected if time >= NOW_MS
        ]
        assert times(target, "timestamp < '2020-01-01T00:00:00+00:00'") == [time for time in expected if time <= 0]
        assert not audit(None, AuditRequest(data.source(), NAME, iceberg=target)).is_wrong
        write(data.log("t"), [Record(0, NOW_MS + 1, b"later", b"value")])
        expected = sorted((*expected, NOW_MS + 1))
    if by_time:
        letters = table_of(target, NAME + DEAD_LETTER_SUFFIX).scan().to_arrow().to_pylist()
        assert {row["offset"]: row["reason"] for row in letters} == {
            len(WITHIN) + n: f"timestamp {time} ms lies outside of the years 1 to 9999"
            for n, time in enumerate(strange)
        }
        for row in letters:
            (record,) = next(iter_batches(row["bytes"])).records()
            time, key = strange[row["offset"] - len(WITHIN)], b"key-%d" % row["offset"]
            assert record == Record(row["offset"], time, key, b"value", tuple(HEADERS))


@pytest.mark.parametrize("runs", [1, 2])
def test_a_dead_letter_replaces_no_key(data: DataDirectory, tmp_path: Path, runs: int) -> None:
    """The table is the same however the log is divided into runs, and the audit agrees."""
    target = target_below(tmp_path, ("day(timestamp)",))
    if runs == 2:
        run(data, target, mode="upsert")
    for key in (b"key-0", b"key-3"):
        write_any(data, Record(data.log("t").log_end_offset, AFTER[0], key, b"late"))
    run(data, target, mode="upsert")
    assert times(target) == sorted(WITHIN)
    assert not audit(None, AuditRequest(data.source(), NAME, iceberg=target)).is_wrong


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_dead_letter_that_is_missing_is_reported(data: DataDirectory, tmp_path: Path, mode: str) -> None:
    """A record that cannot be a row is lost if the dead letters do not have it either."""
    target = target_below(tmp_path, ("hour(timestamp)",))
    run(data, target, mode=mode)
    gone = len(WITHIN) + 2
    table_of(target, NAME + DEAD_LETTER_SUFFIX).delete(f"offset == {gone}")
    (partition,) = audit(None, AuditRequest(data.source(), NAME, iceberg=target)).partitions
    assert [compared.shown for compared in partition.comparisons] == [{"missing": [gone]}]
    assert [(compared.missing, compared.no_rows) for compared in partition.comparisons] == [(1, [])]
    drop_letters(target)
    (partition,) = audit(None, AuditRequest(data.source(), NAME, iceberg=target)).partitions
    assert [compared.missing for compared in partition.comparisons] == [len(BEFORE) + len(AFTER)]


def drop_letters(target: IcebergTarget) -> None:
    """Drop the table of dead letters."""
    iceberg_job._catalog(target).drop_table(NAME + DEAD_LETTER_SUFFIX)


def test_a_time_that_no_column_holds_is_not_compared(data: DataDirectory, tmp_path: Path) -> None:
    """The audit says that it does not compare the range, and compares the others."""
    write_any(data, Record(data.log("t").log_end_offset, 2**62, b"far", b"value"))
    write(data.log("u"), [Record(0, NOW_MS, b"key", b"value")])
    target = target_below(tmp_path)
    assert run(data, target).dead_letters == 1
    first, second = audit(None, AuditRequest(data.source(), NAME, iceberg=target)).partitions
    assert "does not fit microseconds" in first.comparisons[0].unreadable
    assert [compared.is_equal for compared in second.comparisons] == [True]
