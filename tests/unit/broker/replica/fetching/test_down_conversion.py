"""Down-conversion for one request: work within a turn, and the limit of converted records."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from tests.support.logs import marker
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker, batch
from tests.unit.broker.requests.test_dispatch import LongWire
from tidelog.broker.replica.fetching import down_conversion
from tidelog.broker.replica.fetching.down_conversion import INLINE_RECORDS
from tidelog.broker.requests.route import Pending
from tidelog.log.follower.append import append_as_follower
from tidelog.log.records import down_convert
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import NotLeaderOrFollowerError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import ByteBufferMessageSet
from tidelog.protocol.record.record_batch import HEADER, BatchOptions, Record, build_batch

GZIP = CompressionType.GZIP


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 3)
    yield data
    data.close()


@pytest.fixture
def wire(data: DataBroker) -> LongWire:
    return LongWire(data)


def append(data: DataBroker, partition: int, count: int, codec: int) -> None:
    append_values(data, partition, *(b"v%d" % number for number in range(count)), codec=codec)


def append_values(data: DataBroker, partition: int, *values: bytes, codec: int = CompressionType.NONE) -> None:
    records = batch(*values, options=BatchOptions(compression=codec))
    data.replica_manager.partition("t", partition).append_records(memoryview(records))


def fetch(*offsets: int, max_bytes: int = 1 << 20) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index, offset in enumerate(offsets)
    ]
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=partitions)])


def records_of(wire: LongWire, answer: object, version: int) -> bytes:
    response = wire.decoded(wire.wait(answer), FetchResponse, version)
    return bytes(response.responses[0].partitions[0].records)  # type: ignore[arg-type]


def converted(wire: LongWire, answer: object, version: int = 2) -> list[list[int]]:
    response = wire.decoded(wire.wait(answer), FetchResponse, version)
    return [
        [message.offset for message in ByteBufferMessageSet(bytes(part.records))]  # type: ignore[arg-type]
        for part in response.responses[0].partitions
    ]


@pytest.mark.parametrize("codec", [CompressionType.NONE, GZIP])
@pytest.mark.parametrize("count", [1, INLINE_RECORDS, INLINE_RECORDS + 1, 3000])
def test_many_records_are_converted_in_a_thread_however_small(
    data: DataBroker, wire: LongWire, count: int, codec: int
) -> None:
    append(data, 0, count, codec)
    answer = wire.send(fetch(0), 2)
    assert isinstance(answer, Pending) == (count > INLINE_RECORDS or codec == GZIP)
    assert converted(wire, answer) == [list(range(count))]


def test_partitions_share_a_turn(data: DataBroker, wire: LongWire) -> None:
    for partition in range(3):
        append(data, partition, INLINE_RECORDS // 2, CompressionType.NONE)
    assert not isinstance(wire.send(fetch(0, 0), 2), Pending)
    assert isinstance(wire.send(fetch(0, 0, 0), 2), Pending)


@pytest.mark.parametrize("codec", [GZIP, CompressionType.SNAPPY, CompressionType.LZ4])
def test_a_few_bytes_that_hold_megabytes_are_converted_in_a_thread(
    data: DataBroker, wire: LongWire, codec: int
) -> None:
    append_values(data, 0, bytes(15 << 20), codec=codec)
    answer = wire.send(fetch(0), 2)
    assert isinstance(answer, Pending)
    assert converted(wire, answer) == [[0]]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_batch_of_which_only_the_beginning_was_read_is_converted_in_a_thread(tmp_path: Path, version: int) -> None:
    """The broker's own limit cut the range, which the client's limit does not show."""
    data = DataBroker(tmp_path, {"fetch.max.bytes": "10000"})
    create_topic(data, "t", 1)
    wire = LongWire(data)
    append(data, 0, 3000, CompressionType.NONE)
    answer = wire.send(fetch(0), version)
    assert isinstance(answer, Pending)
    assert converted(wire, answer, version) == [list(range(3000))]
    data.close()


def test_what_follows_a_range_without_messages_is_read_in_a_thread(data: DataBroker, wire: LongWire) -> None:
    data.replica_manager.partition("t", 0).append_records(
        memoryview(marker(7, commit=True)), origin=AppendOrigin.COORDINATOR
    )
    append(data, 0, 1, CompressionType.NONE)
    size = data.replica_manager.partition("t", 0).local_log.end[2]
    assert not isinstance(wire.send(fetch(0), 2), Pending)  # the messages are in the range
    append(data, 0, 3000, CompressionType.NONE)
    answer = wire.send(fetch(0, max_bytes=size), 2)
    assert converted(wire, answer) == [[1]]
    answer = wire.send(fetch(0, max_bytes=size // 2 + 10), 2)
    assert isinstance(answer, Pending)
    assert 1 in converted(wire, answer)[0]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_first_message_may_be_as_large_as_the_client_allows(
    data: DataBroker, wire: LongWire, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to v2 a message beyond the bound of converted bytes was cut whatever the client's limit, so it was never
    whole."""
    monkeypatch.setattr(down_conversion, "MAX_CONVERTED_BYTES", 1 << 16)
    random = Random(1)
    append_values(data, 0, *(random.randbytes(30) for _ in range(1_800)), codec=GZIP)
    (offsets,) = converted(wire, wire.send(fetch(0, max_bytes=1 << 20), version), version)
    assert offsets == list(range(1_800))
    part = records_of(wire, wire.send(fetch(0, max_bytes=1 << 20), version), version)
    assert len(part) > down_conversion.MAX_CONVERTED_BYTES
    cut = records_of(wire, wire.send(fetch(0, max_bytes=1 << 16), version), version)
    assert len(cut) == (1 << 16 if version <= 2 else len(part))


