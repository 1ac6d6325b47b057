"""OffsetDelete v0: forget committed offsets of topics that the group does not read any more (KIP-496)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.handlers.partition_chunks import chunks_of
from tidelog.broker.loop.steps import Steps, all_settled
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.schema.copies import with_fields

API_KEY = ApiKey.OFFSET_DELETE
MIN_VERSION, MAX_VERSION = 0, 0
Request = OffsetDeleteRequest


def handle(broker: Broker, context: RequestContext, request: OffsetDeleteRequest) -> Steps[OffsetDeleteResponse]:
    """Delete, some partitions at a time; each partition has its own error."""
    delete = coordinators_of(broker).groups.delete_offsets
    deletions = []
    for topics in chunks_of(request.topics):
        deletions.append(delete(with_fields(request, topics=topics)))
        yield None
    answered = yield from all_settled(deletions)
    return OffsetDeleteResponse(topics=[topic for part in answered for topic in part.topics])


def error_response(request: OffsetDeleteRequest, error: KafkaError) -> OffsetDeleteResponse:
    """The error for the whole request."""
    return OffsetDeleteResponse(error_code=error.code)
