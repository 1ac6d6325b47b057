"""A repeated fetch is answered as the general way would: the same bytes for the same requests, or left to it."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire, values
from tidelog.broker.replica.fetch_cursor import LOOKS_SKIPPED
from tidelog.broker.requests.repeated_fetch import RepeatedFetch
from tidelog.log.files.file_records import SharedFile
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.protocol.transferable import TransferableRecords

LARGE = 700
MAX_BYTES = 1000


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    data.topics.create_topic("t", 2)
    yield data
    data.close()


def append(data: DataBroker, *sizes: int) -> None:
    partition = data.replica_manager.partition("t", 0)
    for number, size in enumerate(sizes):
        partition.append_records(memoryview(batch(bytes([number % 251]) * size)))


def request(data: DataBroker, offset: int, *, epoch: int = -1, session_id: int = 0, min_bytes: int = 1) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MAX_BYTES)
    topic = FetchTopic(topic="t", topic_id=data.broker.metadata.topics["t"].topic_id, partitions=[asked])
    return FetchRequest(
        max_wait_ms=0, min_bytes=min_bytes, max_bytes=MAX_BYTES, session_epoch=epoch, session_id=session_id,
        topics=[topic],
    )  # fmt: skip


class Reader:
    """A consumer of t-0 on a connection of its own."""

    def __init__(self, data: DataBroker, version: int = 18) -> None:
        self.data, self.version = data, version
        self.wire = Wire(data)
        self.session_id = 0
        self.epoch = -1

    def ask(self, offset: int, **changes: int) -> PartitionData:
        asked = request(self.data, offset, epoch=self.epoch, session_id=self.session_id, **changes)
        response = self.wire.ask(asked, FetchResponse, self.version)
        assert response.error_code == 0
        self.session_id = response.session_id
        if self.epoch >= 0:
            self.epoch += 1
        return response.responses[0].partitions[0] if response.responses else PartitionData(records=b"")

    def read_all(self, offset: int = 0) -> list[bytes | None]:
        """Every value from ``offset`` on; each answer's first batch at least is whole."""
        found: list[bytes | None] = []
        while True:
            answer = self.ask(offset + len(found))
            assert answer.error_code == 0
            got = whole_values(answer)
            if not got:
                return found
            found += got

    @property
    def repeat(self) -> RepeatedFetch:
        repeat = self.wire.context.repeat
        assert isinstance(repeat, RepeatedFetch)
        return repeat


def whole_values(answer: PartitionData) -> list[bytes | None]:
    """The values of the whole batches, as a client takes them."""
    records = bytes(answer.records or b"")  # type: ignore[arg-type]
    end = 0
    while end + 12 <= len(records):
        size = 12 + struct.unpack_from(">i", records, end + 8)[0]
        if end + size > len(records):
            break
        end += size
    answer.records = memoryview(records[:end])
    return values(answer) if end else []


def expected(*sizes: int) -> list[bytes | None]:
    return [bytes([number % 251]) * size for number, size in enumerate(sizes)]


def retains(data: DataBroker) -> int:
    """Count the holders of the partition's file, the segment itself included."""
    shared = data.replica_manager.partition("t", 0).local_log.segments.active.records.shared
    assert isinstance(shared, SharedFile)
    return shared._count


@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize("sizes", [(LARGE,) * 9, (10,) * 300, (LARGE, 10, 10, LARGE, 10, 2000, 2000, LARGE, 10)])
def test_every_record_comes_once_and_in_order(data: DataBroker, version: int, sizes: tuple[int, ...]) -> None:
    append(data, *sizes)
    reader = Reader(data, version)
    assert reader.read_all() == expected(*sizes)
    assert reader.wire.context.repeat is not None
    assert reader.read_all() == expected(*sizes)
    assert retains(data) == 1


def test_random_sizes_read_as_without_repeats(data: DataBroker) -> None:
    generator = random.Random(7)
    sizes = tuple(generator.choice((5, 100, 400, 600, 950, 1500)) for _ in range(400))
    append(data, *sizes)
    reader = Reader(data)
    for _ in range(3):
        assert reader.read_all() == expected(*sizes)


