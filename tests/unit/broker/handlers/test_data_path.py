"""Produce, Fetch and related requests as a client sees them: bytes through the dispatcher, over real logs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.slices import content_of
from tests.support.stand_in import StandIn
from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker, batch
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    TransactionalIdAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages.api_versions import ApiVersionsResponse
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import Part

R = TypeVar("R", bound=Message)
NEWEST_PRODUCE, NEWEST_FETCH = 13, 18


class Wire:
    """A client without a socket: requests and responses are bytes of one connection."""

    def __init__(self, data: DataBroker) -> None:
        self.data = data
        self.dispatcher = Dispatcher(data.broker)
        self.context = data.context(0)

    def send(self, request: Message, version: int) -> object:
        """Send a request and return the dispatcher's answer."""
        key = ApiKey(request.API_KEY)
        header = struct.pack(">hhih", key, version, 77, 6) + b"tester"
        if request_header_version(key, version) >= 2:
            header += b"\0"
        return self.dispatcher.dispatch(self.context, memoryview(bytearray(header + request.encode(version))))

    def ask(self, request: Message, response_type: type[R], version: int) -> R:
        """Return the decoded response, which must be there at once."""
        answer = self.send(request, version)
        assert answer is not None
        assert not isinstance(answer, Pending)
        return self.decoded(answer, response_type, version)

    def ask_patiently(self, request: Message, response_type: type[R], version: int) -> R:
        """Return the decoded response, which may come within some turns of the loop."""
        answer = self.send(request, version)
        if isinstance(answer, Pending):
            sent: list[object] = []
            answer.on_answer(sent.append)
            for _ in range(30):
                self.data.loop.run_soon()
            (answer,) = sent
        return self.decoded(answer, response_type, version)

    def decoded(self, answer: object, response_type: type[R], version: int) -> R:
        """Read the parts as bytes, check the header, decode the body."""
        parts: list[Part] = answer if isinstance(answer, list) else [answer]  # type: ignore[list-item]
        whole = b"".join(content_of(part) for part in parts)
        size, correlation_id = struct.unpack(">ii", whole[:8])
        assert (size, correlation_id) == (len(whole) - 4, 77)
        start = 9 if response_header_version(ApiKey(response_type.API_KEY), version) >= 1 else 8
        return response_type.decode(memoryview(whole)[start:], version)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 2)
    yield data
    data.close()


@pytest.fixture
def wire(data: DataBroker) -> Wire:
    return Wire(data)


def produce_request(
    data: DataBroker, records: bytes | bytearray | None, *, acks: int = 1, index: int = 0
) -> ProduceRequest:
    part = PartitionProduceData(index=index, records=None if records is None else memoryview(records))
    topic_id = data.broker.metadata.topics["t"].topic_id
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", topic_id=topic_id, partition_data=[part])]
    )


def produced(wire: Wire, records: bytes | bytearray | None, version: int = NEWEST_PRODUCE) -> PartitionProduceResponse:
    response = wire.ask(produce_request(wire.data, records), ProduceResponse, version)
    return response.responses[0].partition_responses[0]


def fetch_request(data: DataBroker, *offsets: int, max_bytes: int = 1_000_000, max_wait_ms: int = 0) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index, offset in enumerate(offsets)
    ]
    topic_id = data.broker.metadata.topics["t"].topic_id
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1_000_000,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", topic_id=topic_id, partitions=partitions)],
    )


def fetched(wire: Wire, request: FetchRequest, version: int = NEWEST_FETCH) -> list[PartitionData]:
    response = wire.ask(request, FetchResponse, version)
    return [partition for topic in response.responses for partition in topic.partitions]


def values(partition: PartitionData) -> list[bytes | None]:
    records = partition.records
    assert isinstance(records, memoryview)
    return [
        None if record.value is None else bytes(record.value)
        for found in iter_batches(records)
        for record in found.records(1 << 20)
    ]


