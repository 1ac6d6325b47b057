"""DeleteShareGroupOffsets v0: delete the offsets of a share group without members in some topics (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import with_lines
from tidelog.broker.share.config import check_enabled
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)

API_KEY = ApiKey.DELETE_SHARE_GROUP_OFFSETS
MIN_VERSION, MAX_VERSION = 0, 0
Request = DeleteShareGroupOffsetsRequest


def handle(
    broker: Broker, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Steps[DeleteShareGroupOffsetsResponse]:
    """Delete the offsets of each topic. Raises UnsupportedVersionError while share groups are disabled, and what
    ``ShareMembers.delete_offsets`` raises."""
    check_enabled(broker)
    change = coordinators_of(broker).share_members.delete_offsets(request)
    event = "share offsets deleted"
    return (yield from with_lines(change, changed_topics, event, context, request.group_id))


def changed_topics(response: DeleteShareGroupOffsetsResponse) -> Iterator[str | None]:
    """Yield the name of each topic whose offsets were deleted, and None for each other topic."""
    for topic in response.responses:
        yield topic.topic_name if not topic.error_code else None


def error_response(request: DeleteShareGroupOffsetsRequest, error: KafkaError) -> DeleteShareGroupOffsetsResponse:
    """Build an answer that has only the error."""
    return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
