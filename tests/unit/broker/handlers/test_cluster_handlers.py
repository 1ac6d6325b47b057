from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import CLUSTER_ID, AdminBroker, context_of
from tests.unit.broker.handlers.drive import drive
from tests.unit.broker.stepping import response_of
from tidelog.broker.handlers import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
)
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.security.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from tidelog.protocol.errors import (
    BrokerIdNotRegisteredError,
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    KafkaError,
    KafkaStorageError,
    LogDirNotFoundError,
    MismatchedEndpointTypeError,
    NoReassignmentInProgressError,
    NotLeaderOrFollowerError,
    ReplicaNotAvailableError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    UnsupportedEndpointTypeError,
)
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from tidelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("asked", [False, True])
def test_the_cluster_is_described(admin: AdminBroker, version: int, asked: bool) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=asked)
    response = drive(admin.broker, request, DescribeClusterResponse, version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, CLUSTER_ID, 1)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (1, "10.0.0.5", 9092, None)
    assert response.cluster_authorized_operations == (CLUSTER_OPERATIONS if asked else NOT_REQUESTED)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("kind", "error"), [(2, MismatchedEndpointTypeError), (3, UnsupportedEndpointTypeError)])
def test_there_are_no_controllers_to_describe(admin: AdminBroker, version: int, kind: int, error: type) -> None:
    response = drive(admin.broker, DescribeClusterRequest(endpoint_type=kind), DescribeClusterResponse, version)
    assert response.error_code == cast(Any, error).code
    assert response.error_message


def pages(admin: AdminBroker, limit: int, *names: str) -> list[list[tuple[str | None, list[int]]]]:
    """Return all pages, each as (topic, partition indexes)."""
    found = []
    cursor: Cursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        response = drive(admin.broker, request, DescribeTopicPartitionsResponse)
        found.append(
            [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics]
        )
        if response.next_cursor is None:
            return found
        cursor = Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )


def test_topics_come_page_by_page(admin: AdminBroker) -> None:
    create_topic(admin, "b", 3)
    create_topic(admin, "a", 2)
    assert pages(admin, 10) == [[("a", [0, 1]), ("b", [0, 1, 2])]]
    assert pages(admin, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]
    assert pages(admin, 3) == [[("a", [0, 1]), ("b", [0])], [("b", [1, 2])]]
    assert pages(admin, 0, "b") == [[("b", [0])], [("b", [1])], [("b", [2])]]


def test_the_brokers_limit_holds_too(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"max.request.partition.size.limit": "1"})
    create_topic(admin, "a", 2)
    assert pages(admin, 100) == [[("a", [0])], [("a", [1])]]


def test_an_unknown_topic_has_its_error_on_its_page(admin: AdminBroker) -> None:
    image = create_topic(admin, "a", 1)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="no"), TopicRequest(name="a")])
    known, unknown = drive(admin.broker, request, DescribeTopicPartitionsResponse).topics
    assert (known.topic_id, known.partitions[0].leader_id) == (image.topic_id, 1)
    assert (unknown.name, unknown.error_code) == ("no", UnknownTopicOrPartitionError.code)


def test_replicas_of_a_cluster_are_shown_as_the_image_has_them(admin: AdminBroker) -> None:
    image = create_topic(admin, "a", 1)
    state = image.partitions[0]._replace(replicas=(1, 2, 3), isr=(1,), elr=(2,), last_known_elr=(3,))
    admin.broker.metadata.put(image._replace(partitions=(state,)))
    (topic,) = drive(admin.broker, DescribeTopicPartitionsRequest(), DescribeTopicPartitionsResponse).topics
    (shown,) = topic.partitions
    assert (shown.replica_nodes, shown.isr_nodes) == ([1, 2, 3], [1])
    assert (shown.eligible_leader_replicas, shown.last_known_elr) == ([2], [3])
    assert shown.offline_replicas == next(iter(admin.broker.nodes.offline_replicas([state])))


def test_a_cursor_of_a_topic_deleted_meanwhile_continues_after_it(admin: AdminBroker) -> None:
    create_topic(admin, "c", 1)
    request = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="b", partition_index=5))
    response = drive(admin.broker, request, DescribeTopicPartitionsResponse)
    assert [topic.name for topic in response.topics] == ["c"]


