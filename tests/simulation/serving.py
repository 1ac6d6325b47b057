"""Requests of followers to a simulated process: the real fetch handler, with requests and responses encoded."""

from __future__ import annotations

from typing import Any

from tests.simulation.network import Reply
from tests.simulation.parts import Parts
from tests.support.slices import content_of
from tidelog.broker.handlers.fetch import handle as handle_fetch
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.errors import KafkaError, NotLeaderOrFollowerError
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.protocol.transferable import TransferableRecords

VERSION = 18
OFFSETS_VERSION = 11
LATEST = -1


def serve(parts: Parts, request: Any, reply: Reply) -> None:
    """Answer a Fetch or ListOffsets request, at once or later."""
    if isinstance(request, ListOffsetsRequest):
        reply(offsets(parts, ListOffsetsRequest.decode(request.encode(OFFSETS_VERSION), OFFSETS_VERSION)))
        return
    wired = FetchRequest.decode(request.encode(VERSION), VERSION)
    context = RequestContext()
    context.api_version = VERSION
    try:
        answer = handle_fetch(parts.broker, context, wired)
    except KafkaError as error:
        reply(FetchResponse(error_code=error.code))
        return
    if isinstance(answer, Deferred):
        answer.on_done(lambda done: reply(encode_and_decode(done.result())))
    else:
        assert isinstance(answer, FetchResponse)
        reply(encode_and_decode(answer))


def encode_and_decode(answer: FetchResponse) -> FetchResponse:
    """Encode and decode a response, as the network does; its slices of files are read now."""
    for topic in answer.responses:
        for data in topic.partitions:
            if isinstance(data.records, TransferableRecords):
                data.records = content_of(data.records)
    return FetchResponse.decode(bytes(answer.encode(VERSION)), VERSION)


def offsets(parts: Parts, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Build the response to a ListOffsets request of a follower."""
    topics = [
        ListOffsetsTopicResponse(name=topic.name, partitions=[offset_of(parts, one) for one in topic.partitions])
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


def offset_of(parts: Parts, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    """Return the start or the end of one partition's log, or an error."""
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=-1)
    try:
        partition = parts.replicas[asked.partition_index].partition
        partition.check_leader(asked.current_leader_epoch)
        answer.offset = partition.log_end_offset if asked.timestamp == LATEST else partition.log_start_offset
    except (KeyError, KafkaError) as error:
        answer.error_code = error.code if isinstance(error, KafkaError) else NotLeaderOrFollowerError.code
    return answer
