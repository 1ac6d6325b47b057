"""Handlers of groups and transactions: every version of each is decoded, answered and encoded, with success and with an
error."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.coordinators import GroupWorld, TransactionWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.errors import code_for_old_producer
from tidelog.broker.coordinator.group.coordinator import GroupCoordinator
from tidelog.broker.coordinator.produce_check import check_transactional_batch
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.handlers.partition_chunks import CHUNK
from tidelog.broker.loop.deferred import Deferred, NotReadyError, deferred_value
from tidelog.broker.loop.lazy import Lazy
from tidelog.broker.metadata.image import GROUP_METADATA_TOPIC, TopicImage, single_replica_states
from tidelog.broker.network.advertised_address import LoneNode
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.security.late_lines import LateLines
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    NonEmptyGroupError,
    NotEnoughReplicasError,
    OperationNotAttemptedError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest
from tidelog.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from tidelog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.list_groups import ListGroupsRequest
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidelog.protocol.record.record_batch import BatchOptions, Record, RecordBatch, build_batch

T = bytes([1] * 16)


class PlainPartition:
    """A partition that keeps what is appended."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        entry = SimpleNamespace(
            producer_id=7,
            producer_epoch=1,
            last_sequence=3,
            last_timestamp=4,
            coordinator_epoch=0,
            current_txn_first_offset=9,
        )
        self.active_producers = lambda _: iter([[entry], [entry]])  # two chunks may have the same producer

    def when_open(self) -> None:
        """Return None: it is open."""

    def append_records(self, records: memoryview, **_: Any) -> SimpleNamespace:
        self.batches.append(bytes(records))
        self.high_watermark = len(self.batches)
        self.when_committed = lambda _: deferred_value(None)
        return SimpleNamespace(last_offset=len(self.batches) - 1)


class World:
    """A broker as handlers see it, over coordinators in memory."""

    def __init__(self) -> None:
        time = ManualTime()
        self.groups = GroupWorld(time=time)
        self.transactions = TransactionWorld(time=time)
        self.partition = PlainPartition()
        self.verification = True
        config: Any = SimpleNamespace(
            node_id=1, advertised_listeners={}, get_bool=lambda _: self.verification, get=lambda _: None
        )
        self.broker: Any = SimpleNamespace(
            node_id=1,
            nodes=LoneNode(config),
            peers=None,
            time=time,
            config=config,
            metadata=self.groups.metadata,
            replica_manager=SimpleNamespace(partition=self.find),
            producer_ids=SimpleNamespace(take=lambda: 5, when_available=lambda: deferred_value(None)),
            imports=SimpleNamespace(is_loaded=lambda _name: True),
            services=SimpleNamespace(coordinators=Lazy(self.coordinators)),
            late_lines=LateLines(lambda turn: None, lambda: 0.0),
        )

    def coordinators(self) -> Any:
        return SimpleNamespace(
            groups=self.groups.coordinator,
            transactions=self.transactions.coordinator,
            append_end_transaction=self.groups.coordinator.runtime.append_end_transaction,
        )

    def find(self, topic: str, index: int) -> PlainPartition:
        if topic not in self.groups.metadata.topics:
            raise UnknownTopicOrPartitionError
        return self.partition

    def context(self, version: int) -> RequestContext:
        context = RequestContext(local_host="here", local_port=9)
        context.api_version = version
        context.client_id = "c"
        return context

    def ask(self, request: Any, version: int) -> Any:
        """Ask over the wire and back: encode, decode, handle, encode, decode."""
        module = importlib.import_module(REGISTRY[request.API_KEY].module)
        decoded = module.Request.decode(memoryview(request.encode(version)), version)
        try:
            response = response_of(module.handle(self.broker, self.context(version), decoded))
        except KafkaError as error:
            response = response_of(module.error_response(decoded, error))
        if hasattr(response, "result"):
            response = response.result()
        return type(response).decode(memoryview(response.encode(version)), version)


JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
)
TOPIC_PARTITIONS = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
REQUESTS: dict[str, Any] = {
    "find": FindCoordinatorRequest(key="g", coordinator_keys=["g"]),
    "join": JOIN,
    "sync": SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range"),
    "heartbeat": HeartbeatRequest(group_id="g"),
    "leave": LeaveGroupRequest(group_id="g", member_id="m", members=[MemberIdentity(member_id="m")]),
    "offset_commit": OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="t", topic_id=T, partitions=[OffsetCommitRequestPartition(committed_offset=5)]
            )
        ],
    ),
    "offset_fetch": OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
        groups=[
            OffsetFetchRequestGroup(
                group_id="g", topics=[OffsetFetchRequestTopics(name="t", topic_id=T, partition_indexes=[0, 1])]
            )
        ],
    ),
    "offset_delete": OffsetDeleteRequest(
        group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition()])]
    ),
    "delete_groups": DeleteGroupsRequest(groups_names=["g"]),
    "describe_groups": DescribeGroupsRequest(groups=["g"]),
    "list_groups": ListGroupsRequest(),
    "consumer_heartbeat": ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    ),
    "consumer_describe": ConsumerGroupDescribeRequest(group_ids=["g"]),
    "init": InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_000),
    "add_partitions": AddPartitionsToTxnRequest(
        transactions=[AddPartitionsToTxnTransaction(transactional_id="x", producer_id=1001, topics=TOPIC_PARTITIONS)],
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1001,
        v3_and_below_topics=TOPIC_PARTITIONS,
    ),
    "add_offsets": AddOffsetsToTxnRequest(transactional_id="x", producer_id=1001, group_id="g"),
    "txn_commit": TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1001,
        topics=[
            TxnOffsetCommitRequestTopic(name="t", partitions=[TxnOffsetCommitRequestPartition(committed_offset=6)])
        ],
    ),
    "end": EndTxnRequest(transactional_id="x", producer_id=1001, committed=True),
    "markers": WriteTxnMarkersRequest(
        markers=[WritableTxnMarker(producer_id=7, topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])])]
    ),
    "producers": DescribeProducersRequest(topics=[ProducersTopic(name="t", partition_indexes=[0])]),
    "transactions": DescribeTransactionsRequest(transactional_ids=["x"]),
    "list_transactions": ListTransactionsRequest(),
}
#: What must have been asked before for the answer to be a good one.
FIRST = {
    "offset_fetch": ["offset_commit"],
    "offset_delete": ["offset_commit"],
    "delete_groups": ["offset_commit"],
    "describe_groups": ["join"],
    "list_groups": ["join"],
    "consumer_describe": ["consumer_heartbeat"],
    "add_partitions": ["init"],
    "add_offsets": ["init"],
    "txn_commit": ["init", "add_offsets"],
    "end": ["init", "add_partitions"],
    "transactions": ["init"],
    "list_transactions": ["init"],
}
#: Requests of members that this table has no member for: their good answers are tested with the state machines.
OF_MEMBERS = {"sync", "heartbeat", "leave"}


def every_version(names: list[str]) -> list[Any]:
    found = []
    for name in names:
        entry = REGISTRY[REQUESTS[name].API_KEY]
        found += [pytest.param(name, v, id=f"{name}-v{v}") for v in range(entry.min_version, entry.max_version + 1)]
    return found


def error_codes(value: Any) -> list[int]:
    """Return all error codes in an answer, wherever they stand."""
    codes = []
    for field in value.FIELDS:
        found = getattr(value, field.name)
        if field.name.endswith("error_code"):
            codes.append(found)
        elif isinstance(found, list):
            codes += [code for item in found if hasattr(item, "FIELDS") for code in error_codes(item)]
    return codes


@pytest.mark.parametrize(("name", "version"), every_version([n for n in REQUESTS if n not in OF_MEMBERS]))
def test_every_version_is_answered(name: str, version: int) -> None:
    world = World()
    for before in FIRST.get(name, []):
        world.ask(REQUESTS[before], REGISTRY[REQUESTS[before].API_KEY].max_version if before == "init" else 1)
    response = world.ask(REQUESTS[name], version)
    needs_second_join = name == "join" and version >= 4
    missing_in_v0 = name == "offset_fetch" and version == 0
    assert set(error_codes(response)) - {0} == ({79} if needs_second_join else {3} if missing_in_v0 else set())


