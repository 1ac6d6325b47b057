"""Authorization of requests about groups, share groups and transactions.

Source: KafkaApis of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.metadata.image import INTERNAL_TOPICS
from tidelog.broker.security.authorization.guard import (
    ASKED_PER_STEP,
    ERRORS,
    FEW,
    Call,
    Edit,
    Need,
    Split,
    cluster,
    keep_allowed,
)
from tidelog.broker.security.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED, operations_of
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    OperationNotAttemptedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.protocol.schema.copies import with_fields
from tidelog.protocol.types import ZERO_UUID
from tidelog.protocol.whole_groups import leave_out_repetitions

GROUP, TRANSACTIONAL_ID = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
DESCRIBE, WRITE = AclOperation.DESCRIBE, AclOperation.WRITE
_GROUP_OPERATIONS = operations_of(GROUP_OPERATIONS)
_DENIED = TopicAuthorizationFailedError.code
_COORDINATED = {0: GROUP, 1: TRANSACTIONAL_ID}
"""Key type of FindCoordinator -> type of the resource."""
# First versions of FindCoordinator with several keys, of OffsetFetch with an error for the group and with several
# groups, and of AddPartitionsToTxn between brokers.
_FIRST_BATCHED_COORDINATORS = 4
_FIRST_OFFSETS_WITH_ERROR = 2
_FIRST_OFFSETS_OF_GROUPS = 8
_FIRST_BROKERS_TRANSACTIONS = 4


def names_check(
    operation: AclOperation, resource_type: ResourceType, array: str, answer: str, edit: Edit | None = None
) -> Split:
    """Return the check of an array of names, of groups or of transactional ids. For the parameters see ``Split``."""

    def refusal(call: Call, name: str) -> KafkaError | None:
        return None if call.has_permission(Need(operation, resource_type, name)) else ERRORS[resource_type]()

    return Split(refusal, array=array, answer=answer, edit=edit)


# Coordinators


def find_coordinator(call: Call) -> Any:
    """Answer FindCoordinator, which needs DESCRIBE of the group or transactional id, or CLUSTER_ACTION for share keys,
    which only brokers use.
    """
    request = call.request
    resource_type = _COORDINATED.get(request.key_type)
    if resource_type is None:
        if request.key_type == 2 and not call.has_permission(cluster(AclOperation.CLUSTER_ACTION)):
            raise ClusterAuthorizationFailedError
        return call.proceed()
    if call.context.api_version >= _FIRST_BATCHED_COORDINATORS:
        return names_check(DESCRIBE, resource_type, "coordinator_keys", "coordinators")(call)
    call.require(Need(DESCRIBE, resource_type, request.key))
    return call.proceed()


# Offsets of groups


def fetch_offsets(call: Call) -> Steps[Any]:
    """Answer OffsetFetch, which needs DESCRIBE of each group and topic. A request for all topics gets those that the
    client may DESCRIBE.
    """
    request = call.request
    if call.context.api_version < _FIRST_OFFSETS_OF_GROUPS:
        if not call.has_permission(Need(DESCRIBE, GROUP, request.group_id)):
            if call.context.api_version < _FIRST_OFFSETS_WITH_ERROR:
                raise GroupAuthorizationFailedError
            return OffsetFetchResponse(error_code=GroupAuthorizationFailedError.code)
        topics, refused = yield from _split_topics(call, request.topics)
        response = yield from call.settle(with_fields(request, topics=topics))
        if not response.error_code:
            response.topics = yield from _known_topics(call, response.topics)
            response.topics.extend(map(_refuse_old_offsets, refused))
        return response
    return (yield from _offsets_of_groups(call, "name", _refuse_offsets))


def _offsets_of_groups(call: Call, name: str, refuse: Callable[[Any], Any]) -> Steps[Any]:
    """Answer a request for offsets of groups. ``name`` is the field that names a topic; ``refuse`` builds the error of
    a topic.
    """
    groups: list[Any] = []
    denied: list[Any] = []
    hidden: list[list[Any]] = []
    for group in leave_out_repetitions(call.request.groups):  # as the handlers do; they keep the order
        if call.has_permission(Need(DESCRIBE, GROUP, group.group_id)):
            topics, refused = yield from _split_topics(call, group.topics, name)
            groups.append(with_fields(group, topics=topics))
            hidden.append(refused)
        else:
            denied.append(group)
        yield None
    response = yield from call.settle(with_fields(call.request, groups=groups))
    for answer, refused in zip(response.groups, hidden, strict=False):
        if not answer.error_code:
            answer.topics = yield from _known_topics(call, answer.topics, name)
            answer.topics += yield from apply_each(refused, refuse)
    if denied:
        more = yield from call.refuse(with_fields(call.request, groups=denied), GroupAuthorizationFailedError())
        response.groups.extend(more.groups)
    return response


def _split_topics(
    call: Call, topics: list[Any] | None, name: str = "name"
) -> Steps[tuple[list[Any] | None, list[Any]]]:
    """Return the topics that the client may DESCRIBE, and those that it may not. For None, which asks for all topics,
    return None and no topic.
    """
    if topics is None:
        return None, []
    allowed: list[Any] = []
    refused: list[Any] = []
    for number, topic in enumerate(topics):
        (allowed if _may_know(call, topic, name) else refused).append(topic)
        if not number % ASKED_PER_STEP:
            yield None
    return allowed, refused


def _may_know(call: Call, topic: Any, field: str = "name", *, is_filter: bool = False) -> bool:
    name = call.topic_name(getattr(topic, field), getattr(topic, "topic_id", ZERO_UUID))
    return name is None or call.may_topic(DESCRIBE, name, is_filter=is_filter)


def _known_topics(call: Call, topics: list[Any], name: str = "name") -> Steps[list[Any]]:
    kept = []
    for number, topic in enumerate(topics):
        if _may_know(call, topic, name, is_filter=True):
            kept.append(topic)
        if not number % ASKED_PER_STEP:
            yield None
    return kept


def _refuse_old_offsets(topic: Any) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=_DENIED)
        for index in topic.partition_indexes
    ]
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


def _refuse_offsets(topic: Any) -> OffsetFetchResponseTopics:
    partitions = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=_DENIED)
        for index in topic.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def describe_share_offsets(call: Call) -> Steps[Any]:
    """Answer DescribeShareGroupOffsets, which needs DESCRIBE of each group and of its topics."""
    return (yield from _offsets_of_groups(call, "topic_name", _refuse_share_offsets))


def _refuse_share_offsets(topic: Any) -> DescribeShareGroupOffsetsResponseTopic:
    error = TopicAuthorizationFailedError()
    partitions = [
        DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, error_code=error.code, error_message=error.message
        )
        for index in topic.partitions
    ]
    return DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions)


# Describing and listing


def list_groups(call: Call) -> Steps[Any]:
    """Answer ListGroups: with DESCRIBE of the cluster by all groups, else by those that the client may DESCRIBE."""
    response = yield from call.settle(call.request)
    if not call.has_permission(cluster(DESCRIBE), is_filter=True):
        response.groups = yield from keep_allowed(
            call, response.groups, lambda group: Need(DESCRIBE, GROUP, group.group_id)
        )
    return response


def tell_group_operations(call: Call, response: Any) -> Steps[None]:
    """Set the operations that the client may do with each group, if the client has asked for them."""
    for group in response.groups:
        if group.authorized_operations != NOT_REQUESTED:
            group.authorized_operations = call.operations(_GROUP_OPERATIONS, GROUP, group.group_id)
            yield None


def described_groups_check(topics_of: Callable[[Any], Iterator[str]], text: str) -> Split:
    """Return the check of groups by DESCRIBE. A group with topics that the client may not DESCRIBE is answered with the
    error message ``text``, and without members. ``topics_of`` yields the topics in a group's description.
    """

    def edit(call: Call, response: Any) -> Steps[None]:
        for number, group in enumerate(response.groups):
            may_know = True
            for topic in dict.fromkeys(topics_of(group)):
                may_know = may_know and call.may_topic(DESCRIBE, topic)
                yield None
            if not may_know:
                kind = type(group)
                response.groups[number] = kind(group_id=group.group_id, error_code=_DENIED, error_message=text)
        yield from tell_group_operations(call, response)

    return names_check(DESCRIBE, GROUP, "group_ids", "groups", edit)


def assigned_topics(group: Any) -> Iterator[str]:
    """Yield the topics in the present and target assignments of a consumer or share group's members."""
    for member in group.members:
        for assignment in (member.assignment, getattr(member, "target_assignment", None)):
            if assignment is not None:
                yield from (found.topic_name for found in assignment.topic_partitions)


