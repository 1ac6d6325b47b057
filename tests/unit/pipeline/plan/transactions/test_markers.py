"""Committed records of logs whose transaction indices are missing, damaged or of another segment: the markers in the
log decide."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, end_transaction, write
from tests.support.transactions import (
    DAMAGES,
    PRODUCERS,
    Damage,
    committed_by_markers,
    flip,
    indices,
    overlap,
    remove_all,
    write_transactions,
)
from tidelog.log.check import check_directory
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index.transaction_index import ENTRY
from tidelog.log.segment.batch_scan import iter_batches
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.audit import transactions as audit_transactions
from tidelog.pipeline.decode import column_reader
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.engine.engine import engine
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.jobs.audit import AuditRequest, PartitionAudit, audit
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.offsets import log_bounds
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.plan.transactions import markers
from tidelog.pipeline.plan.transactions.aborted import aborted_transactions
from tidelog.pipeline.plan.transactions.markers import MarkerWalk
from tidelog.protocol.record.record_batch import Record, RecordBatch

pytest.importorskip("pyarrow")

SEEDS = range(3)


def committed_by_reader(directory: Path, bytes_per_task: int = 1 << 30) -> list[tuple[int, bytes | None]]:
    place = PartitionDirectory("t", TOPIC_ID, 0, str(directory))
    bounds = log_bounds(place, read_committed=True)
    wanted = OffsetRange(place, bounds.start, bounds.last_stable)
    found: list[tuple[int, bytes | None]] = []
    for piece in plan(ReadRequest((wanted,), bytes_per_task)):
        for batch in read_slice(piece, Columns.default(headers=False), isolation=Isolation.READ_COMMITTED):
            found += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return found


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_transaction_indices_do_not_change_the_rows(tmp_path: Path, damage: Damage) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        data = DataDirectory(tmp_path / str(seed))
        write_transactions(data.log("t"), chance)
        data.close()
        directory = data.path / "t-0"
        expected = committed_by_markers(directory)
        assert committed_by_reader(directory) == expected, "as it was written"
        damage(directory, chance)
        assert committed_by_reader(directory) == expected, seed
        assert committed_by_reader(directory, bytes_per_task=1000) == expected, seed


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that end within batches and transactions, as those of large logs do."""
    monkeypatch.setattr(column_reader, "CHUNK_BYTES", 300)
    monkeypatch.setattr(markers, "STEP_BYTES", 80)
    monkeypatch.setattr(markers, "CHUNK_BYTES", 400)


