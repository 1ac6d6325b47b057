"""DescribeShareGroupOffsets v0-1: start offsets of share groups (KIP-932). v1 adds the lag (KIP-1226)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.share.config import check_enabled
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)
from tidelog.protocol.whole_groups import leave_out_repetitions

API_KEY = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
MIN_VERSION, MAX_VERSION = 0, 1
Request = DescribeShareGroupOffsetsRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Steps[DescribeShareGroupOffsetsResponse]:
    """Describe each group; each has its own error. A group that is named without topics is described once, with the
    offsets of all its topics. Raises UnsupportedVersionError while share groups are disabled."""
    check_enabled(broker)
    members = coordinators_of(broker).share_members
    groups = []
    for asked in leave_out_repetitions(request.groups):
        groups.append((yield from members.describe_offsets(asked)))
        yield None
    return DescribeShareGroupOffsetsResponse(groups=groups)


def error_response(request: DescribeShareGroupOffsetsRequest, error: KafkaError) -> DescribeShareGroupOffsetsResponse:
    """Build a response with one error for every group."""
    return DescribeShareGroupOffsetsResponse(
        groups=[
            DescribeShareGroupOffsetsResponseGroup(
                group_id=group.group_id, error_code=error.code, error_message=error.message
            )
            for group in request.groups
        ]
    )
