"""Audits beside a broker that swaps, deletes and makes segments: nothing is left out, and no finding is false."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import DataDirectory, fill
from tests.support.transactions import write_transactions
from tidelog.pipeline.audit import segment as audit_segment
from tidelog.pipeline.audit import transactions as audit_transactions
from tidelog.pipeline.audit.indices import IndexCheck
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files import segment_files
from tidelog.pipeline.files.stamps import stamp_of
from tidelog.pipeline.jobs import audit as audit_job
from tidelog.pipeline.jobs.audit import AuditRequest, AuditResult, audit
from tidelog.pipeline.jobs.reports.audit_report import findings

SUFFIXES = (".index", ".timeindex", ".txnindex", ".log")
"""Endings of a segment's files, in the order in which Tidelog renames them; Kafka renames the record file first."""
ORDERS = {"tidelog": SUFFIXES, "kafka": SUFFIXES[::-1]}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    """At least three closed segments with transactions."""
    directory = DataDirectory(tmp_path / "data", segment_bytes=3000)
    write_transactions(directory.log("t"), random.Random(1))
    assert len(list((directory.path / "t-0").glob("*.log"))) > 3
    yield directory
    directory.close()


def segment_at(data: DataDirectory, number: int) -> Path:
    return sorted((data.path / "t-0").glob("*.log"))[number]


def begin_swap(log: Path, order: tuple[str, ...]) -> list[Callable[[], object]]:
    """Put a copy of a segment beside it as ``.swap``; return the renames that take the segment's place, in order."""
    there = [log.with_suffix(suffix) for suffix in order if log.with_suffix(suffix).exists()]
    swaps = [Path(f"{path}.swap") for path in there]
    for path, swap in zip(there, swaps, strict=True):
        shutil.copy(path, swap)
    away = [partial(path.rename, f"{path}.deleted") for path in there]
    return [*away, *(partial(swap.rename, swap.with_suffix("")) for swap in swaps)]


def run(data: DataDirectory) -> AuditResult:
    return audit(None, AuditRequest(data.source()))


def call_before(patch: pytest.MonkeyPatch, place: Any, name: str, act: Callable[[], object]) -> None:
    """Call ``act`` once, before the first call of a function."""
    function, waiting = getattr(place, name), [act]

    def call(*args: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop()()
        return function(*args, **named)

    patch.setattr(place, name, call)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_segment_that_is_between_two_names_is_audited(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], number: int
) -> None:
    """It was left out: lost offsets, and of the first segment "the log began at offset 0, its first segment at"."""
    expected = run(data)
    log = segment_at(data, number)
    timers: list[threading.Timer] = []

    def swap() -> None:
        renames = begin_swap(log, order)
        half = len(renames) // 2
        for rename in renames[:half]:
            rename()
        timers.append(threading.Timer(0.05, lambda: [rename() for rename in renames[half:]]))
        timers[0].start()

    call_before(monkeypatch, audit_job, "OpenSegment", swap)
    result = run(data)
    timers[0].join()
    assert findings(result.partitions[0]) == []
    assert result.total("records") == expected.total("records")


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_an_index_that_a_swap_has_not_put_in_place_yet_is_no_finding(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], left: int
) -> None:
    """The last ``left`` renames come after the segment was read: its record file may be there before its indices."""
    log = segment_at(data, 0)
    renames = begin_swap(log, order)
    for rename in renames[:-left]:
        rename()
    timer = threading.Timer(0.05, lambda: [rename() for rename in renames[-left:]])
    read = audit_segment._SegmentWalk.run

    def read_first(walk: Any) -> Any:
        audited = read(walk)
        if timer.ident is None:
            timer.start()
        return audited

    if log.exists():
        monkeypatch.setattr(audit_segment._SegmentWalk, "run", read_first)
    else:
        timer.start()
    assert findings(run(data).partitions[0]) == []
    timer.join()


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_swap_that_ends_while_the_audit_looks_for_it_is_no_finding(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """The last renames come when the audit has seen that an index is missing, and before it looks for swaps."""
    renames = begin_swap(segment_at(data, 0), ORDERS["kafka"])
    while len(renames) > left:
        renames.pop(0)()

    def end_swap_before(path: str) -> Any:
        while path.endswith(".swap") and renames:
            renames.pop(0)()
        return stamp_of(path)

    monkeypatch.setattr(audit_segment, "stamp_of", end_swap_before)
    assert findings(run(data).partitions[0]) == []


def test_a_segment_that_retention_deletes_is_no_finding(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    log = data.log("t")
    base = int(segment_at(data, 1).name[:20])

    def delete() -> None:
        log.maybe_increment_log_start_offset(base)
        log.leader_epochs.truncate_from_start(base)
        for suffix in SUFFIXES:
            path = segment_at(data, 0).with_suffix(suffix)
            if path.exists():
                path.rename(f"{path}.deleted")

    call_before(monkeypatch, audit_job, "OpenSegment", delete)
    (partition,) = run(data).partitions
    assert partition.segments[0].base_offset == base
    assert findings(partition) == []


def test_segments_that_go_again_and_again_end_the_audit(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(audit_job, "OpenSegment", gone)
    with pytest.raises(
        PipelineError, match="t-0 was deleted, or its segments were deleted faster than they could be listed"
    ):
        run(data)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("renames", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("place", ["IndexCheck.open", "read_bytes"])
def test_indices_of_another_file_than_the_records_are_no_finding(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], renames: int, place: str
) -> None:
    """The segment was opened, and then swapped: an index of its new file, or none, was compared with the old one."""
    expected = run(data)
    monkeypatch.setattr(segment_files, "SWAP_PATIENCE_S", 0)
    log = segment_at(data, 0)
    waiting: list[Callable[[], object]] = []

    def swap() -> None:
        steps = begin_swap(log, order)
        for step in steps[:renames]:
            step()
        waiting.extend(steps[renames:])

    where, name = (IndexCheck, "open") if place != "read_bytes" else (audit_transactions, "read_bytes")
    call_before(monkeypatch, where, name, swap)
    finish = audit_segment._SegmentWalk._finish

    def finish_swap(walk: audit_segment._SegmentWalk, end: int) -> None:
        finish(walk, end)
        while waiting:
            waiting.pop(0)()

    monkeypatch.setattr(audit_segment._SegmentWalk, "_finish", finish_swap)
    result = run(data)
    assert findings(result.partitions[0]) == []
    assert result.total("records") == expected.total("records")


def test_a_segment_that_is_made_meanwhile_is_no_finding(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index counted as one without a segment."""
    log = data.log("t")

    def roll() -> None:
        log.roll()
        fill(log, 1)

    call_before(monkeypatch, audit_job, "check_small_files", roll)
    assert findings(run(data).partitions[0]) == []
