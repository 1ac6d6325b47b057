"""Reads of logs that were truncated and written again. The indices of the active segment keep entries of the truncated
records, and no row may be lost because of them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, write
from tidelog.pipeline.decode.decode import ReadOptions, read_slice
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan.offsets import log_bounds
from tidelog.pipeline.plan.plan import plan
from tidelog.pipeline.plan.request import batch_request
from tidelog.pipeline.plan.selection import PartitionDirectory, find_partitions
from tidelog.pipeline.plan.timestamps import first_offset_at_or_after
from tidelog.pipeline.plan.transactions import last_stable
from tidelog.protocol.record.record_batch import Record

pytest.importorskip("pyarrow")

SEEDS = 16
STEPS = 40


def read_offsets(path: Path, **given: str) -> list[int]:
    request = batch_request(parse_options({"path": str(path), "subscribe": "t", **given}))
    options = ReadOptions(row_filter=request.row_filter, count=request.count)
    batches = [read_slice(piece, Columns(("offset",)), options=options) for piece in plan(request)]
    return [offset for found in batches for batch in found for offset in batch.column(0).to_pylist()]


def find_directory(path: Path) -> PartitionDirectory:
    return find_partitions([str(path)], parse_options({"path": "/", "subscribe": "t"}).choice)[0]


def copy_as_kafka_keeps_it(source: Path, target: Path) -> Path:
    """Copy a data directory; extend the active segment's indices with zeros, as Kafka does when it creates them."""
    shutil.copytree(source, target)
    active = list_segments(str(target / "t-0"))[-1]
    for suffix in (".index", ".timeindex"):
        with open(active.sibling(suffix), "ab") as file:
            file.write(bytes(960))
    return target


class CutLog:
    """A log that is written, truncated and rolled at random, and the times of the records it must hold, by offset."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.data = DataDirectory(
            path, segment_bytes=chance.choice([3000, 1 << 20]), index_interval_bytes=chance.choice([0, 100, 300])
        )
        self.log = self.data.log("t")
        self.times: list[int] = []

    def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.15 and len(self.times) > 1:
            self.log.truncate_to(self.chance.randrange(1, len(self.times)))
            del self.times[self.log.log_end_offset :]
        elif kind < 0.17:
            self.log.roll()
        else:
            self._append(self.chance.choice([1, 1, 2, 12]), self.chance.choice([0, 0, 150]))

    def _append(self, records: int, value_bytes: int) -> None:
        times = [NOW_MS + self.chance.randrange(40) for _ in range(records)]
        value = self.chance.randbytes(value_bytes)
        write(self.log, [Record(number, time, b"k", value) for number, time in enumerate(times)])
        self.times += times

    def check(self, path: Path) -> None:
        """Compare what is read from ``path``, the log or a copy of it, with the records."""
        directory, end = find_directory(path), len(self.times)
        assert log_bounds(directory).end == end
        start = self.chance.randrange(end + 1)
        starting = {"startingOffsets": json.dumps({"t": {"0": start}})}
        size = self.chance.choice(["1", "500", "1g"])
        assert read_offsets(path, bytesPerTask=size, **starting) == list(range(start, end)), start
        for time in self.chance.sample(range(NOW_MS - 1, NOW_MS + 42), 4):
            wanted = [offset for offset in range(end) if self.times[offset] >= time]
            later = [offset for offset in wanted if offset >= start]
            assert read_offsets(path, minTimestamp=str(time)) == wanted, time
            assert read_offsets(path, minTimestamp=str(time), bytesPerTask=size, **starting) == later, (time, start)
            assert first_offset_at_or_after(directory, time, start, end) == (later[0] if later else None), (time, start)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_records_and_times_of_a_log_with_random_truncations_are_read(tmp_path: Path, seed: int) -> None:
    log = CutLog(tmp_path / "data", random.Random(seed))
    for number in range(STEPS):
        log.step()
        if number % 8 == 7:
            log.check(log.path)
            log.check(copy_as_kafka_keeps_it(log.path, tmp_path / str(number)))
    log.data.close()
    log.check(log.path)


class TestStaleEntry:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Iterator[DataDirectory]:
        """A time index had the entries (time, offset) (200, 1), (300, 2), (400, 3); the log was truncated to offset
        1. Of the next three batches, one has an entry there. So (300, 2) and (400, 3) stay in the file, although
        offset 1 has the time 500 now."""
        directory = DataDirectory(tmp_path / "data", segment_bytes=1 << 20, index_interval_bytes=100)
        log = directory.log("t")
        for number in range(4):
            write(log, [Record(0, NOW_MS + 100 * (number + 1), b"k", bytes(150))])
        log.truncate_to(1)
        for time in (500, 50, 60):
            write(log, [Record(0, NOW_MS + time, b"k", b"")])
        yield directory
        directory.close()

    def test_hides_no_record_from_min_timestamp(self, data: DataDirectory) -> None:
        assert read_offsets(data.path, minTimestamp=str(NOW_MS + 450)) == [1]

    def test_hides_no_record_from_starting_timestamp(self, data: DataDirectory) -> None:
        assert read_offsets(data.path, startingTimestamp=str(NOW_MS + 450)) == [1, 2, 3]

    def test_hides_no_record_if_a_kill_left_an_empty_next_segment(self, data: DataDirectory) -> None:
        (data.path / "t-0" / f"{4:020d}.log").touch()
        assert read_offsets(data.path, minTimestamp=str(NOW_MS + 450)) == [1]
        assert read_offsets(data.path, startingTimestamp=str(NOW_MS + 450)) == [1, 2, 3]

    def test_is_gone_when_the_segment_has_rolled(self, data: DataDirectory) -> None:
        data.log("t").roll()
        write(data.log("t"), [Record(0, NOW_MS, b"k", b"")])
        assert read_offsets(data.path, minTimestamp=str(NOW_MS + 450)) == [1]


@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
def test_the_last_stable_offset_of_a_log_with_random_truncations_is_found(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = DataDirectory(tmp_path / "data", segment_bytes=1 << 20, index_interval_bytes=chance.choice([0, 100]))
    log, producers = data.log("t"), 0
    for _ in range(60):
        kind = chance.random()
        if kind < 0.2 and log.log_end_offset > 1:
            log.truncate_to(chance.randrange(1, log.log_end_offset))
            log.producer_state.take_snapshot()  # as Kafka does
        elif kind < 0.5 and producers:
            end_transaction(log, chance.randrange(producers), commit=chance.random() < 0.5)
        else:
            value = bytes(chance.choice([0, 150]))
            records = [Record(number, NOW_MS, b"k", value) for number in range(chance.choice([1, 9]))]
            write(log, records, producer_id=producers, producer_epoch=0, base_sequence=0, is_transactional=True)
            producers += 1
        last_stable._WALK_ENDS.clear()
        assert log_bounds(find_directory(data.path), read_committed=True).last_stable == log.last_stable_offset
    data.close()