def test_an_answer_is_the_general_one_up_to_the_half_batch(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    reader.read_all()
    for offset in (0, 1, 2, 5):
        quick = reader.ask(offset)
        general = Reader(data).ask(offset)
        assert whole_values(quick) == whole_values(general)
        quick.records = general.records = b""
        assert quick == general


def test_large_batches_end_where_they_end_and_are_seen_in_memory(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    reader.ask(0)
    reader.ask(1)
    answers = [reader.wire.send(request(data, offset), 18) for offset in (2, 3, 4)]
    size = len(batch(bytes(LARGE)))
    for answer in answers:
        assert isinstance(answer, list)
        slice_ = answer[1]
        assert isinstance(slice_, TransferableRecords)
        assert (slice_.size, slice_.in_memory) == (size, True)
        slice_.release()
    assert retains(data) == 1


def test_a_batch_not_in_memory_is_left_to_the_general_way(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    reader.ask(0)
    reader.ask(1)

    def would_wait(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", would_wait)
    answer = reader.wire.send(request(data, 2), 18)
    assert isinstance(answer, list)
    slice_ = answer[1]
    assert isinstance(slice_, TransferableRecords)
    assert not slice_.in_memory
    slice_.release()
    assert retains(data) == 1


def test_small_batches_are_looked_at_seldom(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    append(data, *(10,) * 400)
    reader = Reader(data)
    reader.ask(0)
    reader.ask(0)
    looks = []
    preadv = os.preadv

    def counted(*arguments: Any) -> int:
        looks.append(arguments)
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", counted)
    for _ in range(LOOKS_SKIPPED + 1):
        assert len(whole_values(reader.ask(0))) > 1
    assert len(looks) == 1


def test_a_session_goes_on_and_others_may_take_it_over(data: DataBroker) -> None:
    append(data, *(LARGE,) * 20)
    reader = Reader(data)
    reader.epoch = 0
    found = []
    for offset in range(12):
        found += whole_values(reader.ask(offset))
    assert found == expected(*(LARGE,) * 12)
    session = data.broker.fetch_sessions.sessions[reader.session_id]
    assert session.epoch == reader.epoch
    other = Reader(data)
    other.epoch, other.session_id = reader.epoch, reader.session_id
    assert whole_values(other.ask(12))
    stale = reader.wire.ask(request(data, 13, epoch=reader.epoch, session_id=reader.session_id), FetchResponse, 18)
    assert stale.error_code == 71


def test_a_session_that_was_dropped_is_not_found(data: DataBroker) -> None:
    append(data, *(LARGE,) * 20)
    reader = Reader(data)
    reader.epoch = 0
    for offset in range(8):
        reader.ask(offset)
    data.broker.fetch_sessions.sessions.clear()
    gone = reader.wire.ask(request(data, 8, epoch=reader.epoch, session_id=reader.session_id), FetchResponse, 18)
    assert gone.error_code == 70


def test_the_end_the_start_and_beyond(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    assert reader.read_all()
    assert not whole_values(reader.ask(6))
    assert reader.ask(7).error_code == 1
    data.replica_manager.partition("t", 0).local_log.maybe_increment_log_start_offset(3)
    reader.ask(3)
    data.replica_manager.partition("t", 0).local_log.maybe_increment_log_start_offset(5)
    assert reader.ask(4).error_code == 1
    answer = reader.ask(5)
    assert (answer.log_start_offset, len(whole_values(answer))) == (5, 1)


def test_what_was_moved_away_is_not_read_on(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    reader.ask(0)
    reader.ask(1)
    reader.ask(2)
    log = data.replica_manager.partition("t", 0).local_log
    log.truncate_to(3)
    data.replica_manager.partition("t", 0).append_records(memoryview(batch(b"new" * 300)))
    assert whole_values(reader.ask(3)) == [b"new" * 300]


def test_records_above_the_high_watermark_are_kept_back(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    reader.ask(0)
    reader.ask(1)
    log = data.replica_manager.partition("t", 0).local_log
    log.update_high_watermark(3)
    assert whole_values(reader.ask(2)) == expected(*(LARGE,) * 3)[2:]
    assert not whole_values(reader.ask(3))


def test_a_topic_that_is_made_again_is_another(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data, 12)
    for offset in range(4):
        reader.ask(offset)
    data.topics.delete_topic("t")
    data.topics.create_topic("t", 1)
    assert reader.ask(4).error_code == 1
    append(data, 5)
    assert whole_values(reader.ask(0)) == expected(5)


def test_a_read_over_segments(data: DataBroker) -> None:
    sizes = (LARGE,) * 9
    partition = data.replica_manager.partition("t", 0)
    for number, size in enumerate(sizes):
        partition.append_records(memoryview(batch(bytes([number % 251]) * size)))
        if number % 3 == 2:
            partition.local_log.roll()
    reader = Reader(data)
    for _ in range(3):
        assert reader.read_all() == expected(*sizes)


def test_more_than_is_there_is_waited_for(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    for offset in range(5):
        assert len(whole_values(reader.ask(offset, min_bytes=900))) == 1
    assert reader.ask(5, min_bytes=900).records


def test_quotas_are_asked(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    for offset in range(3):
        reader.ask(offset)
    monkeypatch.setattr(data.broker.services.quotas, "made", object())
    assert reader.repeat.answer(memoryview(bytes(reader.repeat._request.size))) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"session_epoch": 0},
        {"topics": []},
    ],
)
def test_other_kinds_are_no_pattern(data: DataBroker, changes: dict[str, object]) -> None:
    append(data, LARGE)
    wire = Wire(data)
    for _ in range(9):
        asked = request(data, 0)
        for name, value in changes.items():
            setattr(asked, name, value)
        wire.ask(asked, FetchResponse, 18)
    assert wire.context.repeat is None


def test_an_offline_directory_serves_nothing(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    for offset in range(3):
        reader.ask(offset)
    log = data.replica_manager.partition("t", 0).local_log
    log._directory_state.mark_offline(KafkaStorageError("gone"))
    assert reader.ask(3).error_code == KafkaStorageError.code


def test_requests_are_counted_and_so_are_bytes(data: DataBroker) -> None:
    append(data, *(LARGE,) * 6)
    reader = Reader(data)
    reader.read_all()
    before = data.broker.metrics.bytes_out.count
    route = reader.wire.dispatcher.routes()[0]
    requests = route.requests
    answer = reader.ask(2)
    assert route.requests == requests + 1
    assert data.broker.metrics.bytes_out.count == before + len(answer.records or b"")