@pytest.mark.parametrize("codec", [CompressionType.NONE, GZIP])
def test_one_request_has_only_so_many_records_converted_and_the_next_ones_the_rest(
    data: DataBroker, wire: LongWire, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 40
    monkeypatch.setattr(down_convert, "MAX_CONVERTED_RECORDS", limit)
    monkeypatch.setattr(down_convert.ConversionLimit.__init__, "__defaults__", (limit,))
    for partition in range(3):
        append(data, partition, 50, codec)
    offsets = [0, 0, 0]
    for _ in range(10):
        found = converted(wire, wire.send(fetch(*offsets), 2))
        assert 0 < sum(map(len, found)) <= limit or offsets == [50, 50, 50]
        for partition, part in enumerate(found):
            assert part == list(range(part[0], part[0] + len(part))) if part else True
            offsets[partition] = part[-1] + 1 if part else offsets[partition]
    assert offsets == [50, 50, 50]


def test_a_bad_sector_after_control_batches_is_an_error_of_its_partition(
    data: DataBroker, wire: LongWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that only looks where to go on may fail, too; the other partitions have their records."""
    data.replica_manager.partition("t", 0).append_records(
        memoryview(marker(7, commit=True)), origin=AppendOrigin.COORDINATOR
    )
    append(data, 1, 1, CompressionType.NONE)
    pread = os.pread

    def failing(descriptor: int, size: int, position: int) -> bytes:
        if size == HEADER.size and "/t-0/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "bad sector")
        return pread(descriptor, size, position)

    monkeypatch.setattr(down_convert, "os", SimpleNamespace(pread=failing))
    monkeypatch.setattr(down_conversion, "os", SimpleNamespace(pread=failing))
    response = wire.decoded(wire.wait(wire.send(fetch(0, 0), 2)), FetchResponse, 2)
    first, second = response.responses[0].partitions
    # What clients of that age know of a disk that fails.
    assert (first.error_code, second.error_code) == (NotLeaderOrFollowerError.code, 0)
    assert second.records


def append_markers(data: DataBroker, count: int) -> None:
    for _ in range(count):
        data.replica_manager.partition("t", 0).append_records(
            memoryview(marker(7, commit=True)), origin=AppendOrigin.COORDINATOR
        )


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of four markers, of which a request passes over eight or nine."""
    monkeypatch.setattr(down_conversion, "MAX_CONVERTED_BYTES", 4 * len(marker(7, commit=True)))
    monkeypatch.setattr(down_convert, "MAX_PASSED_BYTES", 8 * len(marker(7, commit=True)))


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("starts", [[0], [0, 200], [200, 0], [350, 0, 200]])
def test_a_client_gets_on_behind_any_number_of_markers(data: DataBroker, wire: LongWire, starts: list[int]) -> None:
    """It asks for the same offset again and again, as other clients of the partition do."""
    append_markers(data, 500)
    append(data, 0, 3, CompressionType.NONE)
    waiting, requests = set(starts), 0
    while waiting and requests < 80:
        requests += 1
        for offset in sorted(waiting, key=starts.index):
            if converted(wire, wire.send(fetch(offset, max_bytes=200), 2)) != [[]]:
                waiting.discard(offset)
    assert not waiting
    assert requests >= 10, "one request does not hold a thread until the messages are found"


@pytest.mark.usefixtures("small_ranges")
def test_what_was_passed_over_is_forgotten_with_the_leader_epoch(data: DataBroker, wire: LongWire) -> None:
    """Another leader may have truncated the log, and other records may be there now."""
    append_markers(data, 20)
    for _ in range(2):
        assert converted(wire, wire.send(fetch(0, max_bytes=200), 2)) == [[]]
    partition = data.replica_manager.partition("t", 0)
    assert partition.passed_over[0].end > 10
    partition.local_log.truncate_to(10)
    partition.leader_epoch += 1
    append(data, 0, 15, CompressionType.NONE)
    (found,) = converted(wire, wire.send(fetch(0, max_bytes=2000), 2))
    assert found[:3] == [10, 11, 12]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_client_that_wants_no_bytes_passes_over_no_messages(data: DataBroker, wire: LongWire, version: int) -> None:
    append(data, 0, 3, GZIP)
    wire.wait(wire.send(fetch(0, max_bytes=0), version))
    assert data.replica_manager.partition("t", 0).passed_over == ()
    assert converted(wire, wire.send(fetch(0), version), version) == [[0, 1, 2]]


@pytest.mark.parametrize("codec", [CompressionType.NONE, GZIP])
def test_a_client_gets_on_from_an_offset_that_the_cleaner_removed(data: DataBroker, wire: LongWire, codec: int) -> None:
    """A wrapper of which all messages lie before the offset would be fetched again without end."""
    log = data.replica_manager.partition("t", 0).local_log
    for first in (0, 10):
        records = [Record(first + number, TIMESTAMP_MS, b"k", b"v") for number in range(5)]
        options = BatchOptions(base_offset=first, last_offset_delta=9, compression=codec)
        append_as_follower(log, memoryview(build_batch(records, options)), 0)
    log.update_high_watermark(log.log_end_offset)
    size = log.segments.active.size // 2
    (found,) = converted(wire, wire.send(fetch(7, max_bytes=size), 2))
    assert found == [10, 11, 12, 13, 14][: len(found)]
    assert found
