"""CreatePartitions: add partitions to topics. The answer is sent when the partitions exist.

Versions 0 to 2 differ in encoding only; a client of v3 that exceeds its quota gets THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.replica_assignment import check_replicas
from tidelog.broker.handlers.repeated_names import RepeatedNames
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, strip_traceback
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.quota.quotas import mutation_quota
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_line
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidReplicaAssignmentError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

API_KEY = ApiKey.CREATE_PARTITIONS
MIN_VERSION = 0
MAX_VERSION = 3
Request = CreatePartitionsRequest

_FIRST_VERSION_WITH_STRICT_QUOTA = 3


def handle(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> Steps[CreatePartitionsResponse]:
    """Add partitions to each topic by itself."""
    with Notes(broker.late_lines) as notes:
        results = yield from widen_each(broker, context, request, notes)
        yield from notes.write()
    outcomes = []
    for topic, result in results:
        yield result if isinstance(result, Deferred) else None
        outcomes.append(outcome(topic, result))
    return CreatePartitionsResponse(results=outcomes)


def widen_each(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest, notes: Notes
) -> Steps[list[tuple[CreatePartitionsTopic, Deferred[TopicImage] | KafkaError]]]:
    """Begin to add partitions to each topic, one in each step."""
    names = RepeatedNames(topic.name for topic in request.topics)
    quota = mutation_quota(broker, context, strict_since=_FIRST_VERSION_WITH_STRICT_QUOTA)
    results: list[tuple[CreatePartitionsTopic, Deferred[TopicImage] | KafkaError]] = []
    for topic in request.topics:
        if names.is_answered(topic.name):
            continue
        try:
            names.check(topic.name)
            quota.check()
            image = broker.metadata.topics.get(topic.name)
            change = widen(broker, topic, request.validate_only)
            results.append((topic, change))
            if not request.validate_only:
                notes.add(change, note_line("partitions added", context, name=topic.name, count=topic.count))
            quota.record(topic.count - (image.partition_count if image is not None else 0))
        except KafkaError as error:
            results.append((topic, strip_traceback(error)))
        yield None
    return results


def outcome(topic: CreatePartitionsTopic, result: Deferred[TopicImage] | KafkaError) -> CreatePartitionsTopicResult:
    """Build the result for one topic."""
    try:
        if isinstance(result, KafkaError):
            raise result
        result.result()
    except KafkaError as error:
        return build_error_result(topic, error)
    return CreatePartitionsTopicResult(name=topic.name, error_message=None)


def widen(broker: Broker, topic: CreatePartitionsTopic, validate_only: bool) -> Deferred[TopicImage]:
    """Begin to add partitions to one topic. Raises a KafkaError if that is refused."""
    if topic.assignments is not None:
        image = broker.metadata.topics.get(topic.name)
        if image is None:
            raise UnknownTopicOrPartitionError
        added = topic.count - image.partition_count
        if added > 0 and len(topic.assignments) != added:
            raise InvalidReplicaAssignmentError(
                f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} assignment(s) "
                "were specified."
            )
        check_replicas([entry.broker_ids for entry in topic.assignments], [broker.node_id])
    return broker.topics.changes.widen(topic.name, topic.count, validate_only)


def build_error_result(topic: CreatePartitionsTopic, error: KafkaError) -> CreatePartitionsTopicResult:
    """Build the answer for a topic to which no partitions were added."""
    return CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)


def error_response(request: CreatePartitionsRequest, error: KafkaError) -> CreatePartitionsResponse:
    """Answer every topic with the error."""
    return CreatePartitionsResponse(results=[build_error_result(topic, error) for topic in request.topics])
