"""Leader epochs in the state of a table: they tell a log that was truncated and written again from one that only
grew."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, fill
from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE, EpochEntry
from tidelog.log.follower.append import append_as_follower
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.errors import LogRewrittenError
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.exporting.history import epoch_at
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch


def run(data: DataDirectory) -> ExportResult:
    return export(None, ExportRequest(data.source(), str(data.path.parent / "table")))


def append(log: UnifiedLog, epoch: int, records: int) -> None:
    batch = build_batch([Record(number, 1_700_000_000_000, b"k", b"v") for number in range(records)])
    log.append_as_leader(memoryview(batch), leader_epoch=epoch)
    log.update_high_watermark(log.log_end_offset)


@pytest.mark.parametrize("seed", range(4))
def test_an_export_continues_only_where_its_records_are_still_those_of_the_log(data: DataDirectory, seed: int) -> None:
    """Random appends, truncations and elections. After a truncation only a leader of a new epoch writes."""
    chance = random.Random(seed)
    log = data.log("orders")
    epochs: list[int] = []  # of each offset
    exported: list[int] = []
    epoch = 0
    for _ in range(25):
        step = chance.choice(("append", "append", "elect", "cut", "export"))
        if step == "append":
            count = chance.randrange(1, 4)
            append(log, epoch, count)
            epochs += [epoch] * count
        elif step == "cut" and len(epochs) > 2:
            log.truncate_to(chance.randrange(max(1, len(epochs) - 4), len(epochs)))
            log.update_high_watermark(log.log_end_offset)
            del epochs[log.log_end_offset :]
            epoch += 1
            for _ in range(chance.randrange(4)):
                append(log, epoch, 2)
                epochs += [epoch] * 2
        elif step == "elect":
            epoch += 1
        elif step == "export" and epochs:
            outcome = "whole" if epochs[: len(exported)] == exported else "short"
            if outcome == "short" and len(epochs) >= len(exported):
                outcome = "rewritten"
            if outcome != "whole":
                with pytest.raises(LogRewrittenError if outcome == "rewritten" else JobError, match="expected the log"):
                    run(data)
                return
            assert run(data).manifest.offsets() == {"orders": {0: len(epochs)}}
            exported = list(epochs)


def test_a_log_that_was_cut_and_is_as_long_again_is_refused(data: DataDirectory) -> None:
    log = data.log("orders")
    append(log, 0, 5)
    append(log, 3, 5)
    run(data)
    log.truncate_to(5)
    append(log, 4, 5)
    with pytest.raises(LogRewrittenError, match="offset 9 was exported in leader epoch 3, the log has epoch 4 there"):
        run(data)


@pytest.mark.parametrize("what", ["missing", "empty", "damaged"])
def test_a_log_without_epochs_is_believed(data: DataDirectory, what: str) -> None:
    log = data.log("orders")
    append(log, 2, 5)
    run(data)
    append(log, 2, 5)
    path = data.path / "orders-0" / LEADER_EPOCH_FILE
    path.unlink()
    if what != "missing":
        path.write_text("" if what == "empty" else "0\n1\nx y\n")
    assert run(data).manifest.offsets() == {"orders": {0: 10}}
    path.write_text("0\n1\n7 0\n")
    assert run(data).committed is False


def test_epochs_that_were_rebuilt_from_a_compacted_log_may_begin_later(data: DataDirectory) -> None:
    log = data.log("orders")
    append(log, 0, 5)
    append(log, 3, 5)
    run(data)
    append(log, 3, 5)
    path = data.path / "orders-0" / LEADER_EPOCH_FILE
    path.write_text("0\n2\n0 0\n3 10\n")
    assert run(data).manifest.offsets() == {"orders": {0: 15}}


def test_a_replica_that_was_fetched_from_a_compacted_leader_continues(data: DataDirectory, tmp_path: Path) -> None:
    """It has holes and later epochs, and no cleaner of its own has said so."""
    log = data.log("orders")
    for epoch in (0, 3):
        append(log, epoch, 5)
    run(data)
    replica = DataDirectory(tmp_path / "replica")
    fetched = replica.log("orders")
    for epoch, start in ((0, 0), (4, 10)):
        options = BatchOptions(partition_leader_epoch=epoch)
        batch = build_batch([Record(start + number, NOW_MS, b"k", b"v") for number in range(5)], options)
        append_as_follower(fetched, memoryview(batch), epoch)
    fetched.update_high_watermark(fetched.log_end_offset)
    result = export(None, ExportRequest(replica.source(), str(tmp_path / "table")))
    assert result.manifest.offsets() == {"orders": {0: 15}}


def test_states_of_a_time_without_epochs_are_believed(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(data.log("orders"), 1)
    monkeypatch.setattr("tidelog.pipeline.jobs.exporting.plan.epochs_of", lambda _: ())
    state = run(data).manifest.topics["orders"].partitions[0]
    assert state == replace(state, leader_epoch=-1)
    monkeypatch.undo()
    fill(data.log("orders"), 1)
    assert run(data).manifest.topics["orders"].partitions[0].leader_epoch == 0


def test_an_offset_has_the_epoch_that_began_before_it() -> None:
    entries = (EpochEntry(2, 10), EpochEntry(5, 20))
    assert [epoch_at(entries, offset) for offset in (-1, 9, 10, 19, 20, 99)] == [-1, -1, 2, 2, 5, 5]