@pytest.mark.parametrize(("name", "version"), every_version(list(REQUESTS)))
def test_every_version_can_say_that_it_failed(name: str, version: int) -> None:
    request = REQUESTS[name]
    module = importlib.import_module(REGISTRY[request.API_KEY].module)
    decoded = module.Request.decode(memoryview(request.encode(version)), version)
    response = response_of(module.error_response(decoded, CoordinatorNotAvailableError()))
    code = CoordinatorNotAvailableError.code
    assert code in error_codes(type(response).decode(memoryview(response.encode(version)), version))


@pytest.mark.parametrize("version", range(6))
def test_a_member_joins_syncs_and_heartbeats_in_every_version(version: int) -> None:
    world = World()
    first = world.ask(JOIN, version)
    member_id = first.member_id
    if version >= 4:
        rejoin = JoinGroupRequest(**{f.name: getattr(JOIN, f.name) for f in JOIN.FIELDS})
        rejoin.member_id = member_id
        first = world.ask(rejoin, version)
    assert (first.generation_id, first.leader, len(first.members)) == (1, member_id, 1)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")],
    )
    assert bytes(world.ask(sync, version).assignment) == b"all"
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert world.ask(heartbeat, min(version, 4)).error_code == 0
    leave = LeaveGroupRequest(group_id="g", member_id=member_id, members=[MemberIdentity(member_id=member_id)])
    assert set(error_codes(world.ask(leave, version))) == {0}


@pytest.mark.parametrize("name", ["join", "sync", "leave", "init", "end"])
def test_a_request_waits_for_its_log_to_be_opened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route handles it again; an answer would make the client ask again after a pause."""
    world, opening = World(), Deferred[None]()
    for runtime in (world.groups.runtime, world.transactions.runtime):
        monkeypatch.setattr(runtime, "shard_for", Mock(side_effect=NotReadyError(opening)))
    request = REQUESTS[name]
    module = importlib.import_module(REGISTRY[request.API_KEY].module)
    with pytest.raises(NotReadyError):
        response_of(module.handle(world.broker, world.context(module.MAX_VERSION), request))


def test_sync_v5_must_name_the_protocol() -> None:
    assert World().ask(SyncGroupRequest(group_id="g"), 5).error_code == 23


@pytest.mark.parametrize(
    ("key_type", "key", "version", "error_code"),
    [
        (0, "g", 4, 0),
        (1, "x", 4, 0),
        (2, f"g:{'A' * 22}:0", 6, 0),
        (2, "g:x:0", 6, 42),
        (2, "g", 6, 42),
        (2, f"g:{'A' * 22}:0", 5, 42),
        (3, "g", 6, 42),
    ],
)
def test_each_key_type_has_a_coordinator_or_an_error(key_type: int, key: str, version: int, error_code: int) -> None:
    answer = World().ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), version)
    (found,) = answer.coordinators
    assert found.error_code == error_code
    assert (found.node_id, found.host, found.port) == ((1, "here", 9) if error_code == 0 else (-1, "", -1))


def test_find_coordinator_v0_returns_one_coordinator() -> None:
    answer = World().ask(FindCoordinatorRequest(key="g"), 0)
    assert (answer.node_id, answer.host, answer.port) == (1, "here", 9)


@pytest.mark.parametrize("is_raised", [True, False])
@pytest.mark.parametrize("good", [0, 1])
def test_completed_deletions_of_offsets_are_answered_although_later_ones_are_refused(
    good: int, is_raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long request is carried out in parts, between which a member may join."""
    world = World()
    asked: list[OffsetDeleteRequest] = []
    delete = world.groups.coordinator.delete_offsets

    def refuse_later(part: OffsetDeleteRequest) -> Any:
        asked.append(part)
        if len(asked) <= good:
            return delete(part)
        if is_raised:
            raise NonEmptyGroupError
        failed: Deferred[OffsetDeleteResponse] = Deferred()
        failed.fail(NonEmptyGroupError())
        return failed

    world.ask(REQUESTS["offset_commit"], 8)
    monkeypatch.setattr(GroupCoordinator, "delete_offsets", lambda _self, part: refuse_later(part))
    indexes = [OffsetDeleteRequestPartition(partition_index=index) for index in range(CHUNK + 1)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=indexes)])
    answer = world.ask(request, 0)
    codes = [one.error_code for topic in answer.topics for one in topic.partitions]
    assert (answer.error_code, len(codes)) == ((0, CHUNK + 1) if good else (NonEmptyGroupError.code, 0))
    assert not good or (codes[0], codes[-1]) == (0, NonEmptyGroupError.code)