def test_a_cursor_beyond_the_last_partition_gets_no_partitions(admin: AdminBroker) -> None:
    create_topic(admin, "a", 1)
    request = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="a", partition_index=5))
    response = drive(admin.broker, request, DescribeTopicPartitionsResponse)
    assert [topic.partitions for topic in response.topics] == [[]]
    assert response.next_cursor is None


def test_a_negative_cursor_is_refused(admin: AdminBroker) -> None:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name="a")], cursor=Cursor(topic_name="a", partition_index=-1)
    )
    response = drive(admin.broker, request, DescribeTopicPartitionsResponse)
    assert response.topics[0].error_code == InvalidRequestError.code
    assert describe_topic_partitions.error_response(request, InvalidRequestError()).topics[0].name == "a"


@pytest.mark.parametrize("version", range(3))
def test_no_election_is_needed(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "a", 1)
    asked = [TopicPartitions(topic="a", partitions=[0, 1]), TopicPartitions(topic="no", partitions=[0])]
    response = drive(admin.broker, ElectLeadersRequest(topic_partitions=asked), ElectLeadersResponse, version)
    codes = [[entry.error_code for entry in topic.partition_result] for topic in response.replica_election_results]
    unknown = UnknownTopicOrPartitionError.code
    assert codes == [[ElectionNotNeededError.code, unknown], [unknown]]
    whole = elect_leaders.error_response(ElectLeadersRequest(topic_partitions=asked), UnknownServerError())
    assert whole.replica_election_results[0].partition_result[1].error_code == -1


def test_an_election_everywhere_finds_nothing_to_do(admin: AdminBroker) -> None:
    create_topic(admin, "a", 1)
    response = drive(admin.broker, ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse)
    assert (response.error_code, response.replica_election_results) == (0, [])


@pytest.mark.parametrize("version", range(2))
def test_a_partition_can_be_reassigned_to_this_broker_only(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "a", 1)
    asked: list[tuple[int, list[int] | None]] = [(0, [1]), (0, None), (0, [2]), (0, []), (1, [1])]
    topic = ReassignableTopic(
        name="a", partitions=[ReassignablePartition(partition_index=index, replicas=ids) for index, ids in asked]
    )
    request = AlterPartitionReassignmentsRequest(topics=[topic, ReassignableTopic(name="no", partitions=[])])
    response = drive(admin.broker, request, AlterPartitionReassignmentsResponse, version)
    assert response.error_code == 0
    assert [partition.error_code for partition in response.responses[0].partitions] == [
        0,
        NoReassignmentInProgressError.code,
        InvalidReplicaAssignmentError.code,
        InvalidReplicaAssignmentError.code,
        UnknownTopicOrPartitionError.code,
    ]
    assert alter_partition_reassignments.error_response(request, UnknownServerError()).error_code == -1


def test_no_reassignment_is_ever_under_way(admin: AdminBroker) -> None:
    response = drive(admin.broker, ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse)
    assert (response.error_code, response.topics) == (0, [])


@pytest.mark.parametrize("version", range(3))
def test_the_quorum_is_this_node(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "a")
    topics = [
        TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)]),
        TopicData(topic_name="a", partitions=[PartitionData(partition_index=0)]),
    ]
    response = drive(admin.broker, DescribeQuorumRequest(topics=topics), DescribeQuorumResponse, version)
    quorum = response.topics[0].partitions[0]
    assert (quorum.error_code, quorum.leader_id, quorum.high_watermark) == (0, 1, admin.controller.end_offset)
    (voter,) = quorum.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, admin.controller.end_offset)
    assert voter.last_caught_up_timestamp == (admin.time.milliseconds() if version >= 1 else -1)
    assert response.topics[1].partitions[0].error_code == UnknownTopicOrPartitionError.code
    if version >= 2:
        assert response.nodes[0].listeners[0].port == 9092
    assert describe_quorum.error_response(DescribeQuorumRequest(), UnknownServerError()).error_code == -1


@pytest.mark.parametrize(("node_id", "error"), [(1, InvalidRequestError), (7, BrokerIdNotRegisteredError)])
def test_the_only_broker_cannot_leave(admin: AdminBroker, node_id: int, error: type) -> None:
    response = drive(admin.broker, UnregisterBrokerRequest(broker_id=node_id), UnregisterBrokerResponse)
    assert response.error_code == cast(Any, error).code


