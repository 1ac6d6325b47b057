"""Requests under quotas: bytes through the dispatcher, over real logs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import producer_batch
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import R, Wire
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, offsets, partitions, runs
from tidelog.broker.handlers import produce, replica_fetch
from tidelog.broker.loop.steps import StepRunner
from tidelog.broker.quota.quotas import PRODUCE, throttled_samples
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Parts, Pending, Route
from tidelog.broker.requests.throttling import Measure, ThrottledAnswer, response_class_of, write_int32
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    NONE,
    FetchSessionIdNotFoundError,
    InvalidShareSessionEpochError,
    ThrottlingQuotaExceededError,
)
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tidelog.protocol.schema import encoder
from tidelog.protocol.schema.source import has_field, position_of
from tidelog.protocol.transferable import TransferableRecords


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1)
    yield data
    data.close()


class ThrottledWire(Wire):
    """Keeps the wait that the connection would observe, as it would: until the next request."""

    muted_ms = 0

    def ask(self, request: Any, response_type: type[R], version: int) -> R:
        frame = self.frame(request, version)
        assert frame is not None
        return self.decoded(frame, response_type, version)

    def frame(self, request: Any, version: int) -> bytes | Parts | None:
        answer = self.send(request, version)
        frames: list[bytes | Parts | None] = []
        if isinstance(answer, Pending):
            answer.on_answer(frames.append)
            while self.data.loop.soon and not frames:
                self.data.loop.run_soon()
            assert frames
        else:
            frames.append(answer)  # type: ignore[arg-type]
        self.muted_ms, self.context.throttle_ms = self.context.throttle_ms, 0
        return frames[0]

    def set(self, key: str, value: float | None, **entity: str | None) -> None:
        parts = entity or {"client_id": "tester"}
        entry = EntryData(
            entity=[EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in parts.items()],
            ops=[OpData(key=key, value=value or 0.0, remove=value is None)],
        )
        (answer,) = self.ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse, 1).entries
        assert answer.error_code == NONE


@pytest.fixture
def wire(data: DataBroker) -> ThrottledWire:
    return ThrottledWire(data)


def produce_request(wire: Wire, size: int, acks: int = 1) -> ProduceRequest:
    part = PartitionProduceData(index=0, records=memoryview(batch(bytes(size))))
    topic_id = wire.data.broker.metadata.topics["t"].topic_id
    topic = TopicProduceData(name="t", topic_id=topic_id, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def fetch_request(wire: Wire, offset: int = 0, *, session: tuple[int, int] = (0, -1), **fields: Any) -> FetchRequest:
    topic_id = wire.data.broker.metadata.topics["t"].topic_id
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    topics = [FetchTopic(topic="t", topic_id=topic_id, partitions=[partition])]
    session_id, session_epoch = session
    return FetchRequest(
        session_id=session_id,
        session_epoch=session_epoch,
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1_000_000, "topics": topics, **fields},
    )


def sizes(response: FetchResponse) -> list[int]:
    return [len(p.records or b"") for topic in response.responses for p in topic.partitions]


@pytest.mark.parametrize("version", [3, 7, 9, 13])
def test_a_producer_over_its_quota_gets_a_throttle_time_and_is_muted(wire: ThrottledWire, version: int) -> None:
    wire.set("producer_byte_rate", 1000.0)
    for size, over in ((5_000, False), (10_000, True)):
        response = wire.ask(produce_request(wire, size), ProduceResponse, version)
        assert (response.throttle_time_ms > 0) is over
        assert wire.muted_ms == response.throttle_time_ms
        assert response.responses[0].partition_responses[0].error_code == NONE
    assert wire.data.replica_manager.partition("t", 0).local_log.log_end_offset == 2


@pytest.mark.parametrize("size", [1, 500, 40_000])
def test_a_long_request_mutes_its_connection_like_a_short_one(wire: ThrottledWire, size: int) -> None:
    """One of 500 names is decoded in steps that end in the first slice."""
    wire.set("request_percentage", 1e-9)
    topics = [MetadataRequestTopic(name=f"topic-{number:06d}") for number in range(size)]
    answer = wire.send(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
    assert isinstance(answer, Pending), "the connection observes the wait when it takes such an answer"
    frames: list[bytes | Parts | None] = []
    answer.on_answer(frames.append)
    while wire.data.loop.soon and not frames:
        wire.data.loop.run_soon()
    (frame,) = frames
    assert wire.context.throttle_ms > 0
    assert wire.decoded(frame, MetadataResponse, 12).throttle_time_ms == wire.context.throttle_ms


def test_a_produce_request_of_many_partitions_mutes_its_connection(wire: ThrottledWire) -> None:
    wire.set("producer_byte_rate", 1.0)
    parts = [PartitionProduceData(index=index, records=memoryview(b"")) for index in range(1, 1200)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=parts)])
    assert isinstance(wire.send(request, 9), Pending)
    assert wire.context.throttle_ms > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("producer_byte_rate", 1.0), ("controller_mutation_rate", 1e-9), ("controller_mutation_rate", 1e-306)],
)
def test_a_wait_is_no_longer_than_its_field_can_hold(wire: ThrottledWire, key: str, value: float) -> None:
    """Else the answer could not be written: the connection closed, and the producer sent its records again."""
    longest = 2**31 - 1
    wire.set(key, value)
    if key == "producer_byte_rate":
        answers = [wire.ask(produce_request(wire, 900_000), ProduceResponse, 9) for _ in range(4)]
        assert answers[-1].throttle_time_ms == wire.muted_ms == longest
        return
    for name, version in (("x", 5), ("y", 5), ("z", 6)):
        topic = CreatableTopic(name=name, num_partitions=5, replication_factor=1)
        created = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse, version)
        assert created.throttle_time_ms == wire.muted_ms == longest
        assert created.topics[0].error_code == (ThrottlingQuotaExceededError.code if name == "z" else NONE)


def test_a_version_without_a_field_for_it_is_muted_alike(wire: ThrottledWire) -> None:
    wire.set("request_percentage", 1e-9)
    frame = wire.frame(FindCoordinatorRequest(key="g"), 0)
    assert isinstance(frame, bytes)
    assert wire.muted_ms > 0


def test_a_response_without_such_a_field_is_sent_as_it_is(wire: ThrottledWire) -> None:
    wire.set("request_percentage", 1e-9)
    assert wire.ask(WriteTxnMarkersRequest(markers=[]), WriteTxnMarkersResponse, 1).markers == []
    assert wire.muted_ms > 0


def test_acks_0_is_muted_without_an_answer(wire: ThrottledWire) -> None:
    wire.set("producer_byte_rate", 10.0)
    assert wire.frame(produce_request(wire, 1000, acks=0), 9) == b""
    assert wire.muted_ms > 0


def test_other_clients_do_not_wait(wire: ThrottledWire) -> None:
    wire.set("producer_byte_rate", 10.0, client_id="other")
    assert wire.ask(produce_request(wire, 1000), ProduceResponse, 9).throttle_time_ms == 0
    assert wire.muted_ms == 0


@pytest.mark.parametrize("version", [4, 7, 11, 12, 18])
def test_a_consumer_over_its_quota_gets_an_empty_answer(wire: ThrottledWire, version: int) -> None:
    for _ in range(3):
        wire.data.append("t", bytes(6000))
    wire.set("consumer_byte_rate", 1000.0)
    first = wire.ask(fetch_request(wire, 0), FetchResponse, version)
    assert first.throttle_time_ms == 0
    assert sum(sizes(first)) > 6000
    second = wire.ask(fetch_request(wire, 1), FetchResponse, version)
    assert second.throttle_time_ms > 0
    assert second.responses == []
    assert wire.muted_ms == second.throttle_time_ms
    wire.data.loop.advance(second.throttle_time_ms + 10_000)
    third = wire.ask(fetch_request(wire, 1), FetchResponse, version)
    assert sum(sizes(third)) > 6000


def test_files_of_an_answer_that_is_not_sent_are_released(wire: ThrottledWire, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    release = TransferableRecords.release

    def release_and_note(part: TransferableRecords) -> None:
        released.append(part.size)
        release(part)

    monkeypatch.setattr(TransferableRecords, "release", release_and_note)
    wire.data.append("t", bytes(6000))
    wire.data.append("t", bytes(6000))
    wire.set("consumer_byte_rate", 1000.0)
    wire.ask(fetch_request(wire, 0), FetchResponse, 12)
    released.clear()
    wire.ask(fetch_request(wire, 1), FetchResponse, 12)
    assert len(released) == 1


def test_one_answer_holds_no_more_than_the_quota_allows(wire: ThrottledWire) -> None:
    for _ in range(10):
        wire.data.append("t", bytes(3000))
    wire.set("consumer_byte_rate", 1000.0)
    response = wire.ask(fetch_request(wire, 0, min_bytes=20_000), FetchResponse, 12)
    assert 9000 < sum(sizes(response)) <= 10_000


def test_an_incremental_session_continues_after_an_empty_answer(wire: ThrottledWire) -> None:
    for _ in range(2):
        wire.data.append("t", bytes(6000))
    wire.set("consumer_byte_rate", 1000.0)
    began = wire.ask(fetch_request(wire, 0, session=(0, 0)), FetchResponse, 12)
    assert began.session_id > 0
    waits = wire.ask(fetch_request(wire, 1, session=(began.session_id, 1)), FetchResponse, 12)
    assert (waits.session_id, waits.responses, waits.throttle_time_ms > 0) == (began.session_id, [], True)
    wire.data.loop.advance(20_000)
    goes_on = wire.ask(fetch_request(wire, 1, session=(began.session_id, 2), topics=[]), FetchResponse, 12)
    assert sum(sizes(goes_on)) > 6000


def move_log_start(log: UnifiedLog) -> None:
    log.maybe_increment_log_start_offset(1)


def move_high_watermark(log: UnifiedLog) -> None:
    """Append a record of an open transaction, which readers of committed records do not get."""
    log.append_as_leader(memoryview(producer_batch(0, transactional=True)), leader_epoch=0)
    log.update_high_watermark(log.log_end_offset)


@pytest.mark.parametrize(("key", "value"), [("consumer_byte_rate", 1.0), ("request_percentage", 1e-9)])
@pytest.mark.parametrize("move", [move_log_start, move_high_watermark])
def test_offsets_of_a_withheld_answer_come_with_the_next_one(
    wire: ThrottledWire, move: Callable[[UnifiedLog], None], key: str, value: float
) -> None:
    """The session has noted them as sent."""
    wire.data.append("t", b"value")
    fields: dict[str, Any] = {"isolation_level": 1}
    began = wire.ask(fetch_request(wire, 1, session=(0, 0), **fields), FetchResponse, 12)
    partition = wire.data.replica_manager.partition("t", 0)
    move(partition.local_log)
    fields["topics"] = []
    wire.set(key, value)
    wire.ask(fetch_request(wire, 1), FetchResponse, 12)  # uses the quota up, without a session
    for epoch in (1, 2):
        waits = wire.ask(fetch_request(wire, 1, session=(began.session_id, epoch), **fields), FetchResponse, 12)
        assert waits.throttle_time_ms > 0
        assert waits.responses == []
    wire.set(key, None)
    sent = wire.ask(fetch_request(wire, 1, session=(began.session_id, 3), **fields), FetchResponse, 12)
    (part,) = sent.responses[0].partitions
    offsets = partition.offsets()
    assert (part.high_watermark, part.log_start_offset) == (offsets.high_watermark, offsets.log_start_offset)
    again = wire.ask(fetch_request(wire, 1, session=(began.session_id, 4), **fields), FetchResponse, 12)
    assert again.responses == []


def test_a_session_whose_first_answer_is_withheld_takes_no_slot(wire: ThrottledWire) -> None:
    for _ in range(2):
        wire.data.append("t", bytes(6000))
    wire.set("consumer_byte_rate", 1000.0)
    began = wire.ask(fetch_request(wire, 0, session=(0, 0)), FetchResponse, 12)
    waits = wire.ask(fetch_request(wire, 1, session=(0, 0)), FetchResponse, 12)
    assert (waits.session_id, waits.responses, waits.throttle_time_ms > 0) == (0, [], True)
    assert [*wire.data.broker.fetch_sessions.sessions] == [began.session_id]


@pytest.mark.parametrize("key", ["consumer_byte_rate", "request_percentage"])
@pytest.mark.parametrize("version", [12, 17])
def test_no_quota_applies_to_a_follower(
    wire: ThrottledWire, monkeypatch: pytest.MonkeyPatch, key: str, version: int
) -> None:
    """A default quota would apply to the client id with which the followers of members fetch."""
    manager = wire.data.replica_manager
    for _ in range(3):
        wire.data.append("t", bytes(6000))
    wire.set(key, 1.0 if key == "consumer_byte_rate" else 1e-9, client_id=None)
    monkeypatch.setattr(replica_fetch, "answer_replica", lambda *_: FetchResponse())
    monkeypatch.setattr(manager, "roles", SimpleNamespace())
    replica = {"replica_id": 2} if version < 15 else {"replica_state": ReplicaState(replica_id=2)}
    for offset in range(3):
        assert not isinstance(wire.send(fetch_request(wire, offset, **replica), version), Pending)
        assert wire.context.throttle_ms == 0
    monkeypatch.setattr(manager, "roles", None)
    answers = [wire.ask(fetch_request(wire, offset, **replica), FetchResponse, version) for offset in range(2)]
    assert answers[-1].throttle_time_ms > 0, "without other brokers, such a request is a consumer's"


def test_an_error_of_a_session_is_reported(wire: ThrottledWire) -> None:
    wire.set("request_percentage", 1e-9)
    response = wire.ask(fetch_request(wire, 0, session=(77, 1)), FetchResponse, 12)
    assert response.error_code == FetchSessionIdNotFoundError.code
    assert response.throttle_time_ms > 0


def test_a_fetch_that_waits_is_measured_when_it_is_answered(wire: ThrottledWire) -> None:
    wire.set("consumer_byte_rate", 10.0)
    answer = wire.send(fetch_request(wire, 0, max_wait_ms=500), 12)
    assert isinstance(answer, Pending)
    frames: list[Any] = []
    answer.on_answer(frames.append)
    wire.data.append("t", bytes(6000))
    wire.data.loop.run_soon()
    assert sum(sizes(wire.decoded(frames[0], FetchResponse, 12))) > 6000  # the first is sent, however large
    assert wire.ask(fetch_request(wire, 0), FetchResponse, 12).throttle_time_ms > 0


def test_a_fetch_that_waits_can_be_abandoned(wire: ThrottledWire) -> None:
    wire.set("consumer_byte_rate", 10.0)
    answer = wire.send(fetch_request(wire, 0, max_wait_ms=500), 12)
    assert isinstance(answer, Pending)
    answer.abandon()
    assert len(wire.data.purgatory) == 0
    ThrottledAnswer(b"").abandon()


def metric(wire: ThrottledWire, name: str, quota: str) -> float:
    samples = throttled_samples(wire.data.broker.services.quotas.get())
    (found,) = (s.value for s in samples if s.name.endswith(f"clientquotas_{name}") and s.labels["quota"] == quota)
    return found


def test_the_quota_that_asks_for_the_longest_wait_is_counted(wire: ThrottledWire) -> None:
    wire.set("request_percentage", 1e-9)
    wire.set("producer_byte_rate", 10.0)
    assert wire.ask(produce_request(wire, 5_000), ProduceResponse, 9).throttle_time_ms > 1000
    assert metric(wire, "throttled_total", "producer_byte_rate") == 1
    wire.set("controller_mutation_rate", 1.0)
    topics = [CreatableTopic(name="a", num_partitions=100, replication_factor=1)]
    wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=1), CreateTopicsResponse, 4)
    assert metric(wire, "throttled_total", "controller_mutation_rate") == 1


def test_request_time_throttles_any_api_and_counts_for_fetch(wire: ThrottledWire) -> None:
    wire.data.append("t", bytes(100))
    wire.set("request_percentage", 1e-9, user="ANONYMOUS")
    assert wire.ask(MetadataRequest(topics=[]), MetadataResponse, 12).throttle_time_ms > 0
    response = wire.ask(fetch_request(wire, 0), FetchResponse, 12)
    assert (response.throttle_time_ms > 0, response.responses) == (True, [])
    assert metric(wire, "throttled_total", "request_percentage") >= 2
    assert metric(wire, "queue_size", "request_percentage") >= 2
    assert metric(wire, "throttle_seconds_total", "request_percentage") > 0
    assert metric(wire, "throttled_total", "producer_byte_rate") == 0
    wire.data.loop.advance(100_000)
    assert metric(wire, "queue_size", "request_percentage") == 0
    wire.set("request_percentage", None, user="ANONYMOUS")
    assert wire.ask(MetadataRequest(topics=[]), MetadataResponse, 12).throttle_time_ms == 0


def test_partitions_created_and_deleted_are_counted(wire: ThrottledWire) -> None:
    wire.set("controller_mutation_rate", 1.0)
    topics = [CreatableTopic(name="a", num_partitions=10, replication_factor=1)]
    (created,) = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=1), CreateTopicsResponse, 7).topics
    assert created.error_code == NONE
    widened = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="a", count=14, assignments=None)], timeout_ms=1
    )
    old = wire.ask(widened, CreatePartitionsResponse, 2)
    assert (old.results[0].error_code, old.throttle_time_ms) == (NONE, 3000)
    refused = wire.ask(widened, CreatePartitionsResponse, 3)
    assert (refused.results[0].error_code, refused.throttle_time_ms) == (ThrottlingQuotaExceededError.code, 3000)
    topics[0].name = "b"
    again = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=1), CreateTopicsResponse, 7)
    assert (again.topics[0].error_code, again.throttle_time_ms) == (ThrottlingQuotaExceededError.code, 3000)
    asked = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1)
    assert wire.ask(asked, DeleteTopicsResponse, 6).responses[0].error_code == ThrottlingQuotaExceededError.code
    assert wire.muted_ms == 3000
    wire.data.loop.advance(3000)
    assert wire.ask(asked, DeleteTopicsResponse, 6).responses[0].error_code == NONE


def test_the_frame_is_well_formed_when_it_is_made_again(wire: ThrottledWire) -> None:
    wire.set("producer_byte_rate", 10.0)
    frame = wire.frame(produce_request(wire, 1000), 13)
    assert isinstance(frame, bytes)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)


def test_the_throttle_time_is_written_at_its_place_in_the_encoded_answer() -> None:
    """In each version of each answer that has the field; those with tagged fields after it have no such place."""
    without = set()
    for entry in REGISTRY.values():
        cls = response_class_of(import_module(entry.module).Request())
        for version in range(cls.VERSIONS.lowest, cls.VERSIONS.highest + 1):
            if has_field(cls, "throttle_time_ms", version):
                place = position_of(cls, "throttle_time_ms", version)
                expected = cls(throttle_time_ms=0x01020304).encode(version)
                if place is None:
                    without.add((cls.__name__, version))
                else:
                    assert write_int32(cls().encode(version), place, 0x01020304) == expected
    assert without == {
        *(("ProduceResponse", version) for version in range(10, 14)),
        *(("ApiVersionsResponse", version) for version in range(3, 5)),
    }


@pytest.mark.parametrize("version", [8, 12])
def test_a_long_answer_has_its_throttle_time_written_in_place(
    wire: ThrottledWire, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Otherwise it would be decoded and encoded in one turn, or the client would not get the throttle time."""
    wire.set("request_percentage", 1e-9)
    topics = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(3000)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    with monkeypatch.context() as patched:
        patched.setattr(MetadataResponse, "decode", None)
        frame = wire.frame(request, version)
    assert isinstance(frame, list)
    response = wire.decoded(frame, MetadataResponse, version)
    assert response.throttle_time_ms == wire.muted_ms > 0
    assert len(response.topics) == 3000


