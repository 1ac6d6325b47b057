"""Export into Delta in this process: one version per commit, the state's number in its ``txn`` action, no row twice."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("polars")

import polars
from deltalake import DeltaTable, write_deltalake

from tests.support.pipelines import (
    NOW_MS,
    DataDirectory,
    damage_first_batch,
    end_transaction,
    fill,
    killed_at,
    raise_interrupt,
)
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.errors import LogRewrittenError
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError, MissingPackageError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult
from tidelog.pipeline.jobs.exporting import commits, delta
from tidelog.pipeline.jobs.exporting.areas import MountedArea
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.exporting.delta_versions import APP_ID
from tidelog.protocol.record.record_batch import Record, build_batch


def table_of(data: DataDirectory) -> str:
    return str(data.path.parent / "table")


def run(data: DataDirectory, **fields: Any) -> ExportResult:
    return export_to_delta(None, ExportRequest(data.source(), table_of(data), **fields))


def offsets(data: DataDirectory) -> list[int]:
    return sorted(polars.read_delta(table_of(data)).get_column("offset").to_list())


def append(log: UnifiedLog, epoch: int, value: bytes) -> None:
    batch = build_batch([Record(number, NOW_MS, b"k", value) for number in range(5)])
    log.append_as_leader(memoryview(batch), leader_epoch=epoch)
    log.update_high_watermark(log.log_end_offset)


def files(data: DataDirectory) -> tuple[set[str], set[str]]:
    """List the data files in the table's folder, and those of its newest version."""
    known = {os.path.basename(uri) for uri in DeltaTable(table_of(data)).file_uris()}
    return set(os.listdir(Path(table_of(data), "data"))), known


def test_each_commit_is_a_version_and_each_record_is_there_once(data: DataDirectory) -> None:
    fill(data.log("orders"), 20)
    assert run(data, file_bytes=1000, commit_files=2).rows == 100
    fill(data.log("orders", 1), 2)
    assert run(data).rows == 10
    assert run(data).committed is False
    table = DeltaTable(table_of(data))
    assert table.transaction_version(APP_ID) == table.version() + 1
    rows = polars.read_delta(table_of(data)).sort("partition", "offset")
    assert rows.get_column("offset").to_list() == [*range(100), *range(10)]
    assert rows.get_column("key")[0] == b"key-0"


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_topics_of_any_length_are_exported_and_audited(data: DataDirectory, mode: str) -> None:
    for ending in ("rest", "more"):
        fill(data.log("orders." * 35 + ending), 3)
    assert run(data, mode=mode).rows > 0
    assert not audit(None, AuditRequest(data.source(), table_of(data))).is_wrong


