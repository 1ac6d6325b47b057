"""Random transactions in a log of which one synced batch, a transaction index, or both are damaged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.logs import LogBench
from tests.support.slices import content_of
from tests.support.transactions import committed_by_markers, indices, write_transactions
from tidelog.log.fetch import FetchIsolation
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.recovery.segment_recovery import LogLoadError
from tidelog.log.segment.batch_scan import BatchHeader, iter_headers
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import RecordBatch

SEEDS = range(5)
Rows = set[tuple[int, bytes | None]]


class Case(NamedTuple):
    """A log that is closed, the records that its transactions committed, and the place of the damage."""

    bench: LogBench
    chance: random.Random
    end: int
    committed: Rows
    segments: list[Path]

    def open(self, *, clean: bool) -> UnifiedLog:
        """Open the log; after an unclean stop, with a recovery point between the last two segments."""
        return self.bench.open(clean=clean, recovery_point=self.end if clean else int(self.segments[-2].stem))

    def remove_snapshots(self) -> None:
        """Remove all snapshots of producers, or all but the first."""
        kept = self.chance.randrange(2)
        for path in sorted(Path(self.bench.directory).glob("*.snapshot"))[kept:]:
            path.unlink()

    def damage_batch(self, kind: str) -> None:
        """Overwrite bytes of a batch of one of the segments below the recovery point."""
        path = self.chance.choice(self.segments[:-2])
        data = bytearray(path.read_bytes())
        headers = [one for one in headers_of(path) if one.is_control or kind != "marker"]
        if headers:
            at = self.chance.choice(headers)
            place, content = {
                "size": (at.position + 8, b"\xff"),
                "long size": (at.position + 9, b"\x7f"),
                "magic": (at.position + 16, b"\x09"),
                "marker": (at.position + at.size - 8, b"\xff\xfe"),
            }[kind]
            data[place : place + len(content)] = content
            path.write_bytes(data)

    def move_batch(self) -> set[int]:
        """Change the base offset of a batch below the recovery point; return the offsets that it has then."""
        path = self.chance.choice(self.segments[:-2])
        data = bytearray(path.read_bytes())
        at = self.chance.choice(headers_of(path))
        data[at.position + 7] ^= self.chance.choice([1, 4, 32, 64])
        path.write_bytes(data)
        moved = next(one for one in headers_of(path) if one.position == at.position)
        return set(range(moved.base_offset, moved.last_offset + 1))

    def damage_index(self) -> None:
        """Give an entry of a transaction index an unknown version."""
        path = self.chance.choice([one for one in indices(Path(self.bench.directory)) if one.stem < self.bases[-2]])
        path.write_bytes(b"\0\x09" + path.read_bytes()[2:])

    @property
    def bases(self) -> list[str]:
        return [one.stem for one in self.segments]


def headers_of(path: Path) -> list[BatchHeader]:
    file = OsFileSystem().open_file(str(path), writable=False)
    try:
        return list(iter_headers(file, 0, file.size()))
    finally:
        file.close()


def written(path: Path, seed: int) -> Case:
    """Write transactions into a log of several segments, and close it."""
    bench, chance = LogBench(str(path), segment_bytes=2048, index_interval_bytes=200), random.Random(seed)
    log = bench.open()
    write_transactions(log, chance)
    log.flush()
    end = log.log_end_offset
    log.close()
    directory = Path(bench.directory)
    return Case(bench, chance, end, set(committed_by_markers(directory)), sorted(directory.glob("*.log")))


def read_committed(log: UnifiedLog) -> tuple[Rows, set[int]]:
    """Read the committed records batch by batch; return them, and the offsets that cannot be read."""
    rows: Rows = set()
    unreadable = set()
    offset = 0
    while offset < log.last_stable_offset:
        try:
            info = log.read(offset, 1, isolation=FetchIsolation.TXN_COMMITTED, min_one_message=True)
            (found,) = iter_batches(content_of(info.records))
            assert isinstance(found, RecordBatch)
        except CorruptMessageError:
            unreadable.add(offset)
            offset += 1
            continue
        unreadable.update(range(offset, found.base_offset))  # a size that leads out of the segment hides its rest
        if not found.is_valid():
            unreadable.update(range(found.base_offset, found.last_offset + 1))
        else:
            unreadable.difference_update(range(found.base_offset, offset))  # only its last offset has an index entry
            if not found.is_control and not is_aborted(info.aborted_transactions or [], found):
                rows.update((one.offset, one.value) for one in found.records())
        offset = found.last_offset + 1
    return rows, unreadable


def is_aborted(transactions: list[AbortedTxn], found: RecordBatch) -> bool:
    return found.is_transactional and any(
        one.producer_id == found.producer_id and one.first_offset <= found.base_offset <= one.last_offset
        for one in transactions
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["size", "long size", "magic", "marker"])
def test_a_damaged_synced_batch_hides_only_itself_and_commits_no_aborted_record(
    tmp_path: Path, kind: str, clean: bool
) -> None:
    """Transactions whose markers can be read are known, whether a snapshot of producers is left or not."""
    exact = 0
    for seed in SEEDS:
        case = written(tmp_path / str(seed), seed)
        markers = {one.base_offset for path in case.segments for one in headers_of(path) if one.is_control}
        case.damage_batch(kind)
        case.remove_snapshots()
        log = case.open(clean=clean)
        assert log.log_end_offset == case.end
        rows, unreadable = read_committed(log)
        assert rows <= case.committed, seed
        if not markers & unreadable:
            exact += 1
            assert rows == {row for row in case.committed if row[0] not in unreadable}, seed
        log.close()
    assert exact > 0 or kind == "marker"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_damaged_offset_commits_no_aborted_record(tmp_path: Path, has_index: bool, clean: bool) -> None:
    """No checksum covers it: transactions that would begin or end at a wrong offset are found by their index."""
    for seed in range(10):
        case = written(tmp_path / str(seed), seed)
        moved = case.move_batch()
        if not has_index:
            case.damage_index()
        case.remove_snapshots()
        try:
            log = case.open(clean=clean)
        except LogLoadError:
            continue
        assert {row[0] for row in read_committed(log)[0] - case.committed} <= moved, seed
        log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_invalid_transaction_index_is_rebuilt_and_counted(tmp_path: Path, clean: bool) -> None:
    for seed in SEEDS:
        case = written(tmp_path / str(seed), seed)
        before = {path.name: path.read_bytes() for path in indices(Path(case.bench.directory))}
        case.damage_index()
        case.remove_snapshots()
        log = case.open(clean=clean)
        assert case.bench.environment.damage.indices == 1
        assert read_committed(log) == (case.committed, set())
        log.close()
        assert {path.name: path.read_bytes() for path in indices(Path(case.bench.directory))} == before


@pytest.mark.parametrize("clean", [True, False])
def test_an_index_is_not_rebuilt_from_markers_that_cannot_be_read(tmp_path: Path, clean: bool) -> None:
    """Such a log is refused, and its files stay; the others are served, as no transaction was open at the damage."""
    refused = served = 0
    for seed in range(12):
        case = written(tmp_path / str(seed), seed)
        case.damage_batch(case.chance.choice(["size", "magic", "marker"]))
        case.damage_index()
        case.remove_snapshots()
        before = {path.name: path.read_bytes() for path in indices(Path(case.bench.directory))}
        error = log = None
        try:
            log = case.open(clean=clean)
        except LogLoadError as refusal:
            error = str(refusal)
        if log is None:
            assert "damaged batches may hide which transactions were aborted" in str(error)
            assert {path.name: path.read_bytes() for path in indices(Path(case.bench.directory))} == before
            refused += 1
        else:
            assert read_committed(log)[0] <= case.committed, seed
            served += 1
            log.close()
    assert refused
    assert served