def test_a_long_answer_to_produce_tells_the_time_of_the_produce_quota(
    wire: ThrottledWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From version 10 on tagged fields follow the time: it is in the response before that is encoded."""
    monkeypatch.setattr(encoder, "PIECES_PER_PART", 64)
    create_topic(wire.data, "wide", 100)
    wire.set("producer_byte_rate", 1)
    partitions = [PartitionProduceData(index=index, records=memoryview(batch(b"v"))) for index in range(100)]
    topics = [TopicProduceData(name="wide", partition_data=partitions)]
    frame = wire.frame(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 10)
    assert isinstance(frame, list)
    response = wire.decoded(frame, ProduceResponse, 10)
    assert response.throttle_time_ms == wire.muted_ms > 0


def test_no_answer_is_left_as_it_is(wire: ThrottledWire) -> None:
    """A long request with acks=0 ends with an empty frame."""
    wire.set("request_percentage", 1e-9)
    quotas = wire.data.broker.services.quotas.get()
    route = Route(ApiKey.PRODUCE, 9, produce, StepRunner(wire.data.loop.call_soon, lambda: 0.0))
    measure = Measure(quotas, route, wire.context, produce_request(wire, 1), wire.data.broker.fetch_sessions)
    measure.wait_for(PRODUCE, 5000)
    assert measure.finish(b"") == b""


# -- share fetches --------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    world = ShareWorld(tmp_path)
    world.configure("g")
    create_topic(world, "t", 1)
    for _ in range(3):
        world.append("t", bytes(6000))
    yield world
    world.close()


class ThrottledMember(ThrottledWire):
    """Asks as a member of a share group does, through the dispatcher; the records stay where they are."""

    def __init__(self, world: ShareWorld) -> None:
        super().__init__(world)
        self.member: ShareMember = world.member()

    def fetch(self, *acks: tuple[int, int, list[int]], **fields: Any) -> ShareFetchResponse:
        return self.ask(self.request(*acks, **fields), ShareFetchResponse, 2)

    def request(self, *acks: tuple[int, int, list[int]], **fields: Any) -> ShareFetchRequest:
        """Build the session's next request, for one record."""
        member = self.member
        values: dict[str, Any] = {"share_session_epoch": member.epoch, "max_bytes": 1_000_000, "max_records": 1}
        topics = member.topics(*acks)
        member.epoch += 1
        return ShareFetchRequest(
            group_id=member.group,
            member_id=member.member_id,
            topics=topics,
            **{**values, "batch_size": 1, "min_bytes": 1, "max_wait_ms": 0, **fields},
        )


@pytest.fixture
def share_member(world: ShareWorld) -> ThrottledMember:
    return ThrottledMember(world)


def test_a_share_fetch_over_the_quota_releases_its_records(share_member: ThrottledMember, world: ShareWorld) -> None:
    share_member.set("consumer_byte_rate", 1000.0)
    first = share_member.fetch()
    assert (runs(first), first.throttle_time_ms) == ([(0, 0, 1)], 0)
    waits = share_member.fetch((0, 0, [1]))
    assert waits.throttle_time_ms > 0
    assert share_member.muted_ms == waits.throttle_time_ms
    (partition,) = partitions(waits)
    assert (partition.acknowledge_error_code, partition.acquired_records, offsets(waits)) == (NONE, [], [])
    assert world.member(member_id="n").acquired(max_records=1) == [(1, 1, 1)], "it was not delivered, and is free"
    world.loop.advance(20_000)
    assert runs(share_member.fetch()) == [(2, 2, 1)]


def test_one_share_fetch_holds_no_more_than_the_quota_allows(share_member: ThrottledMember, world: ShareWorld) -> None:
    share_member.set("consumer_byte_rate", 1000.0)
    assert runs(share_member.fetch(max_records=100, min_bytes=18_000)) == [(0, 0, 1)]


def test_request_time_holds_share_fetches_back(share_member: ThrottledMember, world: ShareWorld) -> None:
    share_member.set("request_percentage", 1e-9)
    waits = share_member.fetch()
    assert (runs(waits), waits.throttle_time_ms > 0) == ([], True)
    share_member.set("request_percentage", None)
    assert runs(share_member.fetch()) == [(0, 0, 1)]


def test_an_error_or_the_end_of_a_share_session_is_reported(share_member: ThrottledMember) -> None:
    share_member.set("request_percentage", 1e-9)
    share_member.fetch()
    wrong = share_member.fetch(share_session_epoch=7)
    assert (wrong.error_code, wrong.throttle_time_ms > 0) == (InvalidShareSessionEpochError.code, True)
    ended = share_member.fetch(share_session_epoch=-1)
    assert (ended.error_code, ended.throttle_time_ms > 0) == (NONE, True)


def test_a_share_fetch_that_waits_is_measured_when_it_is_answered(
    share_member: ThrottledMember, world: ShareWorld
) -> None:
    assert (runs(share_member.fetch()), runs(share_member.fetch())) == ([(0, 0, 1)], [(1, 1, 1)])
    share_member.set("consumer_byte_rate", 10.0)
    assert runs(share_member.fetch()) == [(2, 2, 1)]
    answer = share_member.send(share_member.request((0, 2, [1]), max_wait_ms=500), 2)
    assert isinstance(answer, Pending)
    frames: list[Any] = []
    answer.on_answer(frames.append)
    world.append("t", bytes(6000))
    for _ in range(2):  # the append ends the wait, then the request goes on
        world.loop.run_soon()
    waits = share_member.decoded(frames[0], ShareFetchResponse, 2)
    assert (runs(waits), waits.throttle_time_ms > 0) == ([], True)
    assert world.member(member_id="n").acquired() == [(3, 3, 1)]
