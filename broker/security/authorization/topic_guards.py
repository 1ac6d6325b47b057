"""Authorization of requests about topics: refused topics, topics left out of answers, and names that are hidden.

The answer about a name that a client may not DESCRIBE is the same whether the topic exists or not. CreateTopics is an
exception: it tells a client with CREATE that the topic exists. If the request has a topic id, the topic is looked up
first, and its name is hidden from a client that may not DESCRIBE it. Source: KafkaApis, ControllerApis,
DescribeTopicPartitionsRequestHandler of Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import TYPE_CHECKING, Any

from tidelog.broker.loop.steps import Steps
from tidelog.broker.security.authorization.guard import (
    ASKED_PER_STEP,
    FEW,
    Call,
    Handle,
    Need,
    Split,
    cluster,
    keep_allowed,
)
from tidelog.broker.security.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
    operations_of,
)
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.errors import KafkaError, TopicAuthorizationFailedError
from tidelog.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicState
from tidelog.protocol.messages.describe_topic_partitions import TopicRequest as PartitionsOfTopic
from tidelog.protocol.messages.metadata import MetadataResponseTopic
from tidelog.protocol.schema.copies import with_fields
from tidelog.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.authorization.authorizer import Authorizer
    from tidelog.protocol.messages.metadata import MetadataRequest

TOPIC = ResourceType.TOPIC
_DESCRIBE = int(AclOperation.DESCRIBE)
_TOPIC_OPERATIONS, _CLUSTER_OPERATIONS = operations_of(TOPIC_OPERATIONS), operations_of(CLUSTER_OPERATIONS)
_NO_TOPICS: frozenset[str | bytes] = frozenset()
_FIRST_METADATA_BY_ID = 12
_FIRST_DELETION_BY_ID = 6


def topics_check(operation: AclOperation, name: str = "name", **more: Any) -> Split:
    """Return the check of an array whose elements name topics in the field ``name``, or have topic ids. ``more`` is for
    ``Split``.
    """

    def refusal(call: Call, element: Any) -> KafkaError | None:
        topic = call.topic_name(getattr(element, name, None), getattr(element, "topic_id", ZERO_UUID))
        if topic is None or call.may_topic(operation, topic):
            return None
        return TopicAuthorizationFailedError()

    return Split(refusal, **more)


def end_offsets(call: Call) -> Any:
    """Answer OffsetForLeaderEpoch, which needs DESCRIBE of each topic, or CLUSTER_ACTION, which brokers have."""
    if call.has_permission(cluster(AclOperation.CLUSTER_ACTION), is_filter=True):
        return call.proceed()
    return _END_OFFSETS(call)


_END_OFFSETS = topics_check(AclOperation.DESCRIBE, "topic")


# Metadata


def metadata(call: Call) -> Any:
    """Answer Metadata: a request for all topics gets those that the client may DESCRIBE; a named topic that is refused
    gets an error.
    """
    topics = call.request.topics
    if topics and len(topics) <= FEW and not _asks_more(call):
        answers = [_refuse_topic(call, asked) for asked in topics]
        return call.proceed() if not any(answers) else _metadata_in_steps(call, answers)
    return _metadata_in_steps(call, None)


def metadata_shortcut(authorizer: Authorizer, module: Any, check: Handle) -> Handle:
    """Return the handler of Metadata, with a shortcut for few named topics that exist and that the client may
    DESCRIBE.
    """
    learn = authorizer.learn
    handle: Handle = module.handle

    def ask(broker: Broker, context: RequestContext, request: MetadataRequest) -> Any:
        topics, present, grants = request.topics, broker.metadata.topics, context.grants
        if (
            not topics
            or len(topics) > FEW
            or request.include_topic_authorized_operations
            or request.include_cluster_authorized_operations
        ):
            return check(broker, context, request)
        describable: Set[str | bytes] = _NO_TOPICS
        if grants is not None and grants.generation is authorizer.generation and grants.principal is context.principal:
            describable = grants.describable
        for topic in topics:
            name = topic.name
            if not name or topic.topic_id != ZERO_UUID or name not in present:
                return check(broker, context, request)
            if name not in describable and not learn(context, _DESCRIBE, name, name):
                return check(broker, context, request)
        return handle(broker, context, request)

    return ask


def _asks_more(call: Call) -> bool:
    """Return whether a request asks for operations, or for topics by id or without a name in a version without ids."""
    request, is_old = call.request, call.context.api_version < _FIRST_METADATA_BY_ID
    return (
        request.include_topic_authorized_operations
        or request.include_cluster_authorized_operations
        or (is_old and any(one.topic_id != ZERO_UUID or one.name is None for one in request.topics))
    )


def _metadata_in_steps(call: Call, answers: list[MetadataResponseTopic | None] | None) -> Steps[Any]:
    request, version = call.request, call.context.api_version
    if request.topics is None or (version == 0 and not request.topics):
        response = yield from call.settle(request)
        response.topics = yield from keep_allowed(
            call, response.topics, lambda topic: Need(AclOperation.DESCRIBE, TOPIC, topic.name)
        )
    elif version < _FIRST_METADATA_BY_ID and any(
        one.topic_id != ZERO_UUID or one.name is None for one in request.topics
    ):
        return (yield from call.settle(request))  # the handler refuses such topics in this version
    else:
        response = yield from _named_metadata(call, answers)
    yield from _tell_operations(call, response)
    return response


def _named_metadata(call: Call, answers: list[MetadataResponseTopic | None] | None) -> Steps[Any]:
    allowed, refused = [], []
    for number, asked in enumerate(call.request.topics):
        answer = _refuse_topic(call, asked) if answers is None else answers[number]
        if answer is None:
            allowed.append(asked)
        else:
            refused.append(answer)
        if not number % ASKED_PER_STEP:
            yield None
    response = yield from call.settle(with_fields(call.request, topics=allowed))
    if not allowed:
        response.topics = []  # in version 0 an empty list asked for all topics
    response.topics.extend({(topic.topic_id, topic.name): topic for topic in refused}.values())
    return response


def _refuse_topic(call: Call, asked: Any) -> MetadataResponseTopic | None:
    """Return the answer about a topic that the client may not DESCRIBE or create, None if the client may."""
    denied = TopicAuthorizationFailedError.code
    if asked.topic_id != ZERO_UUID:
        name = call.broker.metadata.topic_names.get(asked.topic_id)
        if name is None or call.may_topic(AclOperation.DESCRIBE, name):
            return None
        return MetadataResponseTopic(error_code=denied, name=None, topic_id=asked.topic_id)
    name = asked.name or ""
    if call.may_topic(AclOperation.DESCRIBE, name) and not _is_refused_creation(call, name):
        return None
    return MetadataResponseTopic(error_code=denied, name=asked.name)


def _is_refused_creation(call: Call, name: str) -> bool:
    """Return whether the request would create this topic, and the client may not create it."""
    allows = call.request.allow_auto_topic_creation or call.context.api_version < 4
    if not (allows and call.broker.config.get_bool("auto.create.topics.enable")):
        return False
    if call.broker.metadata.find(name) is not None:
        return False
    return not (
        call.has_permission(cluster(AclOperation.CREATE), is_filter=True) or call.may_topic(AclOperation.CREATE, name)
    )


def _tell_operations(call: Call, response: Any) -> Steps[None]:
    if response.cluster_authorized_operations != NOT_REQUESTED:
        response.cluster_authorized_operations = cluster_operations(call)
    yield from set_topic_operations(call, response)


def cluster_operations(call: Call) -> int:
    """Return the bit field of the operations that the client may do with the cluster: 0 without DESCRIBE."""
    need = cluster(AclOperation.DESCRIBE)
    return call.operations(_CLUSTER_OPERATIONS, need.resource_type, need.name) if call.has_permission(need) else 0


def set_topic_operations(call: Call, response: Any) -> Steps[None]:
    """Set the operations that the client may do with each topic, if the request asks for them."""
    for topic in response.topics:
        if topic.topic_authorized_operations != NOT_REQUESTED and topic.name is not None:
            topic.topic_authorized_operations = call.operations(_TOPIC_OPERATIONS, TOPIC, topic.name)
            yield None


def describe_cluster(call: Call, response: Any) -> Steps[None]:
    """Set the operations that the client may do with the cluster, if the request asks for them."""
    if response.cluster_authorized_operations != NOT_REQUESTED:
        response.cluster_authorized_operations = cluster_operations(call)
    yield None


def describe_partitions(call: Call) -> Steps[Any]:
    """Answer DescribeTopicPartitions: a request for all topics gets those that the client may DESCRIBE."""
    if call.request.topics:
        return (yield from _NAMED_PARTITIONS(call))
    cursor = call.request.cursor
    if cursor is not None and cursor.partition_index < 0:
        return (yield from call.settle(call.request))  # the handler refuses such a cursor
    names = []
    for number, name in enumerate(list(call.broker.metadata.topics)):
        is_left = cursor is None or name >= cursor.topic_name
        if is_left and call.may_topic(AclOperation.DESCRIBE, name, is_filter=True):
            names.append(name)
        if not number % ASKED_PER_STEP:
            yield None
    if cursor is not None and cursor.topic_name not in names:
        cursor = None
    asked = [PartitionsOfTopic(name=name) for name in names or [""]]  # an empty list would mean all topics
    response = yield from call.settle(with_fields(call.request, topics=asked, cursor=cursor))
    response.topics = [topic for topic in response.topics if not topic.error_code]
    yield from set_topic_operations(call, response)
    return response


_NAMED_PARTITIONS = topics_check(AclOperation.DESCRIBE, edit=set_topic_operations)


# Creating and deleting


def create_topics(call: Call) -> Any:
    """Answer CreateTopics, which needs CREATE of the cluster or of each topic. The answer has a topic's configs only if
    DESCRIBE_CONFIGS is allowed.
    """
    may_all = call.has_permission(cluster(AclOperation.CREATE), is_filter=True)
    counts = Counter(topic.name for topic in call.request.topics)

    def refusal(call: Call, topic: Any) -> KafkaError | None:
        if may_all or counts[topic.name] > 1 or call.may_topic(AclOperation.CREATE, topic.name):
            return None  # a repeated name is invalid, whether the topic exists or not
        return TopicAuthorizationFailedError("Authorization failed.")

    return Split(refusal, edit=_hide_configs)(call)


def _hide_configs(call: Call, response: Any) -> Steps[None]:
    for topic in response.topics:
        if not topic.error_code and not call.may_topic(AclOperation.DESCRIBE_CONFIGS, topic.name, is_filter=True):
            topic.topic_config_error_code = TopicAuthorizationFailedError.code
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
        yield None


def create_partitions(call: Call) -> Any:
    """Answer CreatePartitions, which needs ALTER of each topic."""
    counts = Counter(topic.name for topic in call.request.topics)

    def refusal(call: Call, topic: Any) -> KafkaError | None:
        if counts[topic.name] > 1 or call.may_topic(AclOperation.ALTER, topic.name):
            return None
        return TopicAuthorizationFailedError()

    return Split(refusal, answer="results", array="topics")(call)


def delete_topics(call: Call) -> Steps[Any]:
    """Answer DeleteTopics, which needs DELETE of the cluster or of each topic. Without DELETE of the cluster, a client
    that may not DESCRIBE a topic does not learn its name from its id, nor its id from its name.
    """
    if call.has_permission(cluster(AclOperation.DELETE), is_filter=True):
        return (yield from call.settle(call.request))
    request = call.request
    asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    counts = Counter((one.name, one.topic_id) for one in asked)
    allowed, refused = [], []
    for number, one in enumerate(asked):
        answer = None if counts[one.name, one.topic_id] > 1 else _refuse_deletion(call, one)
        if answer is None:
            allowed.append(one)
        else:
            refused.append(answer)
        if not number % ASKED_PER_STEP:
            yield None
    if call.context.api_version >= _FIRST_DELETION_BY_ID:
        left = with_fields(request, topics=allowed)
    else:
        left = with_fields(request, topic_names=[one.name for one in allowed])
    response = yield from call.settle(left)
    response.responses.extend(refused)
    return response


def _refuse_deletion(call: Call, asked: Any) -> DeletableTopicResult | None:
    """Return the answer about a topic that the client may not delete, None if the handler is to answer."""
    denied = TopicAuthorizationFailedError()
    if asked.name is not None:
        may_know = call.may_topic(AclOperation.DESCRIBE, asked.name, is_filter=True)
        is_there = asked.name in call.broker.metadata.topics
        if may_know and (not is_there or call.may_topic(AclOperation.DELETE, asked.name)):
            return None
        return DeletableTopicResult(name=asked.name, error_code=denied.code, error_message=denied.message)
    name = call.broker.metadata.topic_names.get(asked.topic_id)
    if name is None or call.may_topic(AclOperation.DELETE, name):
        return None
    may_know = call.may_topic(AclOperation.DESCRIBE, name, is_filter=True)
    return DeletableTopicResult(
        name=name if may_know else None,
        topic_id=asked.topic_id,
        error_code=denied.code,
        error_message=denied.message,
    )
