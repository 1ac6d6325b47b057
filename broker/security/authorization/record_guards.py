"""Authorization of requests that write records, and of those that describe or alter configs; refused elements of the
responses of APIs whose ``error_response`` builds none.

Source: KafkaApis, ControllerApis, ConfigHelper of Kafka 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.steps import Steps
from tidelog.broker.security.authorization.guard import ASKED_PER_STEP, ERRORS, FEW, Call, Handle, Need, Split, cluster
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.errors import (
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from tidelog.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from tidelog.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsResponseTopic
from tidelog.protocol.messages.offset_delete import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.protocol.messages.share_acknowledge import PartitionData, ShareAcknowledgeTopicResponse
from tidelog.protocol.record.record_batch import has_transactional_batch
from tidelog.protocol.schema.copies import with_fields

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.authorization.authorizer import Authorizer
    from tidelog.protocol.messages.produce import ProduceRequest

_FIRST_PRODUCE_OF_BATCHES = 3
_HEADERS_AT_ONCE = 64
"""Largest number of partitions whose batch headers are read at once; the handler appends to more in steps anyway."""
_WRITE = int(AclOperation.WRITE)

_CONFIG_NEEDS = {2: ResourceType.TOPIC, 32: ResourceType.GROUP}
"""Type of a config resource -> type of the resource whose ACLs decide."""
_CLUSTERS_CONFIGS = frozenset({4, 8, 16})  # brokers, their loggers, client metrics


# Produce


def produce(call: Call) -> Any:
    """Answer Produce, which needs WRITE of each topic, and of the transactional id if any batch is transactional."""
    topics = call.request.topic_data
    if call.context.owns_frame and _are_many(topics):  # other frames are valid only in this turn
        return _produce_many(call)
    if call.context.api_version >= _FIRST_PRODUCE_OF_BATCHES and any(map(_is_transactional, topics)):
        _require_transaction(call)
    if len(topics) == 1:
        if _may_write(call, topics[0]):
            return call.proceed()
        return _produce_in_part(call, topics, [])
    verdicts = [_may_write(call, topic) for topic in topics]
    if all(verdicts):
        return call.proceed()
    refused = [topic for topic, verdict in zip(topics, verdicts, strict=True) if not verdict]
    return _produce_in_part(call, refused, [topic for topic, verdict in zip(topics, verdicts, strict=True) if verdict])


def produce_shortcut(authorizer: Authorizer, module: Any, check: Handle) -> Handle:
    """Return the handler of produce requests, with a shortcut for requests of one partition without a transaction.

    The handler refuses transactional records in a request without a transactional id, so their headers need not be read
    here.
    """

    handle: Handle = module.handle_one

    def produce_one(broker: Broker, context: RequestContext, request: ProduceRequest) -> Any:
        if request.transactional_id is None:
            try:
                (topic,) = request.topic_data
                (_,) = topic.partition_data
            except ValueError:
                return check(broker, context, request)
            key = topic.name or topic.topic_id
            grants = context.grants
            if (
                grants is not None
                and grants.generation is authorizer.generation
                and grants.principal is context.principal
                and key in grants.writable
            ):
                return handle(broker, context, request)
            name = topic.name or broker.metadata.topic_names.get(topic.topic_id)
            if name and authorizer.learn(context, _WRITE, name, key):
                return handle(broker, context, request)
        return check(broker, context, request)

    return produce_one


def _require_transaction(call: Call) -> None:
    """Raise TransactionalIdAuthorizationFailedError unless the client may WRITE with the transactional id. For acks=0,
    raise CloseConnectionError instead.
    """
    transactional_id = call.request.transactional_id
    if transactional_id is None or not call.has_permission(
        Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    ):
        if not call.request.acks:
            raise CloseConnectionError("a produce request with acks=0 was refused")
        raise TransactionalIdAuthorizationFailedError


def _are_many(topics: list[Any]) -> bool:
    return len(topics) > FEW or sum(len(topic.partition_data) for topic in topics) > _HEADERS_AT_ONCE


def _produce_many(call: Call) -> Steps[Any]:
    if call.context.api_version >= _FIRST_PRODUCE_OF_BATCHES and (yield from _find_transactional(call.request)):
        _require_transaction(call)
    allowed: list[Any] = []
    refused: list[Any] = []
    for number, topic in enumerate(call.request.topic_data):
        (allowed if _may_write(call, topic) else refused).append(topic)
        if not number % ASKED_PER_STEP:
            yield None
    if refused:
        return (yield from _produce_in_part(call, refused, allowed))
    return (yield from call.settle(call.request))


def _produce_in_part(call: Call, refused: list[Any], allowed: list[Any]) -> Steps[Any]:
    """Append to the allowed topics. Raises CloseConnectionError for acks=0, as there is no answer to carry the
    error.
    """
    request = call.request
    response = yield from call.settle(with_fields(request, topic_data=allowed))
    if not request.acks:
        raise CloseConnectionError("a produce request with acks=0 was refused in part")
    if response.__class__ is bytes:  # the answer about one partition is encoded already
        response = ProduceResponse.decode(memoryview(response), call.context.api_version)
    more = yield from call.refuse(with_fields(request, topic_data=refused), TopicAuthorizationFailedError())
    response.responses.extend(more.responses)
    return response


def _may_write(call: Call, topic: Any) -> bool:
    name = call.topic_name(topic.name, topic.topic_id)
    return name is None or call.may_topic(AclOperation.WRITE, name)


def _find_transactional(request: Any) -> Steps[bool]:
    """Return whether any batch is transactional; read one header in a step."""
    for topic in request.topic_data:
        yield None
        for data in topic.partition_data:
            if has_transactional_batch(data.records, 1):
                return True
            yield None
    return False


def _is_transactional(topic: Any) -> bool:
    """Return whether any batch is transactional by its own header; the request's transactional id does not decide. One
    header is read of each partition, as in Kafka: more than one batch is refused."""
    return any(has_transactional_batch(data.records, 1) for data in topic.partition_data)


# Configs


def configs_check(operation: AclOperation, answer: str) -> Split:
    """Return the check of config resources: topics and groups by their own ACLs, all others by the cluster's."""

    def refusal(call: Call, resource: Any) -> KafkaError | None:
        resource_type = _CONFIG_NEEDS.get(resource.resource_type)
        if resource_type is not None:
            need = Need(operation, resource_type, resource.resource_name)
        elif resource.resource_type in _CLUSTERS_CONFIGS:
            need = cluster(operation)
        else:
            return None  # the handler says that there is no such type
        return None if call.has_permission(need) else ERRORS[need.resource_type]()

    return Split(refusal, array="resources", answer=answer)