@pytest.mark.usefixtures("small_steps")
def test_chunks_may_end_within_batches_and_transactions(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    write_transactions(data.log("t"), random.Random(0))
    data.close()
    assert committed_by_reader(data.path / "t-0") == committed_by_markers(data.path / "t-0")


def test_damage_reads_alike_in_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDirectory(tmp_path / "data")
    write_transactions(data.log("t"), random.Random(0))
    data.close()
    directory = data.path / "t-0"
    segment = sorted(directory.glob("*.log"))[0]
    whole, chance = segment.read_bytes(), random.Random(1)
    for _ in range(25):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        segment.write_bytes(damaged)
        outcomes = []
        for chunk, step in ((1 << 21, 1 << 17), (300, 80)):
            monkeypatch.setattr(column_reader, "CHUNK_BYTES", chunk)
            monkeypatch.setattr(markers, "STEP_BYTES", step)
            try:
                outcomes.append(committed_by_reader(directory))
            except PipelineError as error:
                outcomes.append([(0, type(error).__name__.encode())])
        assert outcomes[0] == outcomes[1]


@pytest.mark.usefixtures("small_steps")
def test_a_log_without_transactions_is_read_once(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data", segment_bytes=1 << 20)
    for number in range(60):
        write(data.log("t"), [Record(0, NOW_MS + number, b"k", b"v" * 50)])
    data.close()
    place = PartitionDirectory("t", TOPIC_ID, 0, str(data.path / "t-0"))
    (piece,) = plan(ReadRequest((OffsetRange(place, 0, 60),)))
    counts = []
    for isolation in Isolation:
        options = ReadOptions(isolation)
        assert sum(batch.num_rows for batch in read_slice(piece, Columns.default(headers=False), options=options)) == 60
        counts.append(options.count.bytes_read)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("damage", [remove_all, flip], ids=lambda damage: damage.__name__)
def test_compacted_logs_are_read_by_their_markers(tmp_path: Path, damage: Damage) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        data = DataDirectory(tmp_path / str(seed))
        write_transactions(data.log("t"), chance)
        data.close()
        compact(None, CompactRequest(data.source(), Configuration(overrides={"cleanup.policy": "compact"})))
        directory = data.path / "t-0"
        expected = committed_by_markers(directory)
        damage(directory, chance)
        assert committed_by_reader(directory) == expected, seed


def corrupt_a_marker(directory: Path, chance: random.Random) -> Path:
    """Change a byte within a marker; return the file."""
    markers = []
    for segment in list_segments(str(directory)):
        with OpenSegment(segment.path) as file:
            markers += [(Path(segment.path), header) for header, _ in iter_batches(file, 0, file.size)
                        if header.is_control]  # fmt: skip
    path, header = chance.choice(markers[:-PRODUCERS])  # a damaged end of the log would be a torn tail
    data = bytearray(path.read_bytes())
    data[header.position + header.size - 1] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_lost_marker_is_read_by_the_index_or_refused(tmp_path: Path) -> None:
    for seed in range(12):
        chance = random.Random(seed)
        data = DataDirectory(tmp_path / str(seed))
        write_transactions(data.log("t"), chance)
        data.close()
        directory = data.path / "t-0"
        expected = committed_by_markers(directory)
        damaged = corrupt_a_marker(directory, chance)
        if seed % 2:
            remove_all(directory, chance)
        with pytest.raises(PipelineError, match=str(damaged)):
            committed_by_reader(directory)
        read = before_damage(directory)
        assert read == [row for row in expected if row[0] <= read[-1][0]] if read else True


def before_damage(directory: Path) -> list[tuple[int, bytes | None]]:
    """Read the rows of the segments before the damaged one; return none if the read is refused."""
    segments = list_segments(str(directory))
    place = PartitionDirectory("t", TOPIC_ID, 0, str(directory))
    found: list[tuple[int, bytes | None]] = []
    for low, high in itertools.pairwise(segments):
        try:
            for piece in plan(ReadRequest((OffsetRange(place, low.base_offset, high.base_offset),))):
                for batch in read_slice(piece, Columns.default(headers=False), isolation=Isolation.READ_COMMITTED):
                    found += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
        except PipelineError:
            break
    return found


@pytest.mark.parametrize("commit", [False, True])
def test_a_removed_segment_may_have_held_markers(tmp_path: Path, *, commit: bool) -> None:
    """The transaction continues after the missing segment: only the index has the decision of the lost marker.

    With a damaged index the first transaction counted as committed if the next one was."""
    data = DataDirectory(tmp_path / "data", segment_bytes=450)
    log = data.log("t")
    fields = {"producer_id": 1, "producer_epoch": 0, "is_transactional": True}
    write(log, [Record(0, NOW_MS, b"k", b"aborted" * 50)], base_sequence=0, **fields)
    end_transaction(log, 1, commit=False)
    write(log, [Record(0, NOW_MS, b"k", b"x" * 300)])
    write(log, [Record(0, NOW_MS, b"k", b"another one" * 30)], base_sequence=1, **fields)
    end_transaction(log, 1, commit=commit)
    data.close()
    directory = data.path / "t-0"
    segments = list_segments(str(directory))
    assert len(segments) >= 3
    shutil.copytree(directory, tmp_path / "whole")
    Path(segments[1].path).unlink()
    place = PartitionDirectory("t", TOPIC_ID, 0, str(directory))

    def first_segment() -> list[bytes]:
        pieces = plan(ReadRequest((OffsetRange(place, 0, segments[1].base_offset),)))
        batches = [b for piece in pieces for b in read_slice(
            piece, Columns.default(headers=False), isolation=Isolation.READ_COMMITTED)]  # fmt: skip
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert first_segment() == []
    if commit:
        for index in indices(directory):
            index.write_bytes(b"\xff" + index.read_bytes()[1:])
    else:
        remove_all(directory, random.Random(0))
    with pytest.raises(PipelineError, match=r"no \.txnindex says"):
        first_segment()


@pytest.mark.parametrize("suffix", ["", ".deleted", "gone"])
@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged marker", "no marker"])
def test_an_index_that_was_deleted_with_its_segment_is_not_taken_for_empty(
    tmp_path: Path, suffix: str, *, is_damaged: bool
) -> None:
    """A reader holds the record file open while the broker deletes it: the aborted records counted as committed."""
    data = DataDirectory(tmp_path / "kafka.logs")
    log = data.log("t")
    write(log, [Record(0, NOW_MS, b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = log.segments.active.size
    end_transaction(log, 1, commit=False)
    write(log, [Record(0, NOW_MS, b"k", b"v")])
    end = log.log_end_offset
    data.close()
    (segment,) = list_segments(str(data.path / "t-0"))
    content = np.frombuffer(Path(segment.path).read_bytes(), np.uint8).copy()
    content[marker + 70] ^= is_damaged
    content = content if is_damaged else content[:marker].copy()
    Path(segment.path).write_bytes(content.tobytes())
    with OpenSegment(segment.path) as file:
        walk = MarkerWalk(TopicPartition("t", 0), segment, file, position=0, end_offset=end, engine=engine())
        for path in (data.path / "t-0").glob("0*"):
            path.unlink() if suffix == "gone" else path.rename(f"{path}{suffix}")
        if suffix == "gone":
            with pytest.raises(PipelineError, match=r"no \.txnindex says whether it was aborted"):
                walk.aborted_below(content, len(content), 0)
        else:
            assert walk.aborted_below(content, len(content), 0).tolist() == [[1, 0, 1]]


def whole_kinds(data: DataDirectory) -> tuple[list[str], list[str]]:
    """Return the findings of an audit and a check in the data directory's log."""
    result = audit(None, AuditRequest(data.source()))
    found = check_directory(OsFileSystem(), str(data.path / "t-0"))
    return [line for partition in result.partitions for line in findings(partition)], [str(one) for one in found]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_audit_and_check_report_wrong_transaction_indices(
    tmp_path: Path, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_transactions, "ENTRY_PATIENCE_S", 0)
    for seed in SEEDS:
        chance = random.Random(seed)
        data = DataDirectory(tmp_path / str(seed))
        write_transactions(data.log("t"), chance)
        data.close()
        directory = data.path / "t-0"
        before = {path.name: path.read_bytes() for path in indices(directory)}
        records = only(data).total("records")
        expected = committed_by_markers(directory)
        assert committed_by_index(directory) == expected
        assert whole_kinds(data) == ([], [])
        damage(directory, chance)
        changed = before != {path.name: path.read_bytes() for path in indices(directory)}
        audited, checked = whole_kinds(data)
        if changed and (damage not in (flip, overlap) or reads_otherwise(before, directory)):
            assert any(".txnindex" in line for line in checked), seed
        if committed_by_index(directory) != expected:
            assert any(".txnindex" in line for line in audited), seed
        assert only(data).total("records") == records, "the markers say what counts"


def only(data: DataDirectory) -> PartitionAudit:
    (partition,) = audit(None, AuditRequest(data.source())).partitions
    return partition


def committed_by_index(directory: Path) -> list[tuple[int, bytes | None]]:
    """Return the records of a reader that trusts the index files; nothing if they cannot be read."""
    try:
        aborted = aborted_transactions(str(directory), 0, 2**63 - 1)
    except PipelineError:
        return []
    kept: list[tuple[int, bytes | None]] = []
    for segment in list_segments(str(directory)):
        with OpenSegment(segment.path) as file:
            for header, data in iter_batches(file, 0, file.size):
                is_aborted = header.is_transactional and any(
                    one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
                    for one in aborted
                )
                if not header.is_control and not is_aborted:
                    kept += [(r.offset, r.value) for r in RecordBatch(bytes(data)).records()]
    return kept


def reads_otherwise(before: dict[str, bytes], directory: Path) -> bool:
    """Return whether a flipped bit could mislead a reader that goes by the index: a first offset that takes in the same
    records does not, nor a last stable offset that is lower, which makes a broker look further."""
    for path in indices(directory):
        old, new = before[path.name], path.read_bytes()
        for one, other in zip(ENTRY.iter_unpack(old), ENTRY.iter_unpack(new), strict=True):
            if one != other and one[2] == other[2] and (one[0], one[1], one[3]) == (other[0], other[1], other[3]):
                return bool(other[4] > one[4] or other[4] < 0)
            if one != other and one[2] != other[2]:
                return committed_by_index(directory) != committed_by_markers(directory)
    return True


def test_logs_that_were_compacted_are_in_order(tmp_path: Path) -> None:
    for seed in SEEDS:
        data = DataDirectory(tmp_path / str(seed))
        write_transactions(data.log("t"), random.Random(seed))
        data.close()
        compact(None, CompactRequest(data.source(), Configuration(overrides={"cleanup.policy": "compact"})))
        assert whole_kinds(data) == ([], [])
