"""Export in this process, without Spark: contents of a table after runs, crashes, races and damage."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import (
    NOW_MS,
    DataDirectory,
    damage_first_batch,
    end_transaction,
    fill,
    killed_at,
    write,
)
from tidelog.log.files.checkpoints import LOG_START_OFFSET_FILE, write_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.errors import CorruptBatchError, DataLossError, SelectionError, TopicRecreatedError
from tidelog.pipeline.export import manifest
from tidelog.pipeline.export.file import FilePlan, FileResult, write_file
from tidelog.pipeline.export.manifest import ExportTable
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.exporting import commits
from tidelog.pipeline.jobs.reports.export_report import report
from tidelog.protocol.record.record_batch import Record, build_batch

OTHER_ID = bytes(range(1, 17))


def request_for(data: DataDirectory, **fields: Any) -> ExportRequest:
    fields.setdefault("source", data.source())
    fields.setdefault("table", str(data.path.parent / "table"))
    return ExportRequest(**fields)


def run(data: DataDirectory, **fields: Any) -> ExportResult:
    return export(None, request_for(data, **fields))


def rows_of(request: ExportRequest, folder: str = "data") -> list[dict[str, Any]]:
    paths = sorted(Path(request.table, folder).glob("*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def expected(records: list[Record], partition: int = 0) -> list[tuple[Any, ...]]:
    return [(partition, r.offset, r.key, r.value, r.timestamp) for r in records]


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["partition"], r["offset"], r["key"], r["value"], int(r["timestamp"].timestamp() * 1000)) for r in rows]


def test_every_record_is_in_the_table_once(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 100)
    other = fill(data.log("orders", 1), 3, compression=4)
    result = run(data, file_bytes=10_000)
    assert shown(rows_of(request_for(data))) == expected(written) + expected(other, 1)
    assert (result.rows, result.files) == (515, len(result.manifest.files))
    assert result.files > 2
    assert result.complete_through() == {
        "orders": {0: (written[-1].timestamp, 500), 1: (other[-1].timestamp, 15)},
    }


def test_files_are_named_by_topic_id_partition_and_first_offset_and_cover_the_range(data: DataDirectory) -> None:
    fill(data.log("orders"), 100)
    files = sorted(run(data, file_bytes=10_000).manifest.files, key=lambda file: file.start)
    ends = [0, *(file.end for file in files)]
    assert [(file.start, file.end) for file in files] == list(itertools.pairwise(ends))
    assert files[0].name == f"orders-AAECAwQFBgcICQoLDA0ODw-0-{0:020d}.parquet"
    assert ends[-1] == 500


@pytest.mark.parametrize("split_by", ["", "hour"])
def test_topics_of_any_length_are_exported(data: DataDirectory, split_by: str) -> None:
    first, second = "orders." * 35 + "rest", "orders." * 35 + "more"
    assert len(first) == 249
    written = {topic: fill(data.log(topic), 3) for topic in (first, second)}
    run(data, split_by=split_by)
    for topic, records in written.items():
        records += fill(data.log(topic), 3)
    files = run(data, split_by=split_by).manifest.files
    assert {file.topic for file in files} == {first, second}
    assert split_by or len(files) == 2, "a small file grows"
    rows = rows_of(request_for(data))
    for topic, records in written.items():
        assert shown([row for row in rows if row["topic"] == topic]) == expected(records)


@pytest.mark.parametrize("split_by", ["", "day"])
@pytest.mark.parametrize("file_bytes", [1, 10**9])
def test_a_run_counts_the_rows_that_it_added(data: DataDirectory, split_by: str, file_bytes: int) -> None:
    """A small file grows: its earlier rows were counted with each run, and in the metric of a follower."""
    log = data.log("orders")
    for number in (3, 1, 2):
        written = fill(log, number)
        assert run(data, split_by=split_by, file_bytes=file_bytes).rows == len(written)
    assert run(data, split_by=split_by, file_bytes=file_bytes).rows == 0


def test_the_same_range_gives_the_same_files_byte_for_byte(data: DataDirectory, tmp_path: Path) -> None:
    fill(data.log("orders"), 60, compression=4)
    for name in ("one", "two"):
        export(None, ExportRequest(data.source(), str(tmp_path / name), file_bytes=2000))
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "data").iterdir()} for name in ("one", "two")
    )
    assert one == two


def test_names_of_directories_and_files_are_synced_before_the_version_that_has_them(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power would leave a version without its files, or take the whole table."""
    fill(data.log("orders"), 10)
    synced: list[str] = []
    committed: list[tuple[str, list[str]]] = []
    sync_directory, link = OsFileSystem.sync_directory, os.link

    def note_sync(self: OsFileSystem, path: str) -> None:
        sync_directory(self, path)
        synced.append(path)

    def note_link(staged: str, version: str) -> None:
        committed.append((os.path.dirname(staged), list(synced)))
        link(staged, version)

    disk = type("Noting", (OsFileSystem,), {"sync_directory": note_sync})
    monkeypatch.setattr(manifest, "OsFileSystem", disk)
    monkeypatch.setattr(os, "link", note_link)
    table = data.path.parent / "lake" / "orders"
    run(data, table=str(table))
    run_path, before = committed[0]
    own = [table.parent.parent, table.parent, table, table / "_tidelog", table / "_tidelog" / "staging"]
    staged = [f"{run_path}/data", f"{run_path}/dead-letter", run_path]
    assert {*map(str, own), *staged} <= set(before)