@pytest.mark.parametrize("version", range(3))
def test_a_replica_stays_in_its_directory(tmp_path: Path, version: int) -> None:
    admin = AdminBroker(tmp_path, {"log.dirs": f"{tmp_path}/one,{tmp_path}/two"})
    create_topic(admin, "a", 1)
    partition = SimpleNamespace(directory=f"{tmp_path}/one/a-0", when_open=lambda: None)
    replicas = cast(Any, SimpleNamespace(partition=lambda *_: partition))
    admin.broker = replace(admin.broker, replica_manager=replicas)
    topics = [AlterReplicaLogDirTopic(name="a", partitions=[0, 1])]
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=str(path), topics=topics) for path in (tmp_path / "one", tmp_path / "two", "/no")]
    )
    response = drive(admin.broker, request, AlterReplicaLogDirsResponse, version)
    (topic,) = response.results
    assert [(entry.partition_index, entry.error_code) for entry in topic.partitions] == [
        (0, 0),
        (1, ReplicaNotAvailableError.code),
        (0, InvalidRequestError.code),
        (1, ReplicaNotAvailableError.code),
        (0, LogDirNotFoundError.code),
        (1, LogDirNotFoundError.code),
    ]
    whole = response_of(alter_replica_log_dirs.error_response(request, UnknownServerError()))
    assert {entry.error_code for entry in whole.results[0].partitions} == {-1}
    named = [AlterReplicaLogDirTopic(name="a", partitions=[index]) for index in range(2)]
    spread = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/no", topics=[topic]) for topic in named])
    answered = response_of(alter_replica_log_dirs.error_response(spread, UnknownServerError()))
    assert [entry.partition_index for entry in answered.results[0].partitions] == [0, 1]


class UnopenedReplica:
    """A replica whose log a thread has to open before its directory is asked for."""

    def __init__(self, path: str, error: KafkaError | None = None) -> None:
        self._path, self._error = path, error
        self.opening: Deferred[None] | None = None

    def when_open(self) -> Deferred[None]:
        self.opening = Deferred()
        return self.opening

    @property
    def directory(self) -> str:
        assert self.opening is not None, "opened on the loop"
        assert self.opening.done
        if self._error is not None:
            raise self._error
        return self._path


def test_replicas_that_are_not_here_or_cannot_be_read_fail_alone(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"log.dirs": f"{tmp_path}/one"})
    create_topic(admin, "a", 3)
    replicas = [UnopenedReplica(f"{tmp_path}/one/a-0"), UnopenedReplica("", KafkaStorageError())]

    def partition(topic: str, index: int) -> UnopenedReplica:
        if index == 2:
            raise NotLeaderOrFollowerError
        return replicas[index]

    admin.broker = replace(admin.broker, replica_manager=cast(Any, SimpleNamespace(partition=partition)))
    topics = [AlterReplicaLogDirTopic(name="a", partitions=[2, 1, 0])]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=f"{tmp_path}/one", topics=topics)])
    answer = response_of(alter_replica_log_dirs.handle(admin.broker, context_of(2), request))
    for replica in reversed(replicas):
        assert replica.opening is not None
        replica.opening.complete(None)
    (topic,) = answer.result().results
    assert [(entry.partition_index, entry.error_code) for entry in topic.partitions] == [
        (2, ReplicaNotAvailableError.code),
        (1, KafkaStorageError.code),
        (0, 0),
    ]


def test_no_log_is_opened_for_a_directory_that_is_not_here(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"log.dirs": f"{tmp_path}/one"})
    create_topic(admin, "a", 1)
    replica = UnopenedReplica(f"{tmp_path}/one/a-0")
    admin.broker = replace(admin.broker, replica_manager=cast(Any, SimpleNamespace(partition=lambda *_: replica)))
    topics = [AlterReplicaLogDirTopic(name="a", partitions=[0])]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/no", topics=topics)])
    response = drive(admin.broker, request, AlterReplicaLogDirsResponse)
    assert response.results[0].partitions[0].error_code == LogDirNotFoundError.code
    assert replica.opening is None