# -- transactions ---------------------------------------------------------------------------------------------------


def test_idempotent_producers_need_no_coordinator() -> None:
    world = World()
    answer = world.ask(InitProducerIdRequest(transactional_id=None), 6)
    assert (answer.producer_id, answer.producer_epoch) == (5, 0)
    assert world.ask(InitProducerIdRequest(transactional_id=""), 6).error_code == 42


@pytest.mark.parametrize(
    ("name", "first_version"), [("init", 4), ("add_partitions", 2), ("add_offsets", 2), ("end", 2)]
)
def test_fenced_producers_get_the_error_code_of_their_version(name: str, first_version: int) -> None:
    world = World()
    world.transactions.init()
    world.transactions.init()
    request = REQUESTS[name]
    if name == "init":
        request = InitProducerIdRequest(
            transactional_id="x", transaction_timeout_ms=1_000, producer_id=999, producer_epoch=0
        )
    assert ProducerFencedError.code in error_codes(world.ask(request, first_version))
    if name != "init" or first_version > 3:
        old = error_codes(world.ask(request, first_version - 1))
        assert InvalidProducerEpochError.code in old
    assert code_for_old_producer(0) == 0


def test_one_missing_partition_keeps_all_out() -> None:
    world = World()
    world.transactions.init()
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0, 99])]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x", v3_and_below_producer_id=1001, v3_and_below_topics=topics
    )
    answer = world.ask(request, 3).results_by_topic_v3_and_below[0].results_by_partition
    assert [found.partition_error_code for found in answer] == [
        OperationNotAttemptedError.code,
        UnknownTopicOrPartitionError.code,
    ]


@pytest.mark.parametrize(("added", "error_code"), [(True, 0), (False, TransactionAbortableError.code)])
def test_partitions_are_verified_for_other_brokers(added: bool, error_code: int) -> None:
    world = World()
    producer = world.transactions.init()
    if added:
        world.transactions.add(producer, ("t", 0))
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="x", producer_id=1001, verify_only=True, topics=TOPIC_PARTITIONS
    )
    answer = world.ask(AddPartitionsToTxnRequest(transactions=[transaction]), 4)
    assert answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code == error_code


@pytest.mark.parametrize(
    ("version", "error_code"), [(3, InvalidTxnStateError.code), (4, TransactionAbortableError.code), (5, 0)]
)
def test_offsets_belong_to_the_transaction_before_they_are_committed(version: int, error_code: int) -> None:
    world = World()
    world.transactions.init()
    assert error_codes(world.ask(REQUESTS["txn_commit"], version)) == [error_code]
    partition = (GROUP_METADATA_TOPIC, world.groups.runtime.partition_for("g"))
    assert (partition in world.transactions.transaction().partitions) == (error_code == 0)


def test_offsets_of_a_fenced_producer_are_refused() -> None:
    world = World()
    world.transactions.init()
    world.transactions.init()
    assert error_codes(world.ask(REQUESTS["txn_commit"], 5)) == [InvalidProducerEpochError.code]


def test_without_verification_offsets_are_accepted() -> None:
    world = World()
    world.verification = False
    assert error_codes(world.ask(REQUESTS["txn_commit"], 3)) == [0]


def test_without_verification_the_partition_is_added_all_the_same() -> None:
    """These clients send no AddOffsetsToTxn: without the partition no marker would ever end the commit."""
    world = World()
    world.verification = False
    world.transactions.init()
    assert error_codes(world.ask(REQUESTS["txn_commit"], 5)) == [0]
    partition = (GROUP_METADATA_TOPIC, world.groups.runtime.partition_for("g"))
    assert partition in world.transactions.transaction().partitions


