"""Reads through a partition's cursor return the same bytes as reads of the log, except for an incomplete batch at the
end."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.slices import content_of
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.replica.fetching.fetch_cursor import MAX_REMEMBERED
from tidelog.broker.replica.partition import Partition
from tidelog.log.fetch import FetchIsolation
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import KafkaError, NotLeaderOrFollowerError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions, EndTransactionMarker, end_transaction_marker
from tidelog.protocol.transferable import TransferableRecords

MAX_BYTES = 8000
READ_UNCOMMITTED, READ_COMMITTED = FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED


@pytest.fixture(params=range(12))
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


@pytest.fixture
def data() -> Iterator[DataBroker]:
    """A broker on a file system that tells what is in memory, where there is one."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parents[5] / "build") as directory:
        made = DataBroker(Path(directory))
        create_topic(made, "t", 1, configs={"segment.bytes": "65536"})
        yield made
        made.close()


@pytest.fixture
def partition(data: DataBroker) -> Partition:
    return data.replica_manager.partition("t", 0)


class Read(NamedTuple):
    """Bytes of records, and the aborted transactions."""

    content: bytes
    aborted: list[AbortedTxn] | None


def outcome(
    partition: Partition, offset: int, isolation: FetchIsolation, *, through_cursor: bool
) -> Read | type[KafkaError]:
    """Return the result of a read, or its error."""
    read = partition.read if through_cursor else partition.local_log.read
    try:
        info = read(offset, MAX_BYTES, isolation=isolation, min_one_message=True)
    except KafkaError as error:
        return type(error)
    return Read(content_of(info.records), info.aborted_transactions)


def compare(partition: Partition, offset: int, isolation: FetchIsolation) -> int:
    """Compare both ways to read; return the offset at which a reader continues."""
    expected = outcome(partition, offset, isolation, through_cursor=False)
    found = outcome(partition, offset, isolation, through_cursor=True)
    if not isinstance(expected, Read) or not isinstance(found, Read):
        assert found == expected
        return partition.log_start_offset
    assert found.aborted == expected.aborted
    whole, read = expected.content, found.content
    if read != whole:
        assert whole.startswith(read)
        assert read
        batches = list(iter_batches(memoryview(read)))
        assert sum(each.size_in_bytes for each in batches) == len(read)
        assert len(whole) < len(read) + next_size(whole[len(read) :])
    complete = [each for each in iter_batches(memoryview(whole)) if each.position + each.size_in_bytes <= len(read)]
    return complete[-1].last_offset + 1 if complete else offset


def next_size(rest: bytes) -> int:
    """Return the size of the batch that ``rest`` begins; more than that where its header is cut."""
    return 12 + int.from_bytes(rest[8:12], "big") if len(rest) >= 12 else 1 << 30


def grow(partition: Partition, dice: random.Random, sequences: dict[int, int]) -> None:
    size = dice.choice([10, 3000, 4500, 5000, 6000, 7900, 9000])
    kind = dice.random()
    if kind < 0.6:
        partition.append_records(memoryview(batch(bytes(size))))
        return
    sequence = sequences.get(7, 0)
    options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True)
    partition.append_records(memoryview(batch(bytes(size), options=options)), origin=AppendOrigin.COORDINATOR)
    sequences[7] = sequence + 1
    if kind < 0.9:
        ends = EndTransactionMarker(kind < 0.65, 0)
        marker = end_transaction_marker(ends, timestamp=1, producer_id=7, producer_epoch=0)
        partition.append_records(memoryview(bytearray(marker)), origin=AppendOrigin.COORDINATOR)


def test_reads_are_those_of_the_log(partition: Partition, dice: random.Random) -> None:
    readers = dict.fromkeys(range(5), 0)
    sequences: dict[int, int] = {}
    for _ in range(250):
        step = dice.random()
        if step < 0.35:
            grow(partition, dice, sequences)
        elif step < 0.4 and partition.log_end_offset > 2:
            end = partition.log_end_offset
            partition.local_log.truncate_to(max(partition.log_start_offset, end - dice.randint(1, 4)))
            partition.local_log.update_high_watermark(partition.log_end_offset)
        elif step < 0.41:
            partition.local_log.roll()
        elif step < 0.42:
            partition.local_log.maybe_increment_log_start_offset(dice.randint(0, partition.high_watermark))
        elif step < 0.43:
            readers[dice.randrange(5)] = dice.randint(0, partition.log_end_offset + 2)
        else:
            number = dice.randrange(5)
            isolation = READ_COMMITTED if number < 2 else READ_UNCOMMITTED
            readers[number] = compare(partition, readers[number], isolation)


