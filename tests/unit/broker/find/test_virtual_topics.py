"""Results of virtual topics' jobs: how long they are kept, and the files that they hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker
from tidelog.broker.find import virtual_topics
from tidelog.broker.find.virtual_topics import KEEP_MS, PAUSE_MS, FilteredLog
from tidelog.broker.replica.fetching.down_conversion import Conversion, convert
from tidelog.broker.replica.partition import Partition
from tidelog.log.fetch import FetchIsolation
from tidelog.log.find.filtering import Matching, MatchReader
from tidelog.log.find.lookup import Query
from tidelog.log.follower.append import append_as_follower
from tidelog.log.records.down_convert import ConversionLimit
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import ByteBufferMessageSet
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.transferable import TransferableRecords


class CountedFile:
    """A file that counts its users."""

    def __init__(self) -> None:
        self.users = 0

    def fileno(self) -> int:
        raise NotImplementedError

    def retain(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1


class World:
    """A filtered log whose jobs find a slice of ``file``."""

    def __init__(self, directory: Path) -> None:
        self.data = DataBroker(directory)
        create_topic(self.data, "t", 1)
        self.data.append("t", b"value")
        self.file = CountedFile()
        self.filtered = FilteredLog(
            self.data.broker, self.data.replica_manager.partition("t", 0), Query(begin=0), lambda _: None
        )

    def find(self, *_: object) -> Matching:
        self.file.retain()
        return Matching(TransferableRecords(self.file, 0, 100_000), 1, False)

    def read(self) -> bool:
        """Read from the beginning, and send what is found; return whether anything is."""
        found = self.filtered.read(0, 1_000_000, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True)
        if isinstance(found.records, TransferableRecords):
            found.records.release()
            return True
        return False


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    monkeypatch.setattr(MatchReader, "read", world.find)
    assert not world.read()
    world.data.run_turn()
    assert world.read()
    assert world.file.users == 1, "the result is kept for other fetches"
    yield world
    world.data.close()


def test_a_result_is_dropped_when_it_is_too_old_to_be_returned(world: World) -> None:
    """Else the file of a deleted segment would stay open, and its space used, until the query was read again."""
    world.data.loop.advance(KEEP_MS + 1)
    assert not world.file.users


def test_a_result_that_replaces_another_releases_its_file(world: World) -> None:
    world.data.time.advance(KEEP_MS + 1)  # the timer is late
    assert not world.read()
    world.data.run_turn()
    assert world.read()
    assert world.file.users == 1


def test_a_replaced_result_does_not_end_the_new_one(world: World) -> None:
    world.data.time.advance(KEEP_MS + 1)
    world.read()
    world.data.run_turn()
    world.data.loop.advance(1)  # the first result's timer
    assert world.read()
    world.data.loop.advance(KEEP_MS)
    assert not world.file.users


def test_a_result_that_comes_after_the_partition_was_closed_is_dropped(world: World) -> None:
    world.filtered.close()
    world.data.time.advance(PAUSE_MS)
    assert not world.read()
    world.filtered.close()
    assert world.file.users == 1, "the job has found a result"
    world.data.run_turn()
    world.data.loop.advance(KEEP_MS + 1)
    assert not world.file.users


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """Virtual topics of which two may remember their offsets."""
    names = Names(tmp_path)
    monkeypatch.setattr(virtual_topics, "MAX_HELD_BYTES", 2_000)
    monkeypatch.setattr(MatchReader, "held_bytes", 800)
    monkeypatch.setattr(MatchReader, "read", lambda *_: Matching(b"", 10, True))
    yield names
    names.data.close()


class Names:
    """Virtual topics by number, which differ in their begin."""

    def __init__(self, directory: Path) -> None:
        self.data = DataBroker(directory)
        create_topic(self.data, "t", 1)
        self.data.append("t", *[b"value"] * 10)
        self.partitions = self.data.broker.services.virtual_partitions.get()

    def partition(self, number: int) -> Partition:
        image = self.data.broker.metadata.find(f"t?key=k&from={1_700_000_000_000 + number}")
        assert image is not None
        return self.partitions.partition(image, 0)

    def begin(self, number: int) -> Partition:
        """Begin to read in a thread, whose job is done in the next turn."""
        found = self.partition(number)
        found.read(0, 1_000, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True)
        return found

    def read(self, number: int) -> Partition:
        found = self.begin(number)
        self.data.run_turn()
        return found


def test_partitions_that_remember_too_many_offsets_together_give_way(names: Names) -> None:
    """The one that was used least recently is dropped, and found again later; another begin is another name."""
    first, second, third = names.read(1), names.read(2), names.read(3)
    assert names.read(2) is second
    assert names.read(3) is third
    assert names.read(1) is not first, "the third made too many"
    assert names.read(3) is third
    assert names.read(2) is not second, "the new first made too many"


def test_a_partition_whose_offsets_were_just_found_does_not_give_way(names: Names) -> None:
    """Others are used while a thread walks its key's chain: it began again each time, and its consumer got nothing."""
    names.read(1)
    names.read(2)
    slow = names.begin(3)
    for number in (1, 2):
        names.partition(number)
    names.data.run_turn()
    assert names.partition(3) is slow


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_an_old_client_gets_on_from_an_offset_that_the_cleaner_removed(tmp_path: Path, codec: int) -> None:
    """Its records are converted in a worker thread, which may not look for other ones of a virtual topic."""
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1)
    log, dice = data.replica_manager.partition("t", 0).local_log, random.Random(3)
    for first in range(0, 30, 10):
        records = [Record(first + number, TIMESTAMP_MS, b"k", dice.randbytes(60_000)) for number in range(5)]
        options = BatchOptions(base_offset=first, last_offset_delta=9, compression=codec)
        append_as_follower(log, memoryview(build_batch(records, options)), 0)
    log.update_high_watermark(log.log_end_offset)
    partition = data.replica_manager.partition(f"t?from={TIMESTAMP_MS}", 0)
    for offset in range(25):
        assert fetch_as_old_client(data, partition, offset) == min(
            one for one in (*range(5), *range(10, 15), *range(20, 25)) if one >= offset
        )
    data.close()


def fetch_as_old_client(data: DataBroker, partition: Partition, offset: int) -> int:
    """Fetch again and again until there are messages; return the first offset that the client takes."""
    with ThreadPoolExecutor(1) as threads:
        for _ in range(5):
            info = partition.read(offset, 1 << 20, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True)
            conversion = Conversion(partition, info.records, 2, offset, FetchIsolation.HIGH_WATERMARK, 1 << 20, 0)
            data.run_turn()
            data.loop.advance(PAUSE_MS)
            if info.records:
                found = threads.submit(convert, conversion, ConversionLimit()).result()
                taken = [one.offset for one in ByteBufferMessageSet(found) if one.offset >= offset]
                if taken:
                    return taken[0]
    raise AssertionError(f"the client waits at {offset} without end")
