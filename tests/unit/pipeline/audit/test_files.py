"""Each file of a partition directory damaged in each way: the audit finds the damage, or reading gives the same records
without the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.pipelines import TOPIC_ID, DataDirectory, end_transaction, fill
from tidelog.log.files.checkpoints import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    write_offset_checkpoint,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.audit import files as audit_files
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.files.storage import names_in
from tidelog.pipeline.jobs.audit import AuditRequest, AuditResult, audit
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.offsets import log_bounds
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan
from tidelog.pipeline.plan.selection import PartitionDirectory

pytest.importorskip("pyarrow")

Damage = Callable[[Path], None]


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def foreign(path: Path) -> None:
    """Write bytes of no valid format."""
    path.write_bytes(b"this is no such file \xff\xfe" * 7)


DAMAGES: tuple[Damage, ...] = (missing, empty, truncated, flipped, foreign)
#: What no audit can tell from a whole directory, and why it does no harm.
HARMLESS = {
    ("first.index", "empty"): "readers walk the headers, and few entries are no fault",
    ("first.index", "truncated"): "readers walk the headers, and few entries are no fault",
    ("snapshot", "missing"): "it is made anew, and readers walk the headers",
    ("leader-epoch-checkpoint", "missing"): "copies and followers of old brokers have none",
    ("leader-epoch-checkpoint", "empty"): "Kafka writes an empty one where it has no epoch",
    ("partition.metadata", "missing"): "logs of old brokers have none",
    (
        "partition.metadata",
        "flipped",
    ): "the rows are the same, and an export refuses the id as another topic's",
}


@dataclass
class Case:
    """A file of the directory, with its name in HARMLESS."""

    name: str
    find: Callable[[Path], Path]


def nth(pattern: str, number: int) -> Callable[[Path], Path]:
    return lambda directory: sorted(directory.glob(pattern))[number]


CASES = [
    Case("first.log", nth("*.log", 0)),
    Case("middle.log", nth("*.log", 1)),
    Case("newest.log", nth("*.log", -1)),
    Case("first.index", nth("*.index", 0)),
    Case("first.timeindex", nth("*.timeindex", 0)),
    Case("first.txnindex", nth("*.txnindex", 0)),
    Case("snapshot", nth("*.snapshot", 0)),
    Case("leader-epoch-checkpoint", nth("leader-epoch-checkpoint", 0)),
    Case("partition.metadata", nth("partition.metadata", 0)),
]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """Closed segments, an active one, an aborted transaction in the first, all checkpoints."""
    directory = DataDirectory(tmp_path / "data")
    log = directory.log("t")
    fill(log, 1, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 7, commit=False)
    fill(log, 60)
    end = log.log_end_offset
    directory.close()
    for name in (RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE):
        write_offset_checkpoint(OsFileSystem(), str(directory.path / name), {TopicPartition("t", 0): end})
    write_partition_metadata(OsFileSystem(), str(directory.path / "t-0"), TOPIC_ID)
    return directory


def run(data: DataDirectory) -> AuditResult:
    return audit(None, AuditRequest(data.source()))


def committed(data: DataDirectory) -> list[int]:
    place = PartitionDirectory("t", None, 0, str(data.path / "t-0"))
    bounds = log_bounds(place, read_committed=True)
    options = ReadOptions(Isolation.READ_COMMITTED)
    return [
        offset
        for piece in plan(ReadRequest((OffsetRange(place, bounds.start, bounds.last_stable),)))
        for batch in read_slice(piece, Columns.default(headers=False), options=options)
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_whole_directory_is_in_order(data: DataDirectory) -> None:
    (partition,) = run(data).partitions
    assert findings(partition) == []
    assert len(list((data.path / "t-0").glob("*.log"))) >= 3


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_damage_is_found_or_does_no_harm(data: DataDirectory, case: Case, damage: Damage) -> None:
    before = committed(data)
    damage(case.find(data.path / "t-0"))
    result = run(data)
    if (case.name, damage.__name__) in HARMLESS:
        assert committed(data) == before
    else:
        assert result.is_wrong
        assert findings(result.partitions[0])


@pytest.mark.parametrize("name", [RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE])
def test_a_checkpoint_that_cannot_be_read_is_reported(data: DataDirectory, name: str) -> None:
    foreign(data.path / name)
    assert any(name in line for line in findings(run(data).partitions[0]))


def test_segments_that_went_at_either_end_are_lost_offsets(data: DataDirectory) -> None:
    logs = sorted((data.path / "t-0").glob("*.log"))
    for path in (logs[0], logs[-1]):
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            path.with_suffix(suffix).unlink(missing_ok=True)
    (partition,) = run(data).partitions
    first, last = int(logs[1].name[:20]), int(logs[-1].name[:20])
    lost = [(gap.start, gap.end) for gap in partition.gaps if gap.kind == "lost"]
    assert lost[0] == (0, first)
    assert lost[-1][0] == last


def test_a_foreign_file_and_an_index_without_its_segment_are_reported(data: DataDirectory) -> None:
    (data.path / "t-0" / "notes.txt").write_text("mine")
    (data.path / "t-0" / f"{3:020d}.index").write_bytes(b"")
    found = findings(run(data).partitions[0])
    assert any("notes.txt: a foreign file" in line for line in found)
    assert any(f"{3:020d}.index: an index without its segment" in line for line in found)


def test_garbage_in_one_metadata_file_leaves_the_other_partitions_audited(data: DataDirectory) -> None:
    fill(data.log("u"), 3)
    data.close()
    foreign(data.path / "t-0" / "partition.metadata")
    result = run(data)
    assert [partition.name for partition in result.partitions] == ["t-0", "u-0"]
    assert any("partition.metadata" in line for line in findings(result.partitions[0]))
    assert not result.partitions[1].is_wrong


def test_a_snapshot_that_is_deleted_meanwhile_is_no_finding(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_files, "names_in", lambda path: [*names_in(path), f"{7:020d}.snapshot"])
    assert findings(run(data).partitions[0]) == []


@pytest.mark.parametrize("name", [LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE])
@pytest.mark.parametrize("is_directory", [False, True])
def test_a_checkpoint_that_cannot_be_read_is_a_finding(data: DataDirectory, name: str, is_directory: bool) -> None:
    """The checkpoint of log start offsets ended the audit with an error."""
    (data.path / name).unlink(missing_ok=True)
    if is_directory:
        (data.path / name).mkdir()
    else:
        (data.path / name).write_text("damaged")
    found = findings(run(data).partitions[0])
    assert len([line for line in found if name in line]) == len(found) == 1
