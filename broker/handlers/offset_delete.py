"""OffsetDelete v0: delete committed offsets of topics to which the group is not subscribed (KIP-496)."""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.handlers.partition_chunks import chunks_of
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import Steps, wait_for_all
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Lines, Notes, note_change
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.protocol.schema.copies import with_fields

API_KEY = ApiKey.OFFSET_DELETE
MIN_VERSION, MAX_VERSION = 0, 0
Request = OffsetDeleteRequest


def handle(broker: Broker, context: RequestContext, request: OffsetDeleteRequest) -> Steps[OffsetDeleteResponse]:
    """Delete offsets, some partitions at a time.

    If every chunk of the request was refused, the response has only the first chunk's error. Otherwise it has a result,
    or an error, for each partition.
    """
    deletions = []
    with Notes(broker.late_lines) as notes:
        for topics in chunks_of(request.topics):
            deletion = _delete(broker, with_fields(request, topics=topics))
            deletions.append(deletion)
            notes.add(deletion, note_offsets(context, request.group_id, deletion))
            yield None
        yield from notes.write()
    answered = yield from wait_for_all(deletions)
    if all(part.error_code for part in answered):
        return OffsetDeleteResponse(error_code=answered[0].error_code)
    return OffsetDeleteResponse(topics=[topic for part in answered for topic in part.topics])


def _delete(broker: Broker, part: OffsetDeleteRequest) -> Deferred[OffsetDeleteResponse]:
    """Let the coordinator delete the offsets of some partitions."""
    refuse = partial(_refuse, part)
    try:
        return coordinators_of(broker).groups.delete_offsets(part).recover(refuse)
    except KafkaError as error:
        return deferred_value(refuse(error))


def _refuse(part: OffsetDeleteRequest, error: KafkaError) -> OffsetDeleteResponse:
    """Build an answer that refuses all partitions: the error for the request, and for each partition."""
    topics = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=error.code)
                for one in topic.partitions
            ],
        )
        for topic in part.topics
    ]
    return OffsetDeleteResponse(error_code=error.code, topics=topics)


def note_offsets(context: RequestContext, group_id: str, deletion: Deferred[OffsetDeleteResponse]) -> Lines:
    """Write an audit line for each topic, with the partitions whose offsets were deleted."""
    for topic in deletion.result().topics:
        indexes = [one.partition_index for one in topic.partitions if not one.error_code]
        if indexes:
            note_change("offsets deleted", context, group=group_id, topic=topic.name, partitions=indexes)
        yield


def error_response(request: OffsetDeleteRequest, error: KafkaError) -> OffsetDeleteResponse:
    """Build an answer that has only the error."""
    return OffsetDeleteResponse(error_code=error.code)