class TestProduce:
    @pytest.mark.parametrize("version", range(3, NEWEST_PRODUCE + 1))
    def test_offsets_continue_in_every_version(self, wire: Wire, version: int) -> None:
        assert produced(wire, batch(b"a", b"b"), version).base_offset == 0
        second = produced(wire, batch(b"c"), version)
        assert (second.error_code, second.base_offset) == (0, 2)
        assert second.log_start_offset == (0 if version >= 5 else -1)

    @pytest.mark.parametrize("version", range(5, NEWEST_PRODUCE + 1))
    def test_the_quick_response_is_the_encoded_one(self, wire: Wire, version: int) -> None:
        quick = wire.ask(produce_request(wire.data, batch(b"a")), ProduceResponse, version)
        both = produce_request(wire.data, batch(b"a"))
        both.topic_data[0].partition_data.append(PartitionProduceData(index=1, records=memoryview(batch(b"a"))))
        general = wire.ask(both, ProduceResponse, version)
        general.responses[0].partition_responses[0].base_offset = 0
        del general.responses[0].partition_responses[1]
        assert quick == general

    def test_acks_0_is_not_answered(self, wire: Wire) -> None:
        assert wire.send(produce_request(wire.data, batch(b"a"), acks=0), 9) is None

    def test_a_failed_acks_0_closes_the_connection(self, wire: Wire) -> None:
        with pytest.raises(CloseConnectionError):
            wire.send(produce_request(wire.data, batch(b"a"), acks=0, index=9), 9)

    def test_other_acks_are_refused(self, wire: Wire) -> None:
        response = wire.ask(produce_request(wire.data, batch(b"a"), acks=2), ProduceResponse, 9)
        assert response.responses[0].partition_responses[0].error_code == InvalidRequiredAcksError.code

    def test_an_unknown_partition_is_an_error_of_its_own(self, wire: Wire) -> None:
        request = produce_request(wire.data, batch(b"a"), index=5)
        request.topic_data[0].partition_data.append(PartitionProduceData(index=1, records=memoryview(batch(b"b"))))
        codes = [p.error_code for p in wire.ask(request, ProduceResponse, 9).responses[0].partition_responses]
        assert codes == [UnknownTopicOrPartitionError.code, 0]

    def test_an_unknown_topic_id_is_refused(self, wire: Wire) -> None:
        request = produce_request(wire.data, batch(b"a"))
        request.topic_data[0].topic_id = b"\7" * 16
        response = wire.ask(request, ProduceResponse, 13).responses[0]
        assert (response.topic_id, response.partition_responses[0].error_code) == (b"\7" * 16, UnknownTopicIdError.code)

    @pytest.mark.parametrize("records", [None, b"", batch(b"a") + batch(b"b"), batch(b"a")[:-1]])
    def test_newer_versions_carry_exactly_one_batch(self, wire: Wire, records: bytes | bytearray | None) -> None:
        assert produced(wire, records).error_code == InvalidRecordError.code

    @pytest.mark.parametrize("version", [0, 2, 3, NEWEST_PRODUCE])
    def test_no_version_begins_a_transaction_without_an_id(self, wire: Wire, version: int) -> None:
        options = BatchOptions(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
        answer = produced(wire, batch(b"a", options=options), version)
        assert answer.error_code == TransactionalIdAuthorizationFailedError.code
        assert wire.data.replica_manager.partition("t", 0).local_log.log_end_offset == 0

    def test_zstd_needs_version_7(self, wire: Wire) -> None:
        records = batch(b"a", options=BatchOptions(compression=4))
        assert produced(wire, records, 6).error_code == UnsupportedCompressionTypeError.code
        assert produced(wire, records, 7).error_code == 0

    def test_a_batch_too_large_is_refused(self, wire: Wire) -> None:
        assert produced(wire, batch(bytes(2_000_000))).error_code == MessageTooLargeError.code

    def test_a_damaged_batch_is_refused_and_nothing_is_written(self, wire: Wire) -> None:
        damaged = batch(b"abc")
        damaged[-2] ^= 1
        assert produced(wire, damaged).error_code == CorruptMessageError.code
        assert wire.data.replica_manager.partition("t", 0).local_log.log_end_offset == 0

    def test_a_refused_record_is_named(self, wire: Wire) -> None:
        create_topic(wire.data, "c", 1, 1, {"cleanup.policy": "compact"})
        request = produce_request(wire.data, batch(b"a"))
        request.topic_data[0].name = "c"
        partition = wire.ask(request, ProduceResponse, 8).responses[0].partition_responses[0]
        assert partition.error_code == InvalidRecordError.code
        assert [fault.batch_index for fault in partition.record_errors] == [0]
        assert partition.error_message

    def test_internal_topics_are_for_tools_only(self, wire: Wire) -> None:
        wire.data.topics.ensure_internal_topic("__consumer_offsets")
        request = produce_request(wire.data, batch(b"a"))
        request.topic_data[0].name = "__consumer_offsets"
        partition = wire.ask(request, ProduceResponse, 9).responses[0].partition_responses[0]
        assert partition.error_code == InvalidTopicError.code

    def test_an_idempotent_retry_gets_its_first_offset_and_moves_nothing(self, wire: Wire) -> None:
        def numbered(sequence: int) -> bytearray:
            options = BatchOptions(producer_id=5, producer_epoch=0, base_sequence=sequence)
            return batch(b"a", options=options)

        assert [produced(wire, numbered(n)).base_offset for n in (0, 1, 0, 1)] == [0, 1, 0, 1]
        log = wire.data.replica_manager.partition("t", 0).local_log
        assert (log.log_end_offset, log.high_watermark) == (2, 2)
        assert produced(wire, numbered(7)).error_code == OutOfOrderSequenceNumberError.code


class TestFetch:
    @pytest.mark.parametrize("version", range(4, NEWEST_FETCH + 1))
    def test_records_come_back_in_every_version(self, wire: Wire, version: int) -> None:
        wire.data.append("t", b"a", b"b")
        (partition,) = fetched(wire, fetch_request(wire.data, 0), version)
        assert values(partition) == [b"a", b"b"]
        assert partition.high_watermark == 2

    @pytest.mark.parametrize("version", range(4))
    def test_old_clients_get_message_sets(self, wire: Wire, version: int) -> None:
        wire.data.append("t", b"a", b"b")
        (partition,) = fetched(wire, fetch_request(wire.data, 0), version)
        assert isinstance(partition.records, memoryview)
        assert partition.records[16] == (0 if version <= 1 else 1)
        assert values(partition) == [b"a", b"b"]

    def test_a_large_range_is_converted_in_a_thread(self, wire: Wire) -> None:
        wire.data.append("t", bytes(100_000))
        answers: list[object] = []
        pending = wire.send(fetch_request(wire.data, 0), 3)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        wire.data.loop.run_soon()
        response = wire.decoded(answers[0], FetchResponse, 3)
        assert values(response.responses[0].partitions[0]) == [bytes(100_000)]

    def test_conversion_may_be_forbidden(self, wire: Wire) -> None:
        wire.data.topics.set_configs("t", {"message.downconversion.enable": "false"})
        wire.data.append("t", b"a")
        (partition,) = fetched(wire, fetch_request(wire.data, 0), 2)
        assert partition.error_code == UnsupportedVersionError.code

    @pytest.mark.parametrize("offset", [-1, 3])
    def test_an_offset_outside_of_the_log_is_out_of_range(self, wire: Wire, offset: int) -> None:
        wire.data.append("t", b"a", b"b")
        (partition,) = fetched(wire, fetch_request(wire.data, offset))
        assert partition.error_code == OffsetOutOfRangeError.code

    def test_the_response_limit_leaves_later_partitions_empty(self, wire: Wire) -> None:
        wire.data.append("t", bytes(1000))
        wire.data.append("t", bytes(1000), partition=1)
        request = fetch_request(wire.data, 0, 0)
        request.max_bytes = 500
        first, second = fetched(wire, request)
        assert len(values(first)) == 1
        assert second.records == b""
        assert second.high_watermark == 1

    def test_a_first_batch_beyond_the_limit_is_whole(self, wire: Wire) -> None:
        wire.data.append("t", bytes(1000))
        (partition,) = fetched(wire, fetch_request(wire.data, 0, max_bytes=10))
        assert values(partition) == [bytes(1000)]

    @pytest.mark.parametrize("version", range(3))
    def test_up_to_v2_the_last_message_is_truncated_at_the_limit(self, wire: Wire, version: int) -> None:
        """The whole messages that fit, and the beginning of the next: a client moves on, or asks for more (KIP-74)."""
        wire.data.append("t", bytes(100), bytes(100), bytes(1000))
        for max_bytes, whole in ((50, 0), (200, 1), (400, 2), (600, 2)):
            answers: list[object] = []
            pending = wire.send(fetch_request(wire.data, 0, max_bytes=max_bytes), version)
            assert isinstance(pending, Pending)
            pending.on_answer(answers.append)
            wire.data.loop.run_soon()
            (partition,) = wire.decoded(answers[0], FetchResponse, version).responses[0].partitions
            assert isinstance(partition.records, memoryview)
            assert len(partition.records) == max_bytes
            assert len(values(partition)) == whole

    def test_v3_gets_a_first_message_beyond_the_limit_whole(self, wire: Wire) -> None:
        wire.data.append("t", bytes(1000), bytes(1000))
        answer = wire.send(fetch_request(wire.data, 0, max_bytes=10), 3)  # the batch was read whole
        (partition,) = wire.decoded(answer, FetchResponse, 3).responses[0].partitions
        assert values(partition) == [bytes(1000)]

    def test_an_empty_fetch_waits_and_is_woken_by_an_append(self, wire: Wire) -> None:
        answers: list[object] = []
        pending = wire.send(fetch_request(wire.data, 0, max_wait_ms=500), NEWEST_FETCH)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        wire.data.append("t", b"late")
        assert answers == []
        wire.data.loop.run_soon()
        response = wire.decoded(answers[0], FetchResponse, NEWEST_FETCH)
        assert values(response.responses[0].partitions[0]) == [b"late"]

    def test_a_waiting_fetch_is_answered_empty_at_its_deadline(self, wire: Wire) -> None:
        answers: list[object] = []
        pending = wire.send(fetch_request(wire.data, 0, max_wait_ms=500), NEWEST_FETCH)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        wire.data.loop.advance(600)
        response = wire.decoded(answers[0], FetchResponse, NEWEST_FETCH)
        assert response.responses[0].partitions[0].records == b""

    def test_a_fetch_waits_for_its_min_bytes(self, wire: Wire) -> None:
        request = fetch_request(wire.data, 0, max_wait_ms=500)
        request.min_bytes = 200
        answers: list[object] = []
        pending = wire.send(request, NEWEST_FETCH)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        wire.data.append("t", b"little")
        wire.data.loop.run_soon()
        assert answers == []
        wire.data.append("t", bytes(200))
        wire.data.loop.run_soon()
        assert len(values(wire.decoded(answers[0], FetchResponse, NEWEST_FETCH).responses[0].partitions[0])) == 2

    def test_a_deleted_topic_answers_waiting_fetches(self, wire: Wire) -> None:
        answers: list[object] = []
        pending = wire.send(fetch_request(wire.data, 0, max_wait_ms=500), 12)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        delete_topic(wire.data, "t")
        wire.data.loop.run_soon()
        partition = wire.decoded(answers[0], FetchResponse, 12).responses[0].partitions[0]
        assert partition.error_code == UnknownTopicOrPartitionError.code

    def test_an_abandoned_fetch_leaves_the_purgatory(self, wire: Wire) -> None:
        pending = wire.send(fetch_request(wire.data, 0, max_wait_ms=2**31 - 1), NEWEST_FETCH)
        assert isinstance(pending, Pending)
        pending.abandon()
        assert len(wire.data.purgatory) == 0

    def test_a_session_leaves_out_unchanged_partitions(self, wire: Wire) -> None:
        request = fetch_request(wire.data, 0, 0)
        request.session_epoch = 0
        full = wire.ask(request, FetchResponse, NEWEST_FETCH)
        assert full.session_id
        assert len(full.responses[0].partitions) == 2
        wire.data.append("t", b"new", partition=1)
        again = FetchRequest(session_id=full.session_id, session_epoch=1, max_bytes=1_000_000, min_bytes=1)
        partitions = fetched(wire, again)
        assert [partition.partition_index for partition in partitions] == [1]

    def test_leader_epochs_are_compared(self, wire: Wire) -> None:
        wire.data.replica_manager.partition("t", 0).leader_epoch = 5
        codes = []
        for epoch in (4, 6, 5):
            request = fetch_request(wire.data, 0)
            request.topics[0].partitions[0].current_leader_epoch = epoch
            (partition,) = fetched(wire, request)
            codes.append(partition.error_code)
        assert codes == [FencedLeaderEpochError.code, UnknownLeaderEpochError.code, 0]

    @pytest.mark.parametrize(("version", "endpoints"), [(15, []), (16, [(1, "127.0.0.1", 9092)])])
    def test_a_fenced_client_is_told_the_leader(
        self, wire: Wire, version: int, endpoints: list[tuple[int, str, int]]
    ) -> None:
        wire.data.replica_manager.partition("t", 0).leader_epoch = 5
        request = fetch_request(wire.data, 0)
        request.topics[0].partitions[0].current_leader_epoch = 4
        response = wire.ask(request, FetchResponse, version)
        leader = response.responses[0].partitions[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (1, 5)
        assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == endpoints

    def test_a_diverging_epoch_is_reported(self, wire: Wire) -> None:
        wire.data.append("t", b"a")
        request = fetch_request(wire.data, 1)
        wire.data.replica_manager.partition("t", 0).leader_epoch = 3
        wire.data.append("t", b"b")
        request.topics[0].partitions[0].fetch_offset = 2
        request.topics[0].partitions[0].last_fetched_epoch = 0
        (partition,) = fetched(wire, request)
        assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (0, 1)
        assert partition.records == b""


class TestListOffsets:
    def look_up(self, wire: Wire, timestamp: int, version: int = 11) -> ListOffsetsPartitionResponse:
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name="t",
                    partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=5)],
                )
            ],
        )
        return wire.ask(request, ListOffsetsResponse, version).topics[0].partitions[0]

    def test_special_timestamps_and_times_are_looked_up(self, wire: Wire) -> None:
        wire.data.append("t", b"a", b"b", b"c")
        found = [self.look_up(wire, asked).offset for asked in (-2, -1, TIMESTAMP_MS + 1, TIMESTAMP_MS + 9, -3, -4)]
        assert found == [0, 3, 1, -1, 2, 0]

    def test_special_timestamps_need_their_versions(self, wire: Wire) -> None:
        assert self.look_up(wire, -3, 6).error_code == UnsupportedVersionError.code

    def test_version_0_lists_offsets(self, wire: Wire) -> None:
        wire.data.append("t", b"a", b"b")
        assert self.look_up(wire, -1, 0).old_style_offsets == [2, 0]
        assert self.look_up(wire, -2, 0).old_style_offsets == [0]

    def test_a_partition_named_twice_is_refused(self, wire: Wire) -> None:
        partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition, partition])]
        )
        response = wire.ask(request, ListOffsetsResponse, 5)
        assert {p.error_code for p in response.topics[0].partitions} == {InvalidRequestError.code}


