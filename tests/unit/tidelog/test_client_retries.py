"""Admin requests that are repeated: a coordinator that loads, a leader that moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tidelog.client.admin.groups import describe_group
from tidelog.client.admin.nodes import describe_log_dirs
from tidelog.client.admin.offsets import log_ends
from tidelog.client.admin.transactions import abort_in_partition, list_transactions
from tidelog.client.cluster import Cluster
from tidelog.client.connection import ClientError
from tidelog.client.records.member import GroupMember
from tidelog.commands.manage.group import parse_partitions
from tidelog.commands.records.consume import list_partitions
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.messages import (
    describe_groups,
    describe_producers,
    join_group,
    list_groups,
    list_offsets,
    offset_fetch,
    sync_group,
    write_txn_markers,
)
from tidelog.protocol.messages import describe_log_dirs as log_dirs
from tidelog.protocol.messages import list_transactions as listed
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidelog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

PLACE = ("paid", 0)


class Broker:
    """A connection to a broker that answers what a script says."""

    bootstrap = "broker:1"
    is_broken = False

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.requests: list[Any] = []
        self.timeout_s = 30.0
        self.join_s = 0.0

    @contextmanager
    def extend_timeout(self, timeout_s: float) -> Iterator[None]:
        before, self.timeout_s = self.timeout_s, timeout_s
        yield
        self.timeout_s = before

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(100), (0, 99))

    def send(self, request: object, response_type: type, version: int) -> Any:
        self.requests.append(request)
        if isinstance(request, join_group.JoinGroupRequest) and self.timeout_s < self.join_s:
            raise ClientError("no answer from broker:1: timed out")
        answer = self.answers.pop(0)
        assert isinstance(answer, response_type)
        return answer


class Scripted(Cluster):
    """A cluster of one such broker."""

    def __init__(self, answers: list[Any]) -> None:
        self._timeout_s = 60.0
        self._leaders = {}
        self.broker = Broker(answers)
        self._any = cast(Any, self.broker)

    def brokers(self) -> dict[int, tuple[str, int]]:
        return {1: ("broker", 1)}

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        return ("broker", 1)

    def client_for(self, address: tuple[str, int]) -> Any:
        return self.broker

    def coordinator(self, key: str, key_type: int) -> Any:
        return self.broker


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.cluster._PAUSE_S", 0)


def producers(code: int = 0) -> describe_producers.DescribeProducersResponse:
    state = describe_producers.ProducerState(producer_id=7, producer_epoch=1, current_txn_start_offset=5)
    partition = describe_producers.PartitionResponse(partition_index=0, error_code=code, active_producers=[state])
    topic = describe_producers.TopicResponse(name="paid", partitions=[partition])
    return describe_producers.DescribeProducersResponse(topics=[topic])


def written(code: int = 0) -> write_txn_markers.WriteTxnMarkersResponse:
    partition = write_txn_markers.WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
    topic = write_txn_markers.WritableTxnMarkerTopicResult(name="paid", partitions=[partition])
    marker = write_txn_markers.WritableTxnMarkerResult(producer_id=7, topics=[topic])
    return write_txn_markers.WriteTxnMarkersResponse(markers=[marker])


def transactions(code: int = 0) -> listed.ListTransactionsResponse:
    state = listed.TransactionState(transactional_id="till", producer_id=7, transaction_state="Ongoing")
    return listed.ListTransactionsResponse(error_code=code, transaction_states=[] if code else [state])


def groups() -> list_groups.ListGroupsResponse:
    group = list_groups.ListedGroup(group_id="g", protocol_type="consumer", group_state="Empty", group_type="classic")
    return list_groups.ListGroupsResponse(groups=[group])


def described(code: int = 0) -> describe_groups.DescribeGroupsResponse:
    group = describe_groups.DescribedGroup(error_code=code, group_id="g", group_state="Empty", protocol_type="consumer")
    return describe_groups.DescribeGroupsResponse(groups=[group])


LOADS, MOVED = CoordinatorLoadInProgressError.code, NotCoordinatorError.code
OTHER_LEADER = NotLeaderOrFollowerError.code
CASES: list[tuple[Callable[[Cluster], object], list[Any]]] = [
    (list_transactions, [transactions(LOADS), transactions(CoordinatorNotAvailableError.code), transactions()]),
    (
        lambda cluster: describe_group(cluster, "g"),
        [groups(), described(MOVED), groups(), described(LOADS), groups(), described(),
         offset_fetch.OffsetFetchResponse(topics=[])],
    ),
    (
        lambda cluster: abort_in_partition(cluster, PLACE, 5),
        [producers(OTHER_LEADER), producers(), written(OTHER_LEADER), written()],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "answers"), CASES, ids=["list transactions", "describe group", "abort in partition"])
def test_requests_with_a_temporary_error_are_repeated(
    ask: Callable[[Cluster], object], answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.client.admin.groups._known_ends", lambda cluster, places, silent: {})
    cluster = Scripted(list(answers))
    ask(cluster)
    assert cluster.broker.answers == []


def metadata(*leaders: int) -> MetadataResponse:
    """Build the metadata of a topic whose partitions have these leaders."""
    partitions = [
        MetadataResponsePartition(
            error_code=0,
            partition_index=number,
            leader_id=leader,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        for number, leader in enumerate(leaders)
    ]
    topic = MetadataResponseTopic(
        error_code=0, name="paid", topic_id=bytes(16), is_internal=False, partitions=partitions
    )  # fmt: skip
    return MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="broker", port=1)], topics=[topic])


def test_a_partition_without_a_leader_hides_no_other_one() -> None:
    broker = Broker([metadata(1, -1), metadata(1, -1), metadata(1, 1)])
    cluster = Cluster("broker:1", 60.0, connect=lambda _: cast(Any, broker))
    assert cluster.leader("paid", 0) == ("broker", 1)
    with pytest.raises(LeaderNotAvailableError, match="partition 1 has no leader"):
        cluster.leader("paid", 1)
    with pytest.raises(LeaderNotAvailableError, match=r"partitions \[1\] have no leader"):
        cluster.leaders("paid")
    assert cluster.leader("paid", 1) == ("broker", 1)


@pytest.mark.parametrize(
    "partitions",
    [
        lambda cluster: list_partitions(cluster, ("paid",), ()),
        lambda cluster: list_partitions(cluster, ("paid",), (0, 1)),
        lambda cluster: parse_partitions(cluster, ("paid",)),
        lambda cluster: parse_partitions(cluster, ("paid:0,1",)),
    ],
    ids=["consume", "consume --partition", "group reset", "group reset TOPIC:N"],
)
def test_commands_wait_for_the_election_of_a_leader(partitions: Callable[[Cluster], list[tuple[str, int]]]) -> None:
    found = list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name="paid",
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(partition_index=number, offset=9) for number in (0, 1)
                ],
            )
        ]
    )
    broker = Broker([metadata(1, -1), metadata(1, -1), metadata(1, 1), found])
    cluster = Cluster("broker:1", 60.0, connect=lambda _: cast(Any, broker))
    assert log_ends(cluster, partitions(cluster)) == {("paid", 0): 9, ("paid", 1): 9}


@pytest.mark.parametrize("allow_silent_leaders", [True, False])
def test_a_silent_leader_hides_the_lag_of_its_own_partitions_alone(
    monkeypatch: pytest.MonkeyPatch, allow_silent_leaders: bool
) -> None:
    """Partition 0 has a leader that answers, 1 one that does not, 2 has none."""
    committed = [
        offset_fetch.OffsetFetchResponsePartition(partition_index=number, committed_offset=5, metadata="")
        for number in range(3)
    ]
    offsets = offset_fetch.OffsetFetchResponse(
        topics=[offset_fetch.OffsetFetchResponseTopic(name="paid", partitions=committed)]
    )

    def ends(cluster: Cluster, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        assert ("paid", 2) not in places
        if ("paid", 1) in places:
            raise ClientError("broker:2: no answer")
        return dict.fromkeys(places, 9)

    monkeypatch.setattr("tidelog.client.admin.groups.log_ends", ends)
    cluster = Scripted([groups(), described(), offsets, metadata(1, 2, -1)])
    if allow_silent_leaders:
        group = describe_group(cluster, "g", allow_silent_leaders=True)
        assert [one.lag for one in group.partitions] == [4, None, None]
        assert (group.is_lag_known, group.lag) == (False, 4)
    else:
        with pytest.raises(ClientError, match="broker:2: no answer"):
            describe_group(cluster, "g")


def test_sizes_are_known_while_a_partition_has_no_leader() -> None:
    found = describe_log_dirs_response("paid", [0, 1])
    cluster = Scripted([metadata(-1, 1), found])
    (directory,) = describe_log_dirs(cluster, ["paid"])
    assert [one.partition for one in directory.partitions] == [0, 1]
    assert cluster.broker.requests[-1].topics[0].partitions == [0, 1]


def describe_log_dirs_response(topic: str, partitions: list[int]) -> log_dirs.DescribeLogDirsResponse:
    parts = [log_dirs.DescribeLogDirsPartition(partition_index=number, partition_size=1) for number in partitions]
    topics = [log_dirs.DescribeLogDirsTopic(name=topic, partitions=parts)]
    return log_dirs.DescribeLogDirsResponse(results=[log_dirs.DescribeLogDirsResult(log_dir="/d", topics=topics)])


def joined(**topics: str) -> join_group.JoinGroupResponse:
    """Build the answer to the leader ``a`` of a group, whose members subscribe to one topic each."""
    members = [
        join_group.JoinGroupResponseMember(
            member_id=member, metadata=ConsumerProtocolSubscription(topics=[topic]).encode_prefixed(1)
        )
        for member, topic in topics.items()
    ]
    return join_group.JoinGroupResponse(
        generation_id=1, member_id="a", leader="a", protocol_name="range", members=members
    )


def test_a_topic_that_does_not_exist_does_not_hold_up_a_group() -> None:
    missing = MetadataResponse(topics=[MetadataResponseTopic(name="gone", error_code=3)])
    synced = sync_group.SyncGroupResponse(assignment=ConsumerProtocolAssignment().encode_prefixed(1))
    cluster = Scripted([joined(a="paid", b="gone"), missing, metadata(-1, 1), synced])
    assert GroupMember(cluster, "g", ["paid"], lambda: None).poll()
    given = {
        one.member_id: ConsumerProtocolAssignment.decode_prefixed_lenient(one.assignment).assigned_partitions
        for one in cluster.broker.requests[-1].assignments
    }
    assert [(one.topic, one.partitions) for one in given["a"]] == [("paid", [0, 1])]
    assert given["b"] == []


def test_a_member_waits_as_long_as_a_rebalance_may_take() -> None:
    """A consumer of Kafka that is busy joins again within its max.poll.interval.ms, 300 s by default."""
    synced = sync_group.SyncGroupResponse(assignment=ConsumerProtocolAssignment().encode_prefixed(1))
    cluster = Scripted([joined(a="paid"), metadata(1), synced])
    cluster.broker.join_s = 300.0
    assert GroupMember(cluster, "g", ["paid"], lambda: None).poll()
    assert cluster.broker.timeout_s == 30.0
