"""Audit in this process: findings in logs that are valid, damaged, compacted, and compared with exported tables."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, fill, write
from tests.support.requirements import missing
from tidelog.log.check import check_directory
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.audit import segment as audit_segment
from tidelog.pipeline.audit.buckets import BUCKET_MS
from tidelog.pipeline.audit.segment import MAX_FINDINGS, MAX_GAPS, Gap, SegmentPlan
from tidelog.pipeline.engine import reference
from tidelog.pipeline.engine.engine import AuditEngine
from tidelog.pipeline.engine.reference import record_hash
from tidelog.pipeline.errors import TopicRecreatedError
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.jobs import audit as audit_job
from tidelog.pipeline.jobs.audit import AuditRequest, AuditResult, PartitionAudit, audit
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.jobs.reports.audit_report import (
    SHOWN_FINDINGS,
    as_json,
    findings,
    make_report_directory,
    summary,
    write_report,
)
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record

pytestmark = pytest.mark.usefixtures("imported_matplotlib")

COMPACTED = Configuration(overrides={"cleanup.policy": "compact"})


def run(data: DataDirectory, **fields: Any) -> AuditResult:
    return audit(None, AuditRequest(data.source(), **fields))


def only(result: AuditResult) -> PartitionAudit:
    (partition,) = result.partitions
    return partition


def kinds(partition: PartitionAudit) -> list[str]:
    return [f.kind for s in partition.segments for f in s.findings] + [f.kind for f in partition.findings]


def segment_paths(data: DataDirectory, topic: str = "orders") -> list[Path]:
    return sorted((data.path / f"{topic}-0").glob("*.log"))


def change(path: Path, at: int, content: bytes) -> None:
    bytes_ = bytearray(path.read_bytes())
    bytes_[at : at + len(content)] = content
    path.write_bytes(bytes_)


def roll(log: UnifiedLog) -> None:
    """Close the active segment, and begin one with a batch, so that the roll is over."""
    log.roll()
    fill(log, 1)


def batch_positions(log: UnifiedLog) -> list[int]:
    return [header.position for header in log.segments.first.headers()]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_whole_log_is_in_order_and_counted_per_ten_minutes(data: DataDirectory, codec: int) -> None:
    written = fill(data.log("orders"), 40, compression=codec)
    result = run(data)
    found = only(result)
    assert findings(found) == []
    assert not result.is_wrong
    assert (found.total("records"), found.total("batches"), found.total("lost_offsets")) == (200, 40, 0)
    assert found.total("index_entries") > 0
    expected: dict[int, tuple[int, int]] = {}
    for record in written:
        begin = record.timestamp // BUCKET_MS * BUCKET_MS
        count, total = expected.get(begin, (0, 0))
        hashed = record_hash(record.offset, record.timestamp, record.key, record.value)
        expected[begin] = (count + 1, (total + hashed) % 2**64)
    assert len(expected) > 3
    assert found.buckets == expected


def test_plain_python_and_compiled_routines_find_the_same(data: DataDirectory) -> None:
    fill(data.log("orders"), 30)
    fill(data.log("orders"), 3, compression=2)
    fill(data.log("orders"), 1, producer_id=3, producer_epoch=0, base_sequence=0)
    change(segment_paths(data)[0], 100, b"\x01\x02")
    partition = data.source().partitions()[0]
    from tidelog.pipeline.jobs.audit import segment_plans

    for plan in segment_plans(partition, records=True):
        assert audit_segment.audit_segment(plan) == audit_segment.audit_segment(plan, AuditEngine(reference))


def test_quick_leaves_records_alone(data: DataDirectory) -> None:
    fill(data.log("orders"), 5)
    found = only(run(data, records=False))
    assert (found.buckets, found.total("records")) == ({}, 25)


def test_a_wrong_checksum_is_reported_and_the_walk_continues(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 10)
    position = batch_positions(log)[3]
    change(segment_paths(data)[0], position + 65, b"\xff")
    result = run(data)
    finding, lost = findings(only(result))
    assert finding.startswith(f"{segment_paths(data)[0]} at byte {position}: wrong CRC in the batch of offset 15; ")
    assert lost == "offsets 15 to 19 are lost to damage"
    assert (result.is_wrong, only(result).total("records")) == (True, 45)
    assert summary(result)[-1] == "something is wrong"


def test_after_bytes_that_are_no_batch_the_walk_continues_at_the_next_indexed_batch(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 12)
    position = batch_positions(log)[1]
    data.close()
    change(segment_paths(data)[0], position + 8, b"\x00\x00\x00\x05")
    found = only(run(data))
    assert kinds(found)[0] == "framing"
    assert found.total("unreadable_bytes") > 0
    assert 40 < found.total("records") < 60


def test_a_missing_segment_is_lost_unless_the_cleaner_removed_it(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 200)
    data.close()
    gone = segment_paths(data)[1]
    for path in gone.parent.glob(gone.stem + ".*"):
        path.unlink()
    found = only(run(data))
    (gap,) = found.gaps
    assert (gap.kind, gap.start) == ("lost", int(gone.stem))
    assert found.is_wrong
    (data.path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 1000\n")
    found = only(run(data))
    assert ([gap.kind for gap in found.gaps], found.is_wrong) == (["compacted"], False)


def test_a_compacted_log_is_in_order(data: DataDirectory) -> None:
    fill(data.log("orders"), 200)
    data.close()
    (result,) = compact(None, CompactRequest(data.source(), COMPACTED))
    found = only(run(data))
    assert findings(found) == []
    assert found.total("compacted_offsets") == result.records_before - result.records_after
    assert found.total("lost_offsets") == 0


def test_a_batch_written_twice_by_its_producer_is_a_duplicate(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 1, producer_id=4, producer_epoch=0, base_sequence=0)
    fill(log, 1, producer_id=4, producer_epoch=0, base_sequence=5)
    data.close()
    path = segment_paths(data)[0]
    content = path.read_bytes()
    first = content[: int.from_bytes(content[8:12], "big") + 12]
    path.write_bytes(content + (10).to_bytes(8, "big") + first[8:])
    found = only(run(data))
    assert findings(found)[0].endswith("sequence 0 of producer 4 epoch 0 was written before")
    assert found.total("duplicate_batches") == 1


def test_a_duplicate_across_two_segments_is_found(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 1, producer_id=4, producer_epoch=0, base_sequence=0)
    data.close()
    first = segment_paths(data)[0]
    second = first.with_name(f"{5:020d}.log")
    second.write_bytes((5).to_bytes(8, "big") + first.read_bytes()[8:])
    found = only(run(data))
    assert "duplicate" in kinds(found)
    assert found.duplicates_between == 1


def test_overlapping_offsets_are_reported(data: DataDirectory) -> None:
    fill(data.log("orders"), 2)
    data.close()
    path = segment_paths(data)[0]
    change(path, int.from_bytes(path.read_bytes()[8:12], "big") + 12, (3).to_bytes(8, "big"))
    assert "offset 3 after 4" in findings(only(run(data)))[0]


def test_aborted_and_open_records_and_markers_are_distinguished(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 2)
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    fill(log, 1, producer_id=6, producer_epoch=0, base_sequence=0, is_transactional=True)
    found = only(run(data))
    counts = [found.total(n) for n in ("records", "aborted_records", "control_batches", "open_records")]
    assert counts == [10, 5, 1, 5]
    assert not found.is_wrong


def test_a_damaged_transaction_index_is_reported(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    data.close()
    change(data.path / "orders-0" / f"{0:020d}.txnindex", 0, b"\x00\x07")
    assert any("entry 0: unknown version 7" in line for line in findings(only(run(data))))


@pytest.mark.parametrize(
    ("suffix", "slot_bytes", "message"),
    [(".index", 8, "no batch begins at byte"), (".timeindex", 12, "no batch of timestamp")],
)
def test_index_entries_that_point_at_nothing_are_reported(
    data: DataDirectory, suffix: str, slot_bytes: int, message: str
) -> None:
    fill(data.log("orders"), 40)
    data.close()
    path = segment_paths(data)[0].with_suffix(suffix)
    last = slot_bytes - 1
    change(path, slot_bytes + last, bytes([path.read_bytes()[slot_bytes + last] + 1]))
    result = run(data)
    assert any(message in fault for fault in findings(only(result))), findings(only(result))
    assert result.total("index_faults") == 1


@pytest.mark.parametrize("rows", [1, 3, 8192])
@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([(2, 1)], 0),
        ([(2, 1), (3, 3)], 0),
        ([(3, 1)], 0),
        ([(3, 2)], 0),
        ([(1, 2)], 1),
        ([(4, 1)], 1),
        ([(2, 1), (3, 2)], 1),
        ([(2, 1), (3, 4)], 1),
        ([(0, 4), (3, 2)], 2),
    ],
)
def test_entries_of_appends_of_several_batches_are_sound(
    data: DataDirectory,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    entries: list[tuple[int, int]],
    wrong: int,
) -> None:
    """A follower of Apache Kafka appends the batches of a fetch at once: last offset of all, position of the first."""
    log = data.log("orders")
    fill(log, 4)
    positions = [*batch_positions(log), log.segments.first.size]
    roll(log)
    data.close()
    path = segment_paths(data)[0].with_suffix(".index")
    path.write_bytes(b"".join(struct.pack(">ii", 5 * last + 4, positions[at]) for last, at in entries))
    monkeypatch.setattr(audit_segment, "TABLE_ROWS", rows)
    result = run(data)
    assert result.total("index_faults") == wrong
    assert len(findings(only(result))) == wrong


@pytest.mark.parametrize("entries", [[3, 1, 2], [9, 9, 1, 0, 2], [1, 9, 2], [2, 2, 0, 1, 3]])
@pytest.mark.parametrize(("suffix", "entry"), [(".index", ">ii"), (".timeindex", ">qi")])
@pytest.mark.parametrize("rows", [1, 8192])
def test_entries_that_do_not_ascend_are_reported(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, entries: list[int], suffix: str, entry: str, rows: int
) -> None:
    log = data.log("orders")
    fill(log, 4)
    positions = [*batch_positions(log), *([log.segments.first.size] * 9)]
    roll(log)
    data.close()
    fields = [(5 * at + 4, positions[at]) if suffix == ".index" else (NOW_MS + at, 5 * at + 4) for at in entries]
    segment_paths(data)[0].with_suffix(suffix).write_bytes(b"".join(struct.pack(entry, *pair) for pair in fields))
    monkeypatch.setattr(audit_segment, "TABLE_ROWS", rows)
    assert run(data).total("index_faults") > 0


def test_an_entry_of_an_offset_within_a_batch_is_reported(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 4)
    position = batch_positions(log)[1]
    roll(log)
    data.close()
    segment_paths(data)[0].with_suffix(".index").write_bytes(struct.pack(">ii", 13, position))
    assert any("has the last offset 13" in fault for fault in findings(only(run(data))))


@pytest.mark.parametrize("seed", range(25))
def test_logs_with_times_near_zero_are_in_order(tmp_path: Path, seed: int) -> None:
    """The entry of a first record of time 0 has twelve zero bytes, and counted as none."""
    chance = random.Random(seed)
    data = DataDirectory(tmp_path / "data", index_interval_bytes=chance.choice([1, 100, 4096]))
    log = data.log("orders")
    for _ in range(chance.randrange(2, 6)):
        for _ in range(chance.randrange(1, 5)):
            records = [Record(i, chance.choice([0, 0, 1, 5]), b"k", b"v") for i in range(chance.randrange(1, 3))]
            write(log, records)
        log.roll()
    assert findings(only(run(data))) == []
    data.close()
    assert findings(only(run(data))) == []
    assert check_directory(OsFileSystem(), str(data.path / "orders-0")) == []


@pytest.mark.parametrize(
    ("entries", "is_right"),
    [
        ([(0, 0)], False), ([], False), ([(0, 0), (5, 1)], True), ([(5, 1)], True), ([(0, 0), (5, 1), (0, 0)], True),
        ([(0, 1), (5, 1)], False), ([(0, 0), (0, 0), (5, 1)], False),
    ],
)  # fmt: skip
def test_a_time_index_ends_with_the_largest_time(
    data: DataDirectory, entries: list[tuple[int, int]], is_right: bool
) -> None:
    log = data.log("orders")
    for time_ms in (0, 5):
        write(log, [Record(0, time_ms, b"k", b"v")])
    log.roll()
    write(log, [Record(0, 5, b"k", b"v")])
    data.close()
    path = segment_paths(data)[0].with_suffix(".timeindex")
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    assert (findings(only(run(data))) == []) is is_right


@pytest.mark.parametrize("size", [12, 120])
@pytest.mark.parametrize("time_ms", [0, 5])
def test_zeros_are_an_entry_only_of_a_record_of_time_0(data: DataDirectory, size: int, time_ms: int) -> None:
    log = data.log("orders")
    write(log, [Record(0, time_ms, b"k", b"v")])
    log.roll()
    write(log, [Record(0, 5, b"k", b"v")])
    data.close()
    closed, active = (path.with_suffix(".timeindex") for path in segment_paths(data))
    closed.write_bytes(bytes(size))
    active.write_bytes(bytes(size))
    found = only(run(data))
    assert found.total("index_entries") == (not time_ms)
    assert bool(findings(found)) is bool(time_ms)


def test_a_missing_index_is_reported(data: DataDirectory) -> None:
    fill(data.log("orders"), 40)
    data.close()
    segment_paths(data)[0].with_suffix(".timeindex").unlink()
    assert findings(only(run(data)))[0].endswith(".timeindex: 00000000000000000000.timeindex is missing")


def test_a_cut_batch_is_damage_in_a_closed_segment_only(data: DataDirectory) -> None:
    fill(data.log("orders"), 200)
    data.close()
    last, first = segment_paths(data)[-1], segment_paths(data)[0]
    last.write_bytes(last.read_bytes()[:-3])
    assert [k for k in kinds(only(run(data))) if k == "framing"] == []
    first.write_bytes(first.read_bytes()[:-3])
    assert "framing" in kinds(only(run(data)))


def test_segments_that_are_compacted_meanwhile_are_looked_at_again(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 200)
    data.close()
    planned = audit_job.segment_plans

    def then_compact(partition: Partition, *, records: bool) -> list[SegmentPlan]:
        plans = planned(partition, records=records)
        monkeypatch.setattr(audit_job, "segment_plans", planned)
        compact(None, CompactRequest(data.source(), COMPACTED))
        return plans

    monkeypatch.setattr(audit_job, "segment_plans", then_compact)
    found = only(run(data))
    assert (findings(found), found.total("records")) == ([], 67)


def test_segments_that_never_hold_still_end_the_audit(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data.log("orders"), 2)
    planned = audit_job.segment_plans

    def of_another_file(partition: Partition, *, records: bool) -> list[SegmentPlan]:
        return [replace(plan, inode=1) for plan in planned(partition, records=records)]

    monkeypatch.setattr(audit_job, "segment_plans", of_another_file)
    with pytest.raises(JobError, match="orders-0: segments were deleted faster than they could be audited"):
        run(data)


def test_old_messages_are_audited_too(data: DataDirectory) -> None:
    directory = data.path / "orders-0"
    directory.mkdir()
    records = [Record(i, NOW_MS + i, b"k%d" % i, b"v" * i) for i in range(9)]
    plain = build_message_set(records[:4], MessageSetOptions(magic=1))
    wrapped = build_message_set(records[4:], MessageSetOptions(magic=1, compression=1))
    path = directory / f"{0:020d}.log"
    path.write_bytes(plain + wrapped)
    found = only(run(data))
    assert found.total("records") == 9
    hashes = [record_hash(r.offset, r.timestamp, r.key, r.value) for r in records]
    assert found.buckets == {NOW_MS // BUCKET_MS * BUCKET_MS: (9, sum(hashes) % 2**64)}
    change(path, len(plain) + 20, b"\x7f")
    assert "checksum" in kinds(only(run(data)))


# ---- against a table


def exported(data: DataDirectory, **fields: Any) -> str:
    table = str(data.path.parent / "table")
    export(None, ExportRequest(data.source(), table, **fields))
    return table


def test_a_table_equals_the_log_it_was_exported_from(data: DataDirectory) -> None:
    fill(data.log("orders"), 60)
    fill(data.log("orders", 1), 3)
    result = run(data, table=exported(data, file_bytes=2000))
    assert not result.is_wrong
    assert all(c.is_equal and c.log_rows for partition in result.partitions for c in partition.comparisons)


def test_records_written_after_the_export_are_not_compared(data: DataDirectory) -> None:
    fill(data.log("orders"), 3)
    table = exported(data)
    fill(data.log("orders"), 3)
    result = run(data, table=table)
    assert (result.is_wrong, only(result).comparisons[0].log_rows) == (False, 15)


def test_missing_different_and_repeated_rows_are_reported_by_offset(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    table = exported(data)
    (path,) = Path(table, "data").glob("*.parquet")
    rows = pq.read_table(path)
    values = rows.column("value").to_pylist()
    values[7] = b"changed"
    rows = rows.set_column(1, "value", pa.array(values, pa.binary()))
    pq.write_table(pa.concat_tables([rows.slice(1), rows.slice(9, 1)]), path)
    (fault,) = findings(only(run(data, table=table)))
    assert fault == (
        "the table differs in offsets 0 to 19: 1 twice (offsets 9); 1 missing (offsets 0); 1 different (offsets 7)"
    )


@pytest.mark.parametrize("place", ["data/mine.parquet", "data/t-0.parquet", "dead-letter/notes", "data/sub/x.parquet"])
def test_a_foreign_file_in_a_tables_folder_is_reported(data: DataDirectory, tmp_path: Path, place: str) -> None:
    fill(data.log("orders"), 4)
    table = exported(data)
    path = Path(table, place)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(next(Path(table, "data").glob("orders*.parquet")).read_bytes())
    result = run(data, table=table)
    assert result.is_wrong
    reported = [line for line in summary(result) if "a foreign file" in line]
    assert len(reported) == 1
    assert str(Path(*path.parts[: len(Path(table).parts) + 2])) in reported[0]
    write_report(result, str(tmp_path / "report"))
    for name in ("report.md", "report.html"):
        assert "a foreign file" in (tmp_path / "report" / name).read_text()
    assert json.loads((tmp_path / "report" / "report.json").read_text())["foreign_files"] == list(result.foreign)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 no more PAR1"], ids=["gone", "empty", "damaged"])
def test_a_file_of_the_table_that_cannot_be_read_is_reported(data: DataDirectory, content: bytes | None) -> None:
    fill(data.log("orders"), 4)
    table = exported(data)
    (path,) = Path(table, "data").iterdir()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    result = run(data, table=table)
    assert result.is_wrong
    (fault,) = findings(only(result))
    assert fault.startswith(f"offsets 0 to 19 are not compared: the table's rows cannot be read from {path}: ")
    assert "0 of 1 ranges" in summary(result)[-2]


def test_damage_in_the_log_does_not_end_the_comparison(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    fill(data.log("other"), 4)
    table = exported(data)
    data.close()
    change(segment_paths(data)[0], 70, b"\xff\xfe")
    result = run(data, table=table)
    reported = [fault for partition in result.partitions for fault in findings(partition)]
    assert "wrong CRC in the batch of offset 0" in reported[0]
    assert reported[1] == "offsets 0 to 4 are lost to damage"
    assert reported[2].startswith("offsets 0 to 19 are not compared: the log's records cannot be read: ")
    assert len(reported) == 3
    assert "1 of 2 ranges" in "\n".join(summary(result))


def test_a_file_that_the_manifest_does_not_have_is_missed(data: DataDirectory) -> None:
    fill(data.log("orders"), 40)
    table = exported(data, file_bytes=1000)
    manifest = Path(table, "_tidelog", "manifest-00000001.json")
    state = json.loads(manifest.read_text())
    state["files"].pop(1)
    manifest.write_text(json.dumps(state))
    assert "missing" in findings(only(run(data, table=table)))[0]


def test_rows_that_compaction_took_from_the_log_are_no_fault_of_the_table(data: DataDirectory) -> None:
    fill(data.log("orders"), 200)
    table = exported(data)
    data.close()
    compact(None, CompactRequest(data.source(), COMPACTED))
    found = only(run(data, table=table))
    assert sum(c.extra for c in found.comparisons) == found.total("compacted_offsets") > 0
    assert not found.is_wrong


def test_a_partition_that_the_table_does_not_have_is_reported(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    table = exported(data)
    fill(data.log("orders", 1), 1)
    result = run(data, table=table)
    assert "orders-1 is not in the table" in findings(result.partitions[1])[0]
    assert result.is_wrong


def test_a_table_of_another_topic_of_that_name_is_refused(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    table = exported(data)
    data.close()
    shutil.rmtree(data.path / "orders-0")
    fill(data.log("orders", topic_id=bytes(range(1, 17))), 1)
    with pytest.raises(TopicRecreatedError):
        run(data, table=table)


def test_a_table_without_a_version_is_refused(data: DataDirectory, tmp_path: Path) -> None:
    fill(data.log("orders"), 1)
    with pytest.raises(BadRequestError, match="is not an exported table"):
        run(data, table=str(tmp_path / "nothing"))


# ---- the report


def test_a_report_that_cannot_be_written_is_refused_before_the_audit(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    with pytest.raises(BadRequestError, match=r"--report .*taken/report: Not a directory; expected a directory"):
        make_report_directory(str(file / "report"))


def test_the_report_has_text_numbers_and_pictures(data: DataDirectory, tmp_path: Path) -> None:
    fill(data.log("orders"), 60)
    fill(data.log("<other>"), 2)
    result = run(data, table=exported(data))
    compared = "2 of 2 ranges of offsets are equal to the log, 310 rows"
    assert summary(result)[-2].endswith(compared)
    paths = write_report(result, str(tmp_path / "report"))
    assert {Path(path).name for path in paths} >= {"report.md", "report.html", "report.json"}
    numbers = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (numbers["in_order"], numbers["totals"]["records"]) == (True, 310)
    assert numbers["partitions"][1]["ten_minutes"][0]["records"] == 35
    page = (tmp_path / "report" / "report.html").read_text()
    assert "&lt;other&gt;-0" in page
    text = (tmp_path / "report" / "report.md").read_text()
    assert "Everything is in order." in text
    assert "| orders-0 | 0 to 299 |" in text
    assert compared in text
    assert compared in page


def test_reports_say_how_many_findings_and_lost_offsets_they_do_not_list(data: DataDirectory, tmp_path: Path) -> None:
    """The number was that of the findings that were kept."""
    fill(data.log("orders"), 1)
    result = run(data)
    (segment,) = only(result).segments
    for number in range(MAX_FINDINGS + 30):
        segment.find("checksum", number, -1, "a fault")
    for number in range(MAX_GAPS + 7):
        segment.add_gap(Gap(3 * number, 3 * number + 2, "lost"))
    shown = [line for line in summary(result) if line.startswith("orders-0: ")]
    assert len(shown) == SHOWN_FINDINGS + 1
    assert shown[-1] == f"orders-0: and {MAX_FINDINGS + 30 + MAX_GAPS + 1 - SHOWN_FINDINGS:,} more"
    assert findings(only(result))[-1] == "14 more offsets are lost, in unlisted gaps"
    write_report(result, str(tmp_path))
    (partition,) = json.loads((tmp_path / "report.json").read_text())["partitions"]
    assert (len(partition["findings"]), partition["unlisted_findings"]) == (MAX_FINDINGS + MAX_GAPS + 1, 30)
    assert "- and 30 more, which were only counted\n" in (tmp_path / "report.md").read_text()
    assert "<li>and 30 more, which were only counted</li>" in (tmp_path / "report.html").read_text()


def test_pictures_are_drawn_where_matplotlib_is(data: DataDirectory, tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        missing("matplotlib", "pip install matplotlib")
    fill(data.log("orders"), 60)
    data.close()
    gone = segment_paths(data)[0]
    gone.write_bytes(gone.read_bytes()[400:])
    result = run(data)
    write_report(result, str(tmp_path / "report"))
    for name in ("timeline.png", "offsets.png"):
        assert (tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG")
        assert f"![{name}]({name})" in (tmp_path / "report" / "report.md").read_text()


def test_the_json_report_is_the_same_when_nothing_changed(data: DataDirectory) -> None:
    fill(data.log("orders"), 10)
    first, second = (as_json(run(data)) for _ in range(2))
    for report in (first, second):
        del report["created"], report["seconds"]
    assert first == second


def test_times_beyond_the_calendar_are_shown_as_numbers(data: DataDirectory, tmp_path: Path) -> None:
    write(data.log("orders"), [Record(0, NOW_MS, None, None)])
    result = run(data)
    only(result).buckets = {2**62 // BUCKET_MS * BUCKET_MS: (1, 1)}
    write_report(result, str(tmp_path / "report"))
    assert f"{2**62 // BUCKET_MS * BUCKET_MS} ms" in (tmp_path / "report" / "report.md").read_text()


def test_partitions_are_joined_in_order(data: DataDirectory) -> None:
    fill(data.log("orders"), 60)
    found = only(run(data))
    assert [s.base_offset for s in found.segments] == sorted(s.base_offset for s in found.segments)
    assert found.buckets.keys() == {b for s in found.segments for b in s.buckets}
    assert TopicPartition.parse(found.name) == TopicPartition("orders", 0)
    assert np.sum([s.records for s in found.segments]) == 300