def topology_topics(group: Any) -> Iterator[str]:
    """Yield the topics of a streams group's topology."""
    topology = group.topology
    for subtopology in topology.subtopologies or () if topology is not None else ():
        yield from topics_of_subtopology(subtopology)


def topics_of_subtopology(subtopology: Any) -> Iterator[str]:
    """Yield every topic that a subtopology names."""
    yield from subtopology.source_topics
    yield from subtopology.repartition_sink_topics
    yield from (topic.name for topic in subtopology.repartition_source_topics)
    yield from (topic.name for topic in subtopology.state_changelog_topics)


# Heartbeats of the newer protocols


def subscribe(call: Call) -> Any:
    """Answer a heartbeat that may name topics: the client must have DESCRIBE of each."""
    return _proceed_knowing(call, call.request.subscribed_topic_names or ())


def streams_heartbeat(call: Call) -> Any:
    """Answer a streams heartbeat: the client must have DESCRIBE of each topic in the topology."""
    topology = call.request.topology
    names: list[str] = []
    for subtopology in topology.subtopologies if topology is not None else ():
        names.extend(topics_of_subtopology(subtopology))
    return _proceed_knowing(call, names)


def _proceed_knowing(call: Call, names: Iterable[str]) -> Any:
    """Call the handler if the client may DESCRIBE all these topics; many topics are checked in steps.

    Raises TopicAuthorizationFailedError.
    """
    once = list(dict.fromkeys(names))
    if len(once) > FEW:
        return _ask_in_steps(call, once)
    refused = [name for name in once if not call.may_topic(DESCRIBE, name)]
    if refused:
        raise TopicAuthorizationFailedError
    return call.proceed()


