"""CreateTopics: create topics. The answer is sent when they exist and can be written to.

Versions
  0      name, counts or assignment, configs        1+  validate_only and error messages
  4+     -1 for counts means the broker's defaults (KIP-464)      5+  the created topic's counts and configs (KIP-525)
  6+     THROTTLING_QUOTA_EXCEEDED for a client that exceeds its quota (KIP-599)      7  topic ids
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.controller.replica_assignment import check_topic_assignment
from tidelog.broker.controller.topic_changes import USE_DEFAULT, Change, NewTopic
from tidelog.broker.controller.topics import check_partition_limit
from tidelog.broker.handlers.repeated_names import RepeatedNames
from tidelog.broker.loop.steps import Steps, apply_each, strip_traceback
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.quota.quotas import mutation_quota
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_line
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidConfigError, InvalidReplicaAssignmentError, InvalidRequestError, KafkaError
from tidelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

API_KEY = ApiKey.CREATE_TOPICS
MIN_VERSION = 0
MAX_VERSION = 7
Request = CreateTopicsRequest

_FIRST_VERSION_WITH_STRICT_QUOTA = 6


def handle(broker: Broker, context: RequestContext, request: CreateTopicsRequest) -> Steps[CreateTopicsResponse]:
    """Create each topic by itself: one that fails does not prevent the others.

    Raises PolicyViolationError for more partitions than one request may create, as Kafka's controller does.
    """
    check_partition_limit(sum(map(partial(count_wanted_partitions, broker), request.topics)))
    with Notes(broker.late_lines) as notes:
        results = yield from create_each(broker, context, request, notes)
        yield from notes.write()
    topics, described = [], DescribedConfigs(broker)
    for topic, result in results:
        yield result.done if isinstance(result, Change) else None
        topics.append(answer(described, topic, result))
    return CreateTopicsResponse(topics=topics)


def create_each(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest, notes: Notes
) -> Steps[list[tuple[CreatableTopic, Change | KafkaError]]]:
    """Begin to create each topic, one in each step."""
    names = RepeatedNames(topic.name for topic in request.topics)
    quota = mutation_quota(broker, context, strict_since=_FIRST_VERSION_WITH_STRICT_QUOTA)
    results: list[tuple[CreatableTopic, Change | KafkaError]] = []
    for topic in request.topics:
        if names.is_answered(topic.name):
            continue
        try:
            names.check(topic.name)
            quota.check()
            change = create(broker, topic, request.validate_only)
            quota.record(change.image.partition_count)
            results.append((topic, change))
            if not request.validate_only:
                notes.add(change.done, note_line("topic created", context, name=topic.name))
        except KafkaError as error:
            results.append((topic, strip_traceback(error)))
        yield None
    return results


def count_wanted_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """Return how many partitions a topic would have; 0 for numbers that are refused anyway."""
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == USE_DEFAULT:
        return broker.config.get_int("num.partitions")
    return max(topic.num_partitions, 0)


class DescribedConfigs:
    """Configs of new topics in one response; topics with equal configs of their own share one list."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    def of(self, image: TopicImage) -> list[CreatableTopicConfigs]:
        """Return the configs of a topic, its own and the defaults, as they were for the first topic with equal ones."""
        key = frozenset(image.configs.items())
        found = self._known.get(key)
        if found is None:
            found = [creatable_config(entry) for entry in self._broker.configs.describe_topic(image)]
            self._known[key] = found
        return found


def answer(described: DescribedConfigs, topic: CreatableTopic, result: Change | KafkaError) -> CreatableTopicResult:
    """Build the result for one topic."""
    try:
        if isinstance(result, KafkaError):
            raise result
        return describe_created(described, result.done.result())
    except KafkaError as error:
        return build_error_result(topic, error)


def create(broker: Broker, topic: CreatableTopic, validate_only: bool) -> Change:
    """Begin to create one topic. Raises a KafkaError if that is refused."""
    partitions = topic.num_partitions
    if topic.assignments:
        if partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
            raise InvalidRequestError("A manual partition assignment excludes a number of partitions and of replicas.")
        assignment = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
        if len(assignment) < len(topic.assignments):
            raise InvalidReplicaAssignmentError("A manual partition assignment names a partition twice.")
        check_topic_assignment(assignment, [broker.node_id])
        partitions = len(assignment)
    configs = read_configs(topic)
    new = NewTopic(topic.name, partitions, topic.replication_factor, configs, validate_only)
    return broker.topics.changes.create(new)


def read_configs(topic: CreatableTopic) -> dict[str, str]:
    """Read the topic's own configs. Raises InvalidConfigError for one without a value."""
    configs = {}
    for config in topic.configs:
        if config.value is None:
            raise InvalidConfigError(f"Null value not supported for topic configs: {config.name}")
        configs[config.name] = config.value
    return configs


def describe_created(described: DescribedConfigs, image: TopicImage) -> CreatableTopicResult:
    """Describe the new topic: partitions, replicas and configs."""
    return CreatableTopicResult(
        name=image.name,
        topic_id=image.topic_id,
        error_message=None,
        num_partitions=image.partition_count,
        replication_factor=1,
        configs=described.of(image),
    )


def creatable_config(entry: Any) -> CreatableTopicConfigs:
    """Convert one described config to this response's form."""
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
    )


def build_error_result(topic: CreatableTopic, error: KafkaError) -> CreatableTopicResult:
    """Build the answer for a topic that was not created."""
    return CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message, configs=[])


def error_response(request: CreateTopicsRequest, error: KafkaError) -> Steps[CreateTopicsResponse]:
    """Answer every topic with the error."""
    topics = yield from apply_each(request.topics, lambda topic: build_error_result(topic, error))
    return CreateTopicsResponse(topics=topics)