def test_a_second_run_adds_new_rows_to_a_small_last_file(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 3)
    first = run(data)
    written += fill(data.log("orders"), 3)
    second = run(data)
    assert shown(rows_of(request_for(data))) == expected(written)
    assert (second.manifest.version, len(second.manifest.files)) == (2, 1)
    assert second.manifest.files[0].start == first.manifest.files[0].start
    assert not run(data).committed
    assert report(run(data), "TABLE")[0] == "TABLE version 2: nothing new"


def test_a_topic_without_records_has_a_state_and_no_file(data: DataDirectory) -> None:
    data.log("orders")
    result = run(data)
    assert (result.files, result.manifest.offsets()) == (0, {"orders": {0: 0}})
    assert report(result, "TABLE")[1] == "orders-0 has no records yet"
    assert not run(data).committed


def test_a_large_last_file_stays(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 10)
    first = run(data, file_bytes=1000)
    written += fill(data.log("orders"), 10)
    second = run(data, file_bytes=1000)
    assert 2 * first.manifest.files[-1].log_bytes > 1000
    assert second.manifest.files[: len(first.manifest.files)] == first.manifest.files
    assert shown(rows_of(request_for(data))) == expected(written)


def test_aborted_and_open_transactions_are_left_out_and_exported_when_they_commit(data: DataDirectory) -> None:
    log = data.log("orders")
    kept = fill(log, 2)
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    kept += fill(log, 1, producer_id=6, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert run(data).manifest.offsets() == {"orders": {0: kept[-1].offset - 4}}
    end_transaction(log, 6, commit=True)
    run(data)
    assert shown(rows_of(request_for(data))) == expected(kept)


def test_a_day_is_complete_when_a_later_look_found_no_more(data: DataDirectory) -> None:
    records = fill(data.log("orders"), 2)
    result = run(data)
    last = records[-1].timestamp
    assert result.incomplete(last) == []
    assert result.incomplete(result.looked_ms) == []
    assert result.incomplete(result.looked_ms + 1) == ["orders-0"]
    again = run(data)  # nothing is new, and the look is: a partition without records does not hold a day up
    assert again.looked_ms >= result.looked_ms
    assert again.incomplete(again.looked_ms) == []


def test_a_time_beyond_the_calendar_is_reported_as_a_number(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    result = run(data)
    topic = result.manifest.topics["orders"]
    late = replace(topic, partitions={0: replace(topic.partitions[0], complete_timestamp=9 * 10**15)})
    found = replace(result, manifest=replace(result.manifest, topics={"orders": late}))
    assert report(found, "table")[1] == f"orders-0 complete through offset 4, {9 * 10**15} ms"


def test_an_open_transaction_holds_the_day_up(data: DataDirectory) -> None:
    log = data.log("orders")
    first = fill(log, 2)
    fill(log, 1, producer_id=6, producer_epoch=0, base_sequence=0, is_transactional=True)
    result = run(data)
    assert result.incomplete(first[-1].timestamp) == []
    assert result.incomplete(first[-1].timestamp + 1) == ["orders-0"]
    end_transaction(log, 6, commit=True)
    result = run(data)
    assert result.incomplete(result.looked_ms) == []


def test_records_left_to_a_later_run_hold_the_day_up(data: DataDirectory) -> None:
    """Without a value no columns can be inferred, so nothing is exported; the empty partition lacks no record."""
    write(data.log("orders"), [Record(number, NOW_MS, b"k", None) for number in range(3)])
    data.log("orders", 1)
    result = run(data, values="json")
    assert (result.committed, result.lag()) == (False, {("orders", 0): 3, ("orders", 1): 0})
    assert result.incomplete(NOW_MS + 1) == ["orders-0"]
    write(data.log("orders"), [Record(0, NOW_MS, b"k", b'{"a": 1}')])
    result = run(data, values="json")
    assert (result.rows, result.incomplete(result.looked_ms)) == (4, [])


@pytest.mark.parametrize("start", [0, 2, 3])
@pytest.mark.parametrize("values", ["", "json"])
def test_a_partition_that_the_table_lacks_lags_from_the_logs_start(
    data: DataDirectory, start: int, values: str
) -> None:
    """It counted from offset 0: a log that begins and ends at 1,000 had a lag of 1,000."""
    write(data.log("orders"), [Record(number, NOW_MS, b"k", None) for number in range(3)])
    offsets = {TopicPartition("orders", 0): start}
    write_offset_checkpoint(OsFileSystem(), str(data.path / LOG_START_OFFSET_FILE), offsets)
    assert run(data, values=values).lag() == {("orders", 0): 3 - start if values else 0}


def test_a_partition_that_the_table_does_not_have_holds_the_day_up(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    result = run(data)
    found = replace(result, manifest=replace(result.manifest, topics={}), exhausted=frozenset())
    assert found.incomplete(NOW_MS) == ["orders-0"]


def test_everything_is_exported_when_uncommitted_is_asked_for(data: DataDirectory) -> None:
    log = data.log("orders")
    written = fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    run(data, source=data.source(read_committed=False))
    assert shown(rows_of(request_for(data))) == expected(written)


def test_a_recreated_topic_is_refused_until_a_restart_is_asked_for(data: DataDirectory) -> None:
    old = fill(data.log("orders"), 2)
    run(data)
    data.close()
    os.rename(data.path / "orders-0", data.path.parent / "gone")
    new = fill(data.log("orders", topic_id=OTHER_ID), 1)
    with pytest.raises(TopicRecreatedError, match="orders was deleted and created again: the table has id AAECA"):
        run(data)
    result = run(data, restart_recreated=True)
    assert result.manifest.offsets() == {"orders": {0: 5}}
    assert len(rows_of(request_for(data))) == len(old) + len(new)


def test_records_that_retention_deleted_before_the_export_are_reported(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 60)
    run(data)
    fill(log, 200)
    log.roll()
    log.maybe_increment_log_start_offset(700, export_reason())
    data.close()
    (data.path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 700\n")
    with pytest.raises(DataLossError, match="orders-0 begins at offset 700, the table ends at 300"):
        run(data)
    result = run(data, fail_on_data_loss=False)
    assert result.manifest.topics["orders"].partitions[0].lost == ((300, 700),)
    assert [row["offset"] for row in rows_of(request_for(data))] == [*range(300), *range(700, 1300)]
    assert "orders-0 lost before export: offsets 300 to 699" in report(result, "TABLE")


def export_reason() -> Any:
    from tidelog.log.retention import StartOffsetReason

    return StartOffsetReason.DELETE_RECORDS


def test_a_log_that_was_cut_is_refused(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 4)
    run(data)
    log.truncate_to(10)
    with pytest.raises(JobError, match="orders-0 ends at offset 10, the table has it up to 20: the log was truncated"):
        run(data)


def test_of_two_exports_one_wins_and_the_other_says_so(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    written = fill(data.log("orders"), 4)
    real = commits._write

    def slow(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(commits, "_write", real)
        run(data)

    monkeypatch.setattr(commits, "_write", slow)
    with pytest.raises(ConflictError, match="another export committed version 1"):
        run(data)
    assert shown(rows_of(request_for(data))) == expected(written)
    assert run(data).committed is False


def test_a_run_killed_between_stage_and_commit_leaves_nothing(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 4)
    with killed_at(ExportTable, "commit"):
        run(data)
    assert rows_of(request_for(data)) == []
    run(data)
    assert shown(rows_of(request_for(data))) == expected(written)
    assert os.listdir(Path(request_for(data).table, "_tidelog", "staging")) == []


def test_a_run_killed_after_the_commit_is_finished_by_the_next(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = fill(data.log("orders"), 4)
    with monkeypatch.context() as patch:
        patch.setattr(ExportTable, "_finish_commit", kill_when_committed(ExportTable._finish_commit))
        with pytest.raises(KeyboardInterrupt):
            run(data)
    assert rows_of(request_for(data)) == []
    assert run(data).committed is False
    assert shown(rows_of(request_for(data))) == expected(written)


def kill_when_committed(real: Any) -> Any:
    def settle(table: ExportTable, manifest: Any) -> None:
        if manifest.version:
            raise KeyboardInterrupt
        real(table, manifest)

    return settle


def test_a_damaged_batch_goes_to_the_dead_letters_and_the_rest_to_the_table(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 10)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    size = len(damaged) // 10
    start = next(i for i in range(2 * size, len(damaged)) if damaged[i : i + 8] == (15).to_bytes(8, "big"))
    damaged[start + 70] ^= 1
    path.write_bytes(damaged)
    result = run(data)
    left = [record for record in written if not 15 <= record.offset < 20]
    assert shown(rows_of(request_for(data))) == expected(left)
    (letter,) = rows_of(request_for(data), "dead-letter")
    assert (letter["file"], letter["position"]) == (str(path), start)
    assert letter["bytes"] == bytes(damaged[start : start + letter["size"]])
    assert result.dead_letters == 1
    assert "dead letters: 1; see the dead-letter table" in report(result, "TABLE")


def test_damage_ends_the_job_when_asked_to(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    with pytest.raises(JobError, match="corrupt batch at byte 0"):
        run(data, keep_damaged=False)


def test_bytes_that_are_no_batch_are_passed_over_to_the_next_indexed_one(data: DataDirectory) -> None:
    written = fill(data.log("orders"), 10)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[8:12] = b"\xff\xff\xff\xf0"
    path.write_bytes(damaged)
    run(data)
    found = [row["offset"] for row in rows_of(request_for(data))]
    assert found == [record.offset for record in written if record.offset >= found[0]]
    assert 0 < found[0] <= 15
    (letter,) = rows_of(request_for(data), "dead-letter")
    assert letter["position"] == 0


@pytest.mark.parametrize("time", [2**62, -(2**62)])
def test_a_record_with_a_time_no_column_can_hold_is_a_dead_letter(data: DataDirectory, time: int) -> None:
    log = data.log("orders")
    written = fill(log, 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    odd = [Record(20 + i, time if i in (1, 2) else NOW_MS, b"k%d" % i, b"v") for i in range(4)]
    path.write_bytes(path.read_bytes() + build_batch(odd))
    result = run(data)
    written += [record for record in odd if record.timestamp == NOW_MS]
    assert shown(rows_of(request_for(data))) == expected(written)
    letters = rows_of(request_for(data), "dead-letter")
    assert [letter["offset"] for letter in letters] == [21, 22]
    assert letters[0]["bytes"] == bytes(build_batch(odd))
    assert result.dead_letters == 2
    with pytest.raises(JobError, match="does not fit microseconds"):
        export(None, ExportRequest(data.source(), str(data.path.parent / "other"), keep_damaged=False))


def test_headers_can_be_left_out_but_not_midway(data: DataDirectory) -> None:
    write(data.log("orders"), [Record(0, NOW_MS, b"k", b"v", (("name", b"x"),))])
    run(data)
    assert rows_of(request_for(data))[0]["headers"] == [{"key": "name", "value": b"x"}]
    write(data.log("orders"), [Record(0, NOW_MS, b"k", b"v")])
    with pytest.raises(JobError, match=r"expected key, value, .*\(the headers option\)"):
        run(data, headers=False)


@pytest.mark.parametrize("content", [{"notes.txt": "mine"}])
def test_a_directory_of_something_else_is_refused(data: DataDirectory, content: dict[str, str]) -> None:
    request = request_for(data)
    os.makedirs(request.table)
    for name, text in content.items():
        Path(request.table, name).write_text(text)
    fill(data.log("orders"), 1)
    with pytest.raises(BadRequestError, match="is not empty and no exported table"):
        export(None, request)


def test_a_damaged_manifest_is_reported(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    run(data)
    Path(request_for(data).table, "_tidelog", "manifest-00000001.json").write_text("{}")
    with pytest.raises(JobError, match="is not a manifest of a Tidelog export"):
        run(data)


def test_a_missing_path_is_reported(data: DataDirectory) -> None:
    source = replace(data.source(), paths=("/nowhere",))
    with pytest.raises(SelectionError, match="path /nowhere does not exist"):
        run(data, source=source)


def test_the_table_reads_as_one_data_set_with_the_columns_of_the_source(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    fill(data.log("other"), 4)
    run(data, source=data.source(), file_bytes=500)
    table = pq.read_table(Path(request_for(data).table, "data"))
    assert table.schema.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert table.num_rows == 40


def test_corrupt_batch_errors_can_travel() -> None:
    import pickle

    error = CorruptBatchError("f", 1, 2, "w")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_run_that_is_killed_at_any_commit_continues_at_the_last_one(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = fill(data.log("orders"), 60)
    fields: dict[str, Any] = {"file_bytes": 2000, "commit_files": 2}
    real, ends = ExportTable.commit, [0]

    for number in range(40):

        def commit(table: ExportTable, after: Any, staged: Any, is_early: bool = number % 3 == 0) -> None:
            if is_early:
                raise KeyboardInterrupt
            real(table, after, staged)
            ends.append(after.topics["orders"].partitions[0].end)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(ExportTable, "commit", commit)
            if not run(data, **fields).committed:
                break
    assert ends == sorted(set(ends)), "each run goes on where the one before it committed"
    assert len(ends) > 3
    assert run(data, **fields).committed is False
    assert shown(rows_of(request_for(data))) == expected(written)


def test_several_commits_of_one_run_say_all_that_it_did(data: DataDirectory) -> None:
    written = [*fill(data.log("orders"), 20), *fill(data.log("orders", 1), 20)]
    result = run(data, file_bytes=2000, commit_files=3)
    assert (result.rows, result.manifest.version) == (len(written), -(-result.files // 3))
    assert sorted(row["offset"] for row in rows_of(request_for(data))) == sorted(record.offset for record in written)


@pytest.mark.parametrize("seed", range(4))
def test_commits_come_every_few_minutes_too(data: DataDirectory, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    written = [record for partition in range(3) for record in fill(data.log("orders", partition), 20)]
    clock, moments = ManualClock(), [0.0]
    real_commit = ExportTable.commit

    def slowly(plan: FilePlan) -> FileResult:
        clock.now += chance.choice((40, 60, 80))
        return write_file(plan)

    def commit(*arguments: Any) -> None:
        real_commit(*arguments)
        moments.append(clock.now)

    monkeypatch.setattr("tidelog.pipeline.jobs.exporting.commits.write_file", slowly)
    monkeypatch.setattr(commits, "FIRST_SPEED", 10)
    monkeypatch.setattr(commits, "CommitPace", partial(commits.CommitPace, clock=clock))
    monkeypatch.setattr(ExportTable, "commit", commit)
    result = run(data, file_bytes=1000, commit_minutes=5)
    assert shown(rows_of(request_for(data))) == [row for p in range(3) for row in expected(written[100 * p :][:100], p)]
    between = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert max(between) <= 5 * 60 * 2, "no file takes more than twice as long as another"
    assert len(between) < result.files, "there are not more commits than needed"


@dataclass
class ManualClock:
    """A clock in seconds that the test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