class TestDeleteRecords:
    def delete(self, wire: Wire, offset: int, topic: str = "t") -> tuple[int, int]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
            ]
        )
        result = wire.ask_patiently(request, DeleteRecordsResponse, 2).topics[0].partitions[0]
        return result.error_code, result.low_watermark

    def test_the_log_start_offset_moves_forward_only(self, wire: Wire) -> None:
        wire.data.append("t", b"a", b"b", b"c")
        assert self.delete(wire, 2) == (0, 2)
        assert self.delete(wire, 1) == (0, 2)
        assert self.delete(wire, -1) == (0, 3)

    def test_beyond_the_high_watermark_is_refused(self, wire: Wire) -> None:
        wire.data.append("t", b"a")
        assert self.delete(wire, 2) == (OffsetOutOfRangeError.code, -1)

    def test_unknown_topics_are_refused(self, wire: Wire) -> None:
        assert self.delete(wire, 0, "none") == (UnknownTopicOrPartitionError.code, -1)


def test_producer_ids_differ_and_survive_a_restart(wire: Wire) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    first, second = (wire.ask_patiently(request, InitProducerIdResponse, 6).producer_id for _ in range(2))
    assert second == first + 1


def test_the_end_offset_of_each_epoch_is_returned(wire: Wire) -> None:
    wire.data.append("t", b"a", b"b")
    wire.data.replica_manager.partition("t", 0).leader_epoch = 3
    wire.data.append("t", b"c")

    def end_of(epoch: int) -> tuple[int, int]:
        request = OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=epoch)])
            ]
        )
        found = wire.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0]
        return found.leader_epoch, found.end_offset

    assert [end_of(epoch) for epoch in (0, 1, 3, 4)] == [(0, 2), (0, 2), (3, 3), (-1, -1)]


