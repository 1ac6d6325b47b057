"""AlterShareGroupOffsets v0: set the start offsets of a share group without members (KIP-932)."""

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
from tidelog.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)

API_KEY = ApiKey.ALTER_SHARE_GROUP_OFFSETS
MIN_VERSION, MAX_VERSION = 0, 0
Request = AlterShareGroupOffsetsRequest


def handle(
    broker: Broker, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Steps[AlterShareGroupOffsetsResponse]:
    """Set each partition's start offset; a group that does not exist is created. Raises UnsupportedVersionError while
    share groups are disabled, and what ``ShareMembers.alter_offsets`` raises."""
    check_enabled(broker)
    change = coordinators_of(broker).share_members.alter_offsets(request)
    event = "share offsets changed"
    return (yield from with_lines(change, changed_topics, event, context, request.group_id))


def changed_topics(response: AlterShareGroupOffsetsResponse) -> Iterator[str | None]:
    """Yield the name of each topic whose offsets were changed, and None for each other topic."""
    for topic in response.responses:
        yield topic.topic_name if any(not one.error_code for one in topic.partitions) else None


def error_response(request: AlterShareGroupOffsetsRequest, error: KafkaError) -> AlterShareGroupOffsetsResponse:
    """Build an answer that has only the error."""
    return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