# Refused elements for APIs whose error responses have none


def refuse_offset_deletion(topic: Any, error: KafkaError) -> OffsetDeleteResponseTopic:
    """Build a topic of OffsetDelete whose partitions are refused."""
    partitions = [
        OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=error.code)
        for one in topic.partitions
    ]
    return OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)


def refuse_acknowledgements(topic: Any, error: KafkaError) -> ShareAcknowledgeTopicResponse:
    """Build a topic of ShareAcknowledge whose partitions are refused."""
    partitions = [
        PartitionData(partition_index=one.partition_index, error_code=error.code, error_message=error.message)
        for one in topic.partitions
    ]
    return ShareAcknowledgeTopicResponse(topic_id=topic.topic_id, partitions=partitions)


def refuse_share_offsets(topic: Any, error: KafkaError) -> AlterShareGroupOffsetsResponseTopic:
    """Build a topic of AlterShareGroupOffsets whose partitions are refused."""
    partitions = [
        AlterShareGroupOffsetsResponsePartition(
            partition_index=one.partition_index, error_code=error.code, error_message=error.message
        )
        for one in topic.partitions
    ]
    return AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions)


def refuse_share_deletion(topic: Any, error: KafkaError) -> DeleteShareGroupOffsetsResponseTopic:
    """Build a topic of DeleteShareGroupOffsets that is refused."""
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name, error_code=error.code, error_message=error.message
    )