class TestDispatch:
    def test_an_unknown_version_of_api_versions_gets_the_table(self, wire: Wire) -> None:
        frame = memoryview(struct.pack(">hhih", 18, 99, 77, -1))
        answer = wire.dispatcher.dispatch(wire.context, frame)
        assert isinstance(answer, bytes)
        assert struct.unpack(">iihi", answer[:14]) == (len(answer) - 4, 77, 35, len(REGISTRY))

    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"\0\0\0\0",
            struct.pack(">hhih", 999, 0, 1, 0),
            struct.pack(">hhih", 3, 99, 1, 0),
            struct.pack(">hhih", 18, 0, 1, 50) + b"short",
            struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe",
        ],
    )
    def test_a_request_of_an_unknown_api_is_invalid(self, wire: Wire, frame: bytes) -> None:
        with pytest.raises(InvalidRequestError):
            wire.dispatcher.dispatch(wire.context, memoryview(frame))

    def test_the_client_id_is_known_and_may_change(self, wire: Wire) -> None:
        seen = []
        for name in (b"one", b"one", b"", b"other"):
            wire.dispatcher.dispatch(wire.context, memoryview(struct.pack(">hhih", 18, 0, 1, len(name)) + name))
            seen.append(wire.context.client_id)
        wire.dispatcher.dispatch(wire.context, memoryview(struct.pack(">hhih", 18, 0, 1, -1)))
        assert [*seen, wire.context.client_id] == ["one", "one", "", "other", None]

    def test_tagged_fields_in_the_header_are_skipped(self, wire: Wire) -> None:
        frame = struct.pack(">hhih", 18, 3, 77, 1) + b"x" + b"\1\0\2ab" + b"\2a\2b\0"
        answer = wire.dispatcher.dispatch(wire.context, memoryview(frame))
        assert wire.decoded(answer, ApiVersionsResponse, 3).error_code == 0

    def test_a_defect_is_an_unknown_server_error(self, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(wire.data.broker.replica_manager.__class__, "partition", fail)
        response = wire.ask(produce_request(wire.data, batch(b"a")), ProduceResponse, 9)
        assert response.responses[0].partition_responses[0].error_code == -1

    def test_a_defect_in_one_partition_fails_only_that_one(self, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        request = produce_request(wire.data, batch(b"a"))
        request.topic_data[0].partition_data.append(PartitionProduceData(index=1, records=memoryview(batch(b"b"))))
        partition = wire.data.replica_manager.partition("t", 0)
        mistaken = StandIn(partition.local_log, append_as_leader=None)
        monkeypatch.setattr(partition, "_log", mistaken)
        partitions = wire.ask(request, ProduceResponse, 9).responses[0].partition_responses
        assert [(partition.error_code, partition.base_offset) for partition in partitions] == [(-1, -1), (0, 0)]

    def test_requests_are_counted(self, wire: Wire) -> None:
        for _ in range(3):
            wire.dispatcher.dispatch(wire.context, memoryview(struct.pack(">hhih", 18, 0, 1, -1)))
        assert [(route.api_key, route.requests) for route in wire.dispatcher.routes()] == [(18, 3)]


class TestFlushMessages:
    @pytest.fixture(autouse=True)
    def every_message(self, data: DataBroker) -> None:
        data.topics.set_configs("t", {"flush.messages": "1"})

    def test_an_acknowledgement_waits_for_the_sync(self, wire: Wire) -> None:
        answers: list[object] = []
        pending = wire.send(produce_request(wire.data, batch(b"a")), 9)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        log = wire.data.replica_manager.partition("t", 0).local_log
        assert log.high_watermark == 0
        wire.data.loop.run_soon()
        response = wire.decoded(answers[0], ProduceResponse, 9).responses[0].partition_responses[0]
        assert (response.error_code, response.base_offset) == (0, 0)
        assert log.high_watermark == log.recovery_point == 1

    def test_several_partitions_are_answered_together(self, wire: Wire) -> None:
        request = produce_request(wire.data, batch(b"a"))
        request.topic_data[0].partition_data.append(PartitionProduceData(index=1, records=memoryview(batch(b"b"))))
        answers: list[object] = []
        pending = wire.send(request, 9)
        assert isinstance(pending, Pending)
        pending.on_answer(answers.append)
        wire.data.loop.run_soon()
        partitions = wire.decoded(answers[0], ProduceResponse, 9).responses[0].partition_responses
        assert [partition.error_code for partition in partitions] == [0, 0]

    def test_acks_0_waits_for_nothing(self, wire: Wire) -> None:
        assert wire.send(produce_request(wire.data, batch(b"a"), acks=0), 9) is None