def _ask_in_steps(call: Call, names: list[str]) -> Steps[Any]:
    for number, name in enumerate(names):
        if not call.may_topic(DESCRIBE, name):
            raise TopicAuthorizationFailedError
        if not number % ASKED_PER_STEP:
            yield None
    return (yield from call.settle(call.request))


# Transactions


def init_producer_id(call: Call) -> None:
    """Check InitProducerId. Raises TransactionalIdAuthorizationFailedError, ClusterAuthorizationFailedError."""
    request = call.request
    if request.transactional_id is not None:
        call.require(Need(WRITE, TRANSACTIONAL_ID, request.transactional_id))
        if request.enable2_pc:
            call.require(Need(AclOperation.TWO_PHASE_COMMIT, TRANSACTIONAL_ID, request.transactional_id))
    elif not call.has_permission(cluster(AclOperation.IDEMPOTENT_WRITE), is_filter=True) and not call.may_any(
        WRITE, ResourceType.TOPIC
    ):
        raise ClusterAuthorizationFailedError


def add_partitions(call: Call) -> Any:
    """Answer AddPartitionsToTxn, which needs WRITE of the id and of each topic. If one topic is refused, none is added.
    From version 4 on only brokers may send it.
    """
    request = call.request
    if call.context.api_version >= _FIRST_BROKERS_TRANSACTIONS:
        call.require(cluster(AclOperation.CLUSTER_ACTION))
        return call.proceed()
    call.require(Need(WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id))
    if len(request.v3_and_below_topics) > FEW:
        return _add_many_partitions(call)
    refused = {topic.name for topic in request.v3_and_below_topics if not _may_add(call, topic.name)}
    return _answer_refused_topics(call, refused) if refused else call.proceed()


def _add_many_partitions(call: Call) -> Steps[Any]:
    refused = set()
    for number, topic in enumerate(call.request.v3_and_below_topics):
        if not _may_add(call, topic.name):
            refused.add(topic.name)
        if not number % ASKED_PER_STEP:
            yield None
    if refused:
        return _answer_refused_topics(call, refused)
    return (yield from call.settle(call.request))


def _may_add(call: Call, topic: str) -> bool:
    return topic not in INTERNAL_TOPICS and call.may_topic(WRITE, topic)


def _answer_refused_topics(call: Call, refused: set[str]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=_code_of(call, refused, topic.name, index),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in call.request.v3_and_below_topics
        ]
    )


def _code_of(call: Call, refused: set[str], topic: str, index: int) -> int:
    if topic in refused:
        return _DENIED
    image = call.broker.metadata.topics.get(topic)
    is_there = image is not None and 0 <= index < image.partition_count
    return OperationNotAttemptedError.code if is_there else UnknownTopicOrPartitionError.code


def hide_topics(call: Call, response: Any) -> Steps[None]:
    """Remove the topics that the client may not DESCRIBE from a DescribeTransactions response."""
    for state in response.transaction_states:
        state.topics = yield from keep_allowed(
            call, state.topics, lambda topic: Need(DESCRIBE, ResourceType.TOPIC, topic.topic)
        )


def hide_transactions(call: Call, response: Any) -> Steps[None]:
    """Remove the transactions that the client may not DESCRIBE from a ListTransactions response."""
    response.transaction_states = yield from keep_allowed(
        call, response.transaction_states, lambda state: Need(DESCRIBE, TRANSACTIONAL_ID, state.transactional_id)
    )