@pytest.mark.parametrize("commit", [True, False])
def test_markers_reach_data_partitions(commit: bool) -> None:
    world = World()
    marker = WritableTxnMarker(
        producer_id=7,
        producer_epoch=2,
        transaction_result=commit,
        topics=[
            WritableTxnMarkerTopic(name="t", partition_indexes=[0]),
            WritableTxnMarkerTopic(name="none", partition_indexes=[0]),
        ],
    )
    answer = world.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
    assert error_codes(answer) == [0, UnknownTopicOrPartitionError.code]
    batch = RecordBatch(world.partition.batches[0])
    assert (batch.is_control, batch.producer_id, batch.producer_epoch) == (True, 7, 2)


def test_markers_reach_committed_offsets() -> None:
    world = World()
    writer = BrokerMarkerWriter(world.broker, coordinators_of(world.broker))
    partition = (GROUP_METADATA_TOPIC, world.groups.runtime.partition_for("g"))
    with pytest.raises(UnknownTopicOrPartitionError):
        writer.write(partition, (1001, 0), commit=True)
    world.groups.metadata.put(TopicImage(GROUP_METADATA_TOPIC, b"o" * 16, single_replica_states(1, 50), {}, True))
    world.transactions.init()
    world.ask(REQUESTS["txn_commit"], 5)
    writer.write(partition, (1001, 0), commit=True)
    assert world.ask(REQUESTS["offset_fetch"], 8).groups[0].topics[0].partitions[0].committed_offset == 6


def test_producers_of_a_partition_are_described() -> None:
    world = World()
    topics = [ProducersTopic(name="t", partition_indexes=[0]), ProducersTopic(name="none", partition_indexes=[0])]
    known, unknown = world.ask(DescribeProducersRequest(topics=topics), 0).topics
    (producer,) = known.partitions[0].active_producers
    assert (producer.producer_id, producer.last_sequence, producer.current_txn_start_offset) == (7, 3, 9)
    assert unknown.partitions[0].error_code == UnknownTopicOrPartitionError.code


def test_a_partition_that_is_named_often_is_described_once() -> None:
    named = [ProducersTopic(name="t", partition_indexes=[0] * 100), ProducersTopic(name="t", partition_indexes=[0, 1])]
    (topic,) = World().ask(DescribeProducersRequest(topics=named), 0).topics
    assert [partition.partition_index for partition in topic.partitions] == [0, 1]


@pytest.mark.parametrize(
    ("request_", "answers"),
    [
        (DescribeGroupsRequest(groups=["a", "b"] * 100), "groups"),
        (ConsumerGroupDescribeRequest(group_ids=["a", "b"] * 100), "groups"),
        (DescribeTransactionsRequest(transactional_ids=["a", "b"] * 100), "transaction_states"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_group_or_transaction_that_is_named_often_is_described_once(request_: Any, answers: str) -> None:
    """Else a request of a megabyte has the members of one group in its answer 50,000 times."""
    assert len(getattr(World().ask(request_, 0), answers)) == 2


def test_an_open_transaction_is_described() -> None:
    world = World()
    world.transactions.add(world.transactions.init(), ("t", 1), ("t", 0))
    known, unknown = world.ask(DescribeTransactionsRequest(transactional_ids=["x", "y"]), 0).transaction_states
    assert (known.transaction_state, known.producer_id, known.transaction_timeout_ms) == ("Ongoing", 1001, 60_000)
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [("t", [0, 1])]
    assert unknown.error_code == TransactionalIdNotFoundError.code


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, True),
        ({"state_filters": ["Ongoing"]}, True),
        ({"state_filters": ["Empty", "Nonsense"]}, False),
        ({"state_filters": ["Nonsense"]}, False),
        ({"producer_id_filters": [1001]}, True),
        ({"producer_id_filters": [5]}, False),
        ({"duration_filter": 500}, True),
        ({"duration_filter": 5_000}, False),
        ({"transactional_id_pattern": "x|y"}, True),
        ({"transactional_id_pattern": "z"}, False),
    ],
)
def test_listed_transactions_pass_all_filters(fields: dict[str, Any], found: bool) -> None:
    world = World()
    world.transactions.add(world.transactions.init())
    world.transactions.advance(1_000)
    answer = world.ask(ListTransactionsRequest(**fields), 2)
    assert bool(answer.transaction_states) == found
    assert answer.unknown_state_filters == [n for n in fields.get("state_filters", []) if n == "Nonsense"]


