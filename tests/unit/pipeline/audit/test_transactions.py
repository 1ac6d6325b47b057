"""The check of a segment's transactions when the next segment, which has their markers, cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, write
from tidelog.pipeline.audit import segment as audited_segment
from tidelog.pipeline.audit import transactions as audit_transactions
from tidelog.pipeline.audit.segment import SegmentAudit, audit_segment
from tidelog.pipeline.errors import ObjectGoneError, PipelineError, RemoteError
from tidelog.pipeline.jobs.audit import segment_plans
from tidelog.pipeline.plan.transactions import markers
from tidelog.protocol.record.record_batch import Record

MAX_FINDINGS = 20


@pytest.fixture
def directory(data: DataDirectory) -> Path:
    """Directory of a log whose first segment has records of two aborted transactions; both markers are in the next."""
    log = data.log("t")
    for number in range(6):
        for producer_id in (1, 2):
            write(log, [Record(0, NOW_MS, b"k", b"v" * 200)], producer_id=producer_id, producer_epoch=0,
                  base_sequence=number, is_transactional=True)  # fmt: skip
    log.roll()
    for producer_id in (1, 2):
        end_transaction(log, producer_id, commit=False)
    data.close()
    return data.path / "t-0"


def become_directory(path: Path, _: pytest.MonkeyPatch) -> None:
    path.unlink()
    path.mkdir()


def become_unreadable(path: Path, patch: pytest.MonkeyPatch, error: type[PipelineError] = RemoteError) -> None:
    """Let each opening of the file by the walk fail."""
    opened = markers.OpenSegment  # type: ignore[attr-defined]

    def open_segment(name: str) -> object:
        if name == str(path):
            raise error(f"{name} cannot be opened: slow down")
        return opened(name)

    patch.setattr(markers, "OpenSegment", open_segment)


def audit_first(data: DataDirectory, harm: Callable[[], None], patch: pytest.MonkeyPatch) -> SegmentAudit | None:
    """Audit the first segment in many chunks after ``harm``; fail when the findings do not end."""
    (partition,) = data.source().partitions()
    plan, _ = segment_plans(partition, records=True)
    harm()
    find = audited_segment.SegmentAudit.add_finding

    def find_few(audit: SegmentAudit, finding: audited_segment.Finding) -> None:
        find(audit, finding)
        assert audit.finding_count < MAX_FINDINGS

    patch.setattr(audited_segment.SegmentAudit, "add_finding", find_few)
    patch.setattr(audited_segment, "CHUNK_BYTES", 600)
    return audit_segment(plan)


@pytest.mark.parametrize("harm", [become_directory, become_unreadable], ids=lambda harm: harm.__name__)
def test_a_next_segment_that_cannot_be_read_is_one_finding(
    data: DataDirectory,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    """The walk was repeated without end, and the findings filled the memory. The transaction indices decide instead."""
    path = directory / f"{12:020d}.log"
    found = audit_first(data, lambda: harm(path, monkeypatch), monkeypatch)
    assert found is not None
    assert [(one.kind, str(path) in one.message) for one in found.findings] == [("transaction", True)]
    assert (found.aborted_records, found.records, found.index_faults) == (12, 0, 0)


def test_an_object_that_was_deleted_makes_a_new_audit(
    data: DataDirectory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory / f"{12:020d}.log"
    assert audit_first(data, lambda: become_unreadable(path, monkeypatch, ObjectGoneError), monkeypatch) is None


def test_each_transaction_that_cannot_be_decided_is_a_finding(
    data: DataDirectory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def harm() -> None:
        for name in directory.glob("*.txnindex"):
            name.write_bytes(b"\xff" * 34)
        content = bytearray((directory / f"{12:020d}.log").read_bytes())
        content[70] ^= 1
        content[len(content) // 2 + 70] ^= 1
        (directory / f"{12:020d}.log").write_bytes(content)

    monkeypatch.setattr(audit_transactions, "ENTRY_PATIENCE_S", 0)
    found = audit_first(data, harm, monkeypatch)
    assert found is not None
    undecided = [one for one in found.findings if one.kind == "transaction"]
    assert len(undecided) == 2
