"""A produce request that differs from its connection's last one in its records alone.

A producer that fills one partition sends the same bytes before and after its batches again and again. So the first
such request is kept as a pattern, and of a request that matches only the records are looked at::

    request   | same | correlation id | same | length | records | same |
    response  | size | correlation id | same | first offset, log append time, log start | same |

Invariants: a request that matches is appended and answered as ``handlers/produce.py`` does it; all checks of the
records are those of the log. What is not the plain case (acks=0, transactions, a topic whose acknowledgements wait for
a sync, a log that is closed, quotas, records that take more than a turn) returns None before anything is changed and
goes the general way. The pattern was made by encoding what was decoded and comparing it with what came, so no field is
overlooked. One moment differs: while a topic's deletion waits for the disk, a pattern still appends, as requests by
topic id do, where a request by name is told that the topic is unknown already. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.replica.partition import Partition
from tidelog.log.records.work_budget import TURN, TooMuchForTurnError
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, MAGIC_OFFSET, MAGIC_V2, RECORD_BATCH_OVERHEAD
from tidelog.protocol.types import MalformedError, continue_unsigned_varint, unsigned_varint

FIRST_VERSION = 9
"""From here on messages are flexible: before, the records' length is an int32."""
_MARKS = (0x1122334455667701, 0x1122334455667702, 0x1122334455667703)
_MARKER = bytes(range(80, 96))
_THREE_OFFSETS = Struct(">qqq")
_REQUEST_START = 8
"""Place after the API key, version and correlation id."""
_SIZE_OF_SIZE = 4
_LENGTH = Struct(">i")
_unpack_version = Struct(">h").unpack_from
_PREFIX = Struct(">iix")
_unpack_length = _LENGTH.unpack_from
_LENGTH_OFFSET = 8
_ATTRIBUTES_LOW_BYTE, _TRANSACTIONAL = 22, 0x10


Refused = Callable[[KafkaError], ProduceResponse]
"""The response to such a request when its records are not appended."""


class RequestPattern(NamedTuple):
    """Pattern of a request: the pieces before the records' length, and what follows the records."""

    layout: Struct
    api: bytes
    before: bytes
    after: bytes


class ResponsePattern(NamedTuple):
    """Pattern of a response around its three offsets; ``before`` includes the header's tagged fields."""

    layout: Struct
    before: bytes
    after: bytes


class RepeatedProduce:
    """One connection's pattern. See the module."""

    __slots__ = ("_broker", "_bytes_in", "_messages_in", "_partition", "_refused", "_request", "_response")

    def __init__(
        self, broker: Broker, partition: Partition, patterns: tuple[RequestPattern, ResponsePattern], refused: Refused
    ) -> None:
        self._broker = broker
        self._bytes_in, self._messages_in = broker.metrics.bytes_in, broker.metrics.messages_in
        self._partition = partition
        self._request, self._response = patterns
        self._refused = refused

    def answer(self, frame: memoryview) -> bytes | None:
        """Append the records of ``frame`` if it matches and is the plain case; the response, else None."""
        layout, api, before, after = self._request
        position = layout.size
        if len(frame) < position + RECORD_BATCH_OVERHEAD:
            return None
        this_api, correlation_id, this_before = layout.unpack_from(frame)
        if this_before != before or this_api != api:
            return None
        length = frame[position]
        position += 1
        if length > 127:
            try:
                length, position = continue_unsigned_varint(frame, position, length)
            except (MalformedError, IndexError):
                return None
        end = position + length - 1
        records = frame[position:end]
        partition, broker = self._partition, self._broker
        if (
            length <= RECORD_BATCH_OVERHEAD or frame[end:] != after or records[MAGIC_OFFSET] != MAGIC_V2
            or records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL
            or _unpack_length(records, _LENGTH_OFFSET)[0] != length - 1 - LOG_OVERHEAD
            or broker.services.quotas.made is not None
        ):  # fmt: skip
            return None
        try:
            info = partition.append_at_once(records, TURN)
        except KafkaError as error:
            return self._refusal(error, correlation_id)
        except TooMuchForTurnError:
            return None
        if info is None:
            return None
        self._bytes_in.count += info.size_bytes
        partition.bytes_in += info.size_bytes
        self._messages_in.count += info.last_offset - info.first_offset + 1
        layout, before, after = self._response
        return layout.pack(
            layout.size - _SIZE_OF_SIZE, correlation_id, before,
            info.first_offset, info.log_append_time, info.log_start_offset, after,
        )  # fmt: skip

    def _refusal(self, error: KafkaError, correlation_id: int) -> bytes:
        """The answer where nothing was appended."""
        body = self._refused(error).encode(_unpack_version(self._request.api, 2)[0])
        return _PREFIX.pack(len(body) + _PREFIX.size - _SIZE_OF_SIZE, correlation_id) + body


def repeated_produce(
    broker: Broker, version: int, request: ProduceRequest, where: tuple[memoryview, int], refused: Refused
) -> RepeatedProduce | None:
    """The pattern of an answered request, None where it is not of the kind that repeats.

    ``where`` are the frame and the position at which its message begins.
    """
    frame, position = where
    pattern = request_pattern(version, request, frame, position)
    if pattern is None:
        return None
    topic = request.topic_data[0]
    index = topic.partition_data[0].index
    manager = broker.replica_manager
    try:
        partition = (
            manager.partition(topic.name, index) if topic.name else manager.partition_by_id(topic.topic_id, index)
        )
    except KafkaError:
        return None
    if partition.__class__ is not Partition or partition.is_internal or not partition.is_open:
        return None
    return RepeatedProduce(broker, partition, (pattern, response_pattern(version, topic, index)), refused)


def request_pattern(version: int, request: ProduceRequest, frame: memoryview, position: int) -> RequestPattern | None:
    """Build the pattern of requests like this one; None for one of several partitions, of a transaction, without an
    answer, of acks that are refused, or one whose encoding is not what came."""
    if (
        version < FIRST_VERSION
        or request.acks not in (1, -1)
        or request.transactional_id is not None
        or len(request.topic_data) != 1
        or len(request.topic_data[0].partition_data) != 1
        or request.topic_data[0].partition_data[0].records is None
    ):
        return None
    topic = request.topic_data[0]
    marked = PartitionProduceData(index=topic.partition_data[0].index, records=memoryview(_MARKER))
    marked_topic = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[marked])
    marked_request = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms, topic_data=[marked_topic])
    before, _, after = marked_request.encode(version).partition(_MARKER)
    before = before.removesuffix(unsigned_varint(len(_MARKER) + 1))
    records = topic.partition_data[0].records
    assert records is not None
    if b"".join((before, unsigned_varint(len(records) + 1), records, after)) != frame[position:]:
        return None
    before = bytes(frame[_REQUEST_START:position]) + before
    return RequestPattern(Struct(f">4si{len(before)}s"), bytes(frame[:4]), before, after)


def response_pattern(version: int, topic: TopicProduceData, index: int) -> ResponsePattern:
    """Build the pattern of the answers to such requests."""
    first, append_time, log_start = _MARKS
    partition = PartitionProduceResponse(
        index=index, base_offset=first, log_append_time_ms=append_time, log_start_offset=log_start
    )
    answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])
    body = ProduceResponse(responses=[answer]).encode(version)
    before, _, after = body.partition(_THREE_OFFSETS.pack(*_MARKS))
    before = b"\0" + before  # no tagged fields in the header
    return ResponsePattern(Struct(f">ii{len(before)}sqqq{len(after)}s"), before, after)
