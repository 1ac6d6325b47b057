"""DeleteTopics: delete topics. The answer is sent when they are gone and their names are free.

Versions: 0 names; 3+ TOPIC_DELETION_DISABLED where older versions get INVALID_REQUEST; 5+ error messages, and
THROTTLING_QUOTA_EXCEEDED for a client that exceeds its quota (KIP-599); 6 topics by name or by id (KIP-516).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.controller.topic_changes import Change
from tidelog.broker.loop.steps import Steps, find_distinct, strip_traceback
from tidelog.broker.quota.quotas import MutationQuota, mutation_quota
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_line
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError, TopicDeletionDisabledError, UnknownTopicIdError
from tidelog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.types import ZERO_UUID

API_KEY = ApiKey.DELETE_TOPICS
MIN_VERSION = 0
MAX_VERSION = 6
Request = DeleteTopicsRequest

_FIRST_VERSION_WITH_STRICT_QUOTA = 5


def handle(broker: Broker, context: RequestContext, request: DeleteTopicsRequest) -> Steps[DeleteTopicsResponse]:
    """Delete each topic by itself. A topic that is named twice, or by its name and by its id, is refused with one
    answer."""
    asked = yield from find_distinct(list_asked_topics(request), partial(identify, broker, {}))
    quota = mutation_quota(broker, context, strict_since=_FIRST_VERSION_WITH_STRICT_QUOTA)
    results: list[tuple[DeleteTopicState, Change | KafkaError]] = []
    with Notes(broker.late_lines) as notes:
        for key, topic in asked.items.items():
            try:
                if key in asked.repeated:
                    raise InvalidRequestError(f"Duplicate topic {'name' if topic.name is not None else 'id'}.")
                change = delete(broker, context, topic, quota)
                results.append((topic, change))
                notes.add(change.done, note_line("topic deleted", context, name=change.image.name))
            except KafkaError as error:
                results.append((topic, strip_traceback(error)))
            yield None
        yield from notes.write()
    responses = []
    for topic, result in results:
        yield result.done if isinstance(result, Change) else None
        responses.append(answer(topic, result))
    return DeleteTopicsResponse(responses=responses)


def answer(topic: DeleteTopicState, result: Change | KafkaError) -> DeletableTopicResult:
    """Build the result for one topic."""
    try:
        if isinstance(result, KafkaError):
            raise result
        image = result.done.result()
    except KafkaError as error:
        return build_error_result(topic, error)
    return DeletableTopicResult(name=image.name, topic_id=image.topic_id, error_message=None)


def list_asked_topics(request: DeleteTopicsRequest) -> Iterable[DeleteTopicState]:
    """List the request's topics in the form of version 6, for every version."""
    return request.topics or (DeleteTopicState(name=name) for name in request.topic_names)


def identify(
    broker: Broker, known: dict[str, tuple[str | None, bytes]], topic: DeleteTopicState
) -> tuple[str | None, bytes]:
    """Return the name or id of a topic in the request. A name that exists is given as its id: the topic may be named by
    both. ``known`` keeps what was returned for each name, because topics may be created or deleted between two steps. A
    repeated name must always be recognized: the authorizer does not check it, as this handler refuses it."""
    if topic.name is None or topic.topic_id != ZERO_UUID:
        return topic.name, bytes(topic.topic_id)
    if topic.name not in known:
        image = broker.metadata.topics.get(topic.name)
        known[topic.name] = (topic.name, ZERO_UUID) if image is None else (None, image.topic_id)
    return known[topic.name]


def delete(broker: Broker, context: RequestContext, topic: DeleteTopicState, quota: MutationQuota) -> Change:
    """Begin to delete one topic. Raises a KafkaError if that is refused."""
    name = topic.name
    if name is None:
        image = broker.metadata.topic_by_id(topic.topic_id)
        if image is None:
            raise UnknownTopicIdError
        name = image.name
    elif topic.topic_id != ZERO_UUID:
        raise InvalidRequestError("A topic to delete has a name or an id, not both.")
    quota.check()
    try:
        change = broker.topics.changes.delete(name)
    except TopicDeletionDisabledError as error:
        raise error if context.api_version >= 3 else InvalidRequestError(error.message) from error
    quota.record(change.image.partition_count)
    return change


def build_error_result(topic: DeleteTopicState, error: KafkaError) -> DeletableTopicResult:
    """Build the answer for a topic that was not deleted."""
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
    )


def error_response(request: DeleteTopicsRequest, error: KafkaError) -> DeleteTopicsResponse:
    """Answer every topic with the error."""
    return DeleteTopicsResponse(responses=[build_error_result(topic, error) for topic in list_asked_topics(request)])