def test_a_bad_pattern_of_transactional_ids_is_refused() -> None:
    assert World().ask(ListTransactionsRequest(transactional_id_pattern="("), 2).error_code != 0


# -- produce --------------------------------------------------------------------------------------------------------


def transactional(producer: tuple[int, int], *, is_transactional: bool = True, sequence: int = 0) -> memoryview:
    options = BatchOptions(
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, is_transactional=is_transactional
    )
    return memoryview(build_batch([Record(0, 0, None, b"v")], options))


def test_produce_v12_adds_the_partition() -> None:
    world = World()
    producer = world.transactions.init()
    check_transactional_batch(world.broker, 12, "x", ("t", 3), transactional(producer))
    assert world.transactions.transaction().partitions == {("t", 3)}
    assert world.transactions.transaction().client_version == 2


def test_a_batch_does_not_overtake_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that does not know the producer would take it, and then refuse the earlier one for good."""
    world = World()
    producer = world.transactions.init()
    add = Mock(side_effect=[ConcurrentTransactionsError(), deferred_value(None), deferred_value(None)])
    monkeypatch.setattr(world.transactions.coordinator, "add_partitions", add)
    with pytest.raises(ConcurrentTransactionsError):
        check_transactional_batch(world.broker, 12, "x", ("t", 3), transactional(producer))
    for sequence in (1, 5):
        with pytest.raises(OutOfOrderSequenceNumberError):
            check_transactional_batch(world.broker, 12, "x", ("t", 3), transactional(producer, sequence=sequence))
    for sequence in (0, 1):
        check_transactional_batch(world.broker, 12, "x", ("t", 3), transactional(producer, sequence=sequence))


@pytest.mark.parametrize(("version", "error"), [(10, InvalidTxnStateError), (11, TransactionAbortableError)])
def test_older_producers_must_have_added_it(version: int, error: type[KafkaError]) -> None:
    world = World()
    producer = world.transactions.init()
    with pytest.raises(error):
        check_transactional_batch(world.broker, version, "x", ("t", 3), transactional(producer))
    world.transactions.add(producer, ("t", 3))
    check_transactional_batch(world.broker, version, "x", ("t", 3), transactional(producer))


def test_plain_batches_and_brokers_without_verification_pass() -> None:
    world = World()
    check_transactional_batch(world.broker, 12, "x", ("t", 3), transactional((1, 0), is_transactional=False))
    world.verification = False
    check_transactional_batch(world.broker, 11, "x", ("t", 3), transactional((1, 0)))


@pytest.mark.parametrize(
    ("raised", "version", "expected"),
    [
        (ProducerFencedError, 12, InvalidProducerEpochError),
        (ConcurrentTransactionsError, 11, NotEnoughReplicasError),
        (ConcurrentTransactionsError, 12, ConcurrentTransactionsError),
        (CoordinatorNotAvailableError, 12, NotEnoughReplicasError),
    ],
)
def test_coordinator_errors_are_converted_to_those_of_produce(
    raised: type[KafkaError], version: int, expected: type[KafkaError]
) -> None:
    world = World()

    def refuse(*_: Any) -> None:
        raise raised

    refusing = SimpleNamespace(
        add_partitions=refuse, verify_partition=refuse, refused_batches=world.transactions.coordinator.refused_batches
    )
    world.broker.services.coordinators.get().transactions = refusing
    with pytest.raises(expected):
        check_transactional_batch(world.broker, version, "x", ("t", 3), transactional((1, 0)))


def test_an_unknown_producer_is_in_no_transaction() -> None:
    with pytest.raises(InvalidProducerIdMappingError):
        check_transactional_batch(World().broker, 12, "x", ("t", 3), transactional((1, 0)))