def test_other_writers_may_delete_compact_and_forget(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    run(data, file_bytes=1000, commit_files=1)
    table = DeltaTable(table_of(data))
    table.delete("offset = 3")
    table.optimize.compact()
    table = DeltaTable(table_of(data))
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table = DeltaTable(table_of(data))
    table.create_checkpoint()
    for path in Path(table_of(data), "_delta_log").glob("*.json"):
        if path.stem.isdigit() and int(path.stem) < table.version():
            path.unlink()
    fill(data.log("orders"), 1)
    assert run(data).rows == 5
    assert offsets(data) == [number for number in range(25) if number != 3]


@pytest.mark.parametrize("seed", range(3))
def test_a_table_that_was_restored_gets_each_record_once_again(data: DataDirectory, seed: int) -> None:
    """Random exports, restores to any version, compactions and checkpoints."""
    chance = random.Random(seed)
    fill(data.log("orders"), 1)
    run(data)
    for _ in range(8):
        table = DeltaTable(table_of(data))
        step = chance.choice(("restore", "restore", "export", "compact", "checkpoint"))
        if step == "restore" and table.version():
            table.restore(chance.randrange(table.version()))
        elif step == "export":
            fill(data.log("orders"), 1)
            run(data)
        elif step == "compact":
            table.optimize.compact()
        else:
            table.create_checkpoint()
    fill(data.log("orders"), 1)
    run(data)
    assert offsets(data) == list(range(data.log("orders").log_end_offset))
    assert run(data).committed is False
    assert not audit(None, AuditRequest(data.source(), table_of(data))).is_wrong


def test_a_restored_table_gets_the_records_that_replaced_others(data: DataDirectory) -> None:
    """Their offsets were exported before, and the files of that export still exist beside those of the table."""
    log = data.log("orders")
    for epoch in range(2):
        append(log, epoch, b"old")
        run(data)
    log.truncate_to(5)
    append(log, 2, b"new")
    with pytest.raises(LogRewrittenError):
        run(data)
    DeltaTable(table_of(data)).restore(0)
    run(data)
    append(log, 2, b"new")
    run(data)
    rows = polars.read_delta(table_of(data)).sort("offset").get_column("value").to_list()
    assert rows == [b"old"] * 5 + [b"new"] * 10
    assert polars.read_delta(table_of(data), version=1).get_column("value").to_list() == [b"old"] * 10
    assert not audit(None, AuditRequest(data.source(), table_of(data))).is_wrong


def test_a_restore_during_a_run_is_a_conflict(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data.log("orders"), 1)
    run(data)
    fill(data.log("orders"), 1)
    run(data)
    fill(data.log("orders"), 1)
    real = commits._write

    def slow(*arguments: Any) -> None:
        real(*arguments)
        DeltaTable(table_of(data)).restore(0)

    monkeypatch.setattr(commits, "_write", slow)
    with pytest.raises(ConflictError):
        run(data)
    monkeypatch.setattr(commits, "_write", real)
    run(data)
    assert offsets(data) == list(range(15))


def test_a_writer_between_the_look_and_the_commit_is_a_conflict(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 1)
    run(data)
    fill(data.log("orders"), 1)
    run(data)
    fill(data.log("orders"), 1)
    real = MountedArea.bring_in

    def restore_and_bring_in(*arguments: Any) -> Any:
        monkeypatch.setattr(MountedArea, "bring_in", real)
        DeltaTable(table_of(data)).restore(0)
        return real(*arguments)

    monkeypatch.setattr(MountedArea, "bring_in", restore_and_bring_in)
    with pytest.raises(ConflictError):
        run(data)
    run(data)
    assert offsets(data) == list(range(15))


def test_a_restore_by_time_is_found_by_its_time(data: DataDirectory) -> None:
    for _ in range(3):
        fill(data.log("orders"), 1)
        run(data)
    table = DeltaTable(table_of(data))
    then = table.history()[-1]["timestamp"]
    table.restore(datetime.fromtimestamp(then / 1000, UTC))
    run(data)
    assert offsets(data) == list(range(15))


@pytest.mark.parametrize("parameters", [{"timestamp": "2026-11-22 10:00:00"}, {}])
def test_a_restore_to_an_unknown_version_is_refused(data: DataDirectory, parameters: dict[str, str]) -> None:
    fill(data.log("orders"), 1)
    run(data)
    path = Path(table_of(data), "_delta_log", f"{1:020d}.json")
    path.write_text(json.dumps({"commitInfo": {"operation": "RESTORE", "operationParameters": parameters}}) + "\n")
    with pytest.raises(JobError, match="was restored to a version that its history does not name"):
        run(data)


def test_a_range_without_rows_moves_the_offsets_only(data: DataDirectory) -> None:
    log = data.log("orders")
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    assert run(data).manifest.offsets() == {"orders": {0: 6}}
    assert run(data).committed is False
    fill(log, 1)
    run(data)
    assert offsets(data) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("step", ["bring_in", "_add", "after"])
@pytest.mark.parametrize("grows", [False, True])
def test_a_run_that_was_killed_is_run_again_and_leaves_no_file(data: DataDirectory, step: str, grows: bool) -> None:
    fill(data.log("orders"), 2)
    run(data)
    fill(data.log("orders"), 4)
    real = delta._DeltaCommits._add

    def killed_later(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    moments: dict[str, tuple[Any, ...]] = {
        "bring_in": (MountedArea, "bring_in"),
        "_add": (delta._DeltaCommits, "_add"),
        "after": (delta._DeltaCommits, "_add", killed_later),
    }
    with killed_at(*moments[step]):
        run(data)
    if grows:
        fill(data.log("orders"), 4)
    run(data, file_bytes=1000 if grows else 1 << 20)
    assert offsets(data) == list(range(50 if grows else 30))
    there, known = files(data)
    assert there == known
    assert os.listdir(Path(table_of(data), "_tidelog", "staging")) == []
    assert len(list(Path(table_of(data), "_tidelog").glob("delta-*.json"))) == DeltaTable(table_of(data)).version() + 1


def test_of_two_runs_one_wins_and_the_other_says_so(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data.log("orders"), 4)
    real = delta._DeltaCommits.commit

    def run_and_commit(*arguments: Any) -> None:
        monkeypatch.setattr(delta._DeltaCommits, "commit", real)
        run(data)
        real(*arguments)

    monkeypatch.setattr(delta._DeltaCommits, "commit", run_and_commit)
    with pytest.raises(ConflictError, match="another export committed to"):
        run(data)
    assert offsets(data) == list(range(20))


def test_damaged_batches_are_in_the_dead_letter_table(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    assert run(data).dead_letters == 1
    assert offsets(data) == list(range(5, 20))
    letters = polars.read_parquet(Path(table_of(data), "_tidelog", "dead-letter", "*.parquet"))
    assert letters.get_column("position").to_list() == [0]


def test_dead_letters_of_a_part_stay_when_the_run_is_killed_after_the_next_part(data: DataDirectory) -> None:
    """Each part is a run of its own, and only the newest state names it."""
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    real, opened = delta._DeltaCommits.open, []

    def killed_at_end(commits: delta._DeltaCommits) -> Any:
        opened.append(commits)
        return raise_interrupt() if len(opened) == 2 else real(commits)

    with killed_at(delta._DeltaCommits, "open", killed_at_end):
        run(data, file_bytes=200, commit_files=1)
    assert DeltaTable(table_of(data)).version() > 0
    run(data)
    letters = polars.read_parquet(Path(table_of(data), "_tidelog", "dead-letter", "*.parquet"))
    assert letters.get_column("position").to_list() == [0]
    assert offsets(data) == list(range(5, 20))


def test_the_state_that_was_committed_counts_among_others_of_its_number(data: DataDirectory) -> None:
    fill(data.log("orders"), 2)
    run(data)
    folder = Path(table_of(data), "_tidelog")
    (state,) = folder.glob("delta-00000001-*.json")
    other = json.loads(state.read_text()) | {"run": "0" * 32, "topics": {}}
    (folder / f"delta-00000001-{'0' * 32}.json").write_text(json.dumps(other))
    assert run(data).committed is False
    for path in Path(table_of(data), "_delta_log").glob("*.json"):  # as if its metadata had been cleaned up
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("\n".join(json.dumps(line) for line in lines if "commitInfo" not in line))
    with pytest.raises(JobError, match="has 2 files of state 1"):
        run(data)


def test_an_audit_finds_the_rows_that_differ(data: DataDirectory) -> None:
    fill(data.log("orders"), 4)
    run(data, file_bytes=1000, commit_files=1)
    assert not audit(None, AuditRequest(data.source(), table_of(data))).is_wrong
    table = DeltaTable(table_of(data))
    table.optimize.compact()
    assert not audit(None, AuditRequest(data.source(), table_of(data))).is_wrong
    table.delete("offset = 3")
    table.update(updates={"value": "key"}, predicate="offset = 7")
    (partition,) = audit(None, AuditRequest(data.source(), table_of(data))).partitions
    found = [(one.missing, one.different, one.extra, one.twice) for one in partition.comparisons]
    assert [sum(each) for each in zip(*found, strict=True)] == [1, 1, 0, 0]


def test_an_audit_of_a_table_without_exports_is_refused(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    write_deltalake(table_of(data), polars.DataFrame({"a": [1]}).to_arrow())
    with pytest.raises(BadRequestError, match="has no version yet"):
        audit(None, AuditRequest(data.source(), table_of(data)))


def test_a_table_of_another_writer_is_refused(data: DataDirectory) -> None:
    fill(data.log("orders"), 1)
    write_deltalake(table_of(data), polars.DataFrame({"a": [1]}).to_arrow())
    with pytest.raises(BadRequestError, match="is not empty and no exported table"):
        run(data)


def test_without_deltalake_the_package_is_named(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"deltalake is not installed: pip install 'tidelog\[delta\]'"):
        run(data)