def test_aborted_transactions_are_returned_at_offsets_of_all_sizes(partition: Partition) -> None:
    """The one in a closed segment, to which a reader has come that goes on without a search."""
    start = (1 << 62) + 5
    log = partition.local_log
    log.truncate_fully_and_start_at(start)
    for sequence in range(3):
        options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        partition.append_records(memoryview(batch(bytes(5000), options=options)), origin=AppendOrigin.COORDINATOR)
    marker = end_transaction_marker(EndTransactionMarker(False, 0), timestamp=1, producer_id=7, producer_epoch=0)
    partition.append_records(memoryview(bytearray(marker)), origin=AppendOrigin.COORDINATOR)
    log.roll()
    partition.append_records(memoryview(batch(bytes(5000))))
    for offset in range(start, log.log_end_offset):
        compare(partition, offset, READ_COMMITTED)


@pytest.mark.parametrize("base", [-1, 0, 1, 2, 7, 9, 12, 40, 1 << 62, (1 << 63) - 3, (1 << 63) - 2, (1 << 63) - 1])
@pytest.mark.parametrize("damaged", [1, 3, 6])
def test_a_damaged_base_offset_leads_no_reader_astray(partition: Partition, base: int, damaged: int) -> None:
    """No CRC covers it. Readers get what the log gives, also those who ask for the offset that stands there."""
    for _ in range(8):
        partition.append_records(memoryview(batch(bytes(2000), bytes(3000))))
    log = partition.local_log
    for offset in range(0, 16, 2):  # where each begins is known to the cursor
        compare(partition, offset, READ_UNCOMMITTED)
    position = next(header.position for header in log.segments.active.headers() if header.base_offset == 2 * damaged)
    path = Path(log.segments.active.records.path)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(base.to_bytes(8, "big", signed=True))
    log.version += 1  # as after a start: nothing is remembered
    for _ in range(2):
        for offset in range(16):
            compare(partition, offset, READ_UNCOMMITTED)


@pytest.mark.parametrize("length", [0, 61, 5000, 8000, 30_000, (1 << 31) - 1])
def test_a_damaged_length_lets_no_reader_read_beyond_its_bound(partition: Partition, length: int) -> None:
    for _ in range(8):
        partition.append_records(memoryview(batch(bytes(5000))))
    log = partition.local_log
    position = next(header.position for header in log.segments.active.headers() if header.base_offset == 4)
    with Path(log.segments.active.records.path).open("r+b") as file:
        file.seek(position + 8)
        file.write(length.to_bytes(4, "big"))
    for max_bytes in (8000, 40_000, 1 << 31):
        for offset in range(8):
            try:
                info = partition.read(offset, max_bytes, isolation=READ_UNCOMMITTED, min_one_message=True)
            except KafkaError:
                continue
            if isinstance(info.records, TransferableRecords):
                assert info.records.position + info.records.size <= log.end.position
                info.records.release()
            else:
                assert not info.records


def test_a_reader_of_large_batches_continues_without_a_search(partition: Partition) -> None:
    for _ in range(8):
        partition.append_records(memoryview(batch(bytes(5000))))
    in_memory = []
    for offset in range(8):
        info = partition.read(offset, MAX_BYTES, isolation=READ_UNCOMMITTED, min_one_message=True)
        assert isinstance(info.records, TransferableRecords)
        in_memory.append(info.records.in_memory)
        stored = partition.local_log.read(offset, 5000, isolation=READ_UNCOMMITTED, min_one_message=True)
        assert content_of(info.records) == content_of(stored.records)
    if os.uname().sysname == "Linux":
        assert in_memory[:7] == [True] * 7


def test_places_of_readers_are_bounded(partition: Partition) -> None:
    for _ in range(3 * MAX_REMEMBERED):
        partition.append_records(memoryview(batch(bytes(5000))))
    for offset in range(3 * MAX_REMEMBERED):
        content_of(partition.read(offset, MAX_BYTES, isolation=READ_UNCOMMITTED, min_one_message=True).records)
    assert partition._cursor is not None
    assert len(partition._cursor._next_batches) == MAX_REMEMBERED


def test_nothing_is_read_on_where_another_broker_leads(partition: Partition) -> None:
    for _ in range(3):
        partition.append_records(memoryview(batch(bytes(5000))))
    content_of(partition.read(0, MAX_BYTES, isolation=READ_UNCOMMITTED, min_one_message=True).records)
    partition.take_over(PartitionState((1, 2), (1, 2), 2, 1))
    with pytest.raises(NotLeaderOrFollowerError):
        partition.read(1, MAX_BYTES, isolation=READ_UNCOMMITTED, min_one_message=True)
