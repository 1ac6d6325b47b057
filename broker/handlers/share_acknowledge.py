"""ShareAcknowledge v1-2: acknowledge acquired records without fetching more (KIP-932).

v2 renews locks (KIP-1222). A request with the final epoch ends the session: records that the member has acquired and
not acknowledged are released.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import error_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.share.acknowledging import Acknowledger, Outcomes, acknowledge_all, check_member
from tidelog.broker.share.config import check_enabled
from tidelog.broker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidShareSessionEpochError, KafkaError
from tidelog.protocol.messages.share_acknowledge import (
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

API_KEY = ApiKey.SHARE_ACKNOWLEDGE
MIN_VERSION, MAX_VERSION = 1, 2
Request = ShareAcknowledgeRequest


def handle(
    broker: Broker, context: RequestContext, request: ShareAcknowledgeRequest
) -> Steps[ShareAcknowledgeResponse]:
    """Acknowledge records; each partition has its own error.

    Raises UnsupportedVersionError, InvalidRequestError, ShareSessionNotFoundError, InvalidShareSessionEpochError.
    """
    check_enabled(broker)
    group_id, member_id = check_member(request.group_id, request.member_id)
    groups = coordinators_of(broker).share_groups
    key = SessionKey(group_id, member_id)
    if request.share_session_epoch == INITIAL_EPOCH:
        raise InvalidShareSessionEpochError
    session = groups.sessions.find(key, request.share_session_epoch)
    if request.share_session_epoch != FINAL_EPOCH:
        session.advance()
    who = Acknowledger(group_id, member_id, context.api_version, request.is_renew_ack)
    outcomes = yield from acknowledge_all(groups, broker.metadata, who, request.topics)
    released = groups.release_session(key) if request.share_session_epoch == FINAL_EPOCH else None
    yield from outcomes.values()
    yield released
    responses = yield from build_responses(outcomes)
    lock_ms = groups.config(group_id).limits.lock_duration_ms
    return ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms, responses=responses)


def build_responses(outcomes: Outcomes) -> Steps[list[ShareAcknowledgeTopicResponse]]:
    """Build the results of all partitions, grouped by topic."""
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for (topic_id, index), outcome in outcomes.items():
        error = error_of(outcome)
        topic = topics.setdefault(topic_id, ShareAcknowledgeTopicResponse(topic_id=topic_id))
        data = PartitionData(partition_index=index)
        if error is not None:
            data.error_code, data.error_message = error.code, error.message
        topic.partitions.append(data)
        yield None
    return list(topics.values())


def error_response(request: ShareAcknowledgeRequest, error: KafkaError) -> ShareAcknowledgeResponse:
    """Build an answer that has only the error."""
    return ShareAcknowledgeResponse(error_code=error.code, error_message=error.message)
