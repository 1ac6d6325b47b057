"""A fetch that differs from its connection's last one in three numbers: correlation id, session epoch, fetch offset.

A consumer of one partition sends the same bytes again and again, except for these. So the first such request is kept as
a pattern, its response as another, and a request that matches is answered without being decoded, looked up and
encoded::

    request   | same | correlation id | same | session epoch | same | fetch offset | same |
    response  | size | correlation id | same | high watermark, last stable, log start | same | length | records | same |

Invariants: a request that matches gets the bytes that ``handlers/fetch.py`` would send for it, but that a batch which
would be cut at the size limit may be left off; any other case (nothing to read, an error, a closed or
offline log, a session in another epoch, quotas; for read_committed an open or an aborted transaction) returns None and
goes the general way, which decides. The pattern was made by encoding what was decoded and comparing it with what came,
so no field is overlooked.

Reading itself is the partition's (``broker/replica/fetch_cursor.py``). Loop thread only.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.replica.fetch_cursor import FetchCursor, FetchLimits
from tidelog.broker.replica.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchSession,
    FetchTarget,
    next_epoch,
)
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext
from tidelog.log.fetch import FetchIsolation
from tidelog.protocol.api_keys import ApiKey, response_header_version
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.transferable import TransferableRecords
from tidelog.protocol.types import Part, unsigned_varint

FIRST_VERSION = 12
"""From here on messages are flexible; before the records' length is an int32."""
_READ_COMMITTED = 1
_NO_EPOCH = -1
_OFFSETS = (0x1122334455667701, 0x1122334455667702, 0x1122334455667703)
_EPOCH_MARK = 0x11223344
_EPOCH = Struct(">i")
_OFFSET = Struct(">q")
_THREE_OFFSETS = Struct(">qqq")
_REQUEST_START = 8
"""Place after the API key, version and correlation id."""
_SIZE_OF_SIZE = 4
_MARKER_BYTES = 1 << 20
_COMMITTED = FetchIsolation.TXN_COMMITTED


class RequestPattern(NamedTuple):
    """Pattern of a request: its size, and the pieces around the three numbers."""

    size: int
    layout: Struct
    same: tuple[bytes, bytes, bytes, bytes]


class ResponsePattern(NamedTuple):
    """Pattern of a response: ``before`` includes the header's tagged fields, ``after`` follows the records."""

    layout: Struct
    before: bytes
    between: bytes
    after: bytes


class RepeatedFetch:
    """One connection's pattern. See the module."""

    __slots__ = (
        "_asked",
        "_broker",
        "_bytes_out",
        "_cursor",
        "_last_length",
        "_request",
        "_response",
        "_session",
        "_target",
    )

    def __init__(
        self,
        broker: Broker,
        cursor: FetchCursor,
        patterns: tuple[RequestPattern, ResponsePattern],
        session: tuple[FetchSession | None, FetchTarget | None, FetchPartition],
    ) -> None:
        """``session`` ends with what it asks."""
        self._broker = broker
        self._cursor = cursor
        self._request, self._response = patterns
        self._session, self._target, self._asked = session
        self._bytes_out = broker.metrics.bytes_out
        self._last_length = (0, b"")

    def answer(self, frame: memoryview) -> list[Part] | None:
        """The response to ``frame`` if it matches and is the plain case, else None."""
        size, layout, same = self._request
        if len(frame) != size:
            return None
        api, correlation_id, first, epoch, second, offset, third = layout.unpack(frame)
        if (api, first, second, third) != same or self._broker.services.quotas.made is not None:
            return None
        session, target = self._session, self._target
        if session is None or target is None:
            if epoch != FINAL_EPOCH:
                return None
        elif not self._may_go_on(session, target, epoch):
            return None
        cursor = self._cursor
        records = cursor.read(offset)
        if records is None:
            return None
        high_watermark, last_stable_offset, log_start_offset = cursor.offsets()
        if session is not None and target is not None:
            self._go_on(session, target, offset)
            target.sent_high_watermark, target.sent_log_start_offset = high_watermark, log_start_offset
        size = records.size
        self._bytes_out.count += size
        layout, before, between, after = self._response
        last_size, length = self._last_length
        if size != last_size:
            length = unsigned_varint(size + 1)
            self._last_length = (size, length)
        head = layout.pack(
            layout.size - _SIZE_OF_SIZE + len(length) + size + len(after), correlation_id, before,
            high_watermark, last_stable_offset, log_start_offset, between,
        )  # fmt: skip
        return [head + length, records, after]

    # ---- the session

    def _may_go_on(self, session: FetchSession, target: FetchTarget, epoch: int) -> bool:
        """Return whether the request is this session's next, and it still follows the one partition alone."""
        return (
            session.epoch == epoch
            and len(session.targets) == 1
            and session.targets.get(target.key) is target
            and self._broker.fetch_sessions.sessions.get(session.session_id) is session
        )

    def _go_on(self, session: FetchSession, target: FetchTarget, offset: int) -> None:
        """Apply the changes of a request and its response to a session."""
        self._broker.fetch_sessions.used(session)
        session.epoch = next_epoch(session.epoch)
        self._asked.fetch_offset = offset
        target.update(self._asked)  # another request may have asked for something else meanwhile


def repeated_fetch(
    broker: Broker, context: RequestContext, request: FetchRequest, frame: memoryview, position: int
) -> RepeatedFetch | None:
    """The pattern of an answered request, None where it is not of the kind that repeats.

    ``position`` is where the message begins in ``frame``.
    """
    version = context.api_version
    pattern = request_pattern(version, request, frame, position)
    if pattern is None:
        return None
    topic = request.topics[0]
    asked = topic.partitions[0]
    session = broker.fetch_sessions.sessions.get(request.session_id)
    target = None
    if session is not None:
        target = session.targets.get((topic.topic_id if session.uses_topic_ids else topic.topic, asked.partition))
        if target is None or len(session.targets) != 1:
            return None
    elif request.session_id != INVALID_SESSION_ID:
        return None
    manager = broker.replica_manager
    try:
        if topic.topic:
            partition = manager.partition(topic.topic, asked.partition)
        else:
            partition = manager.partition_by_id(topic.topic_id, asked.partition)
        partition.check_leader(asked.current_leader_epoch)
    except KafkaError:
        return None
    if partition.__class__ is not Partition or not partition.is_open:
        return None
    max_bytes = min(request.max_bytes, broker.config.get_int("fetch.max.bytes"))
    isolation = _COMMITTED if request.isolation_level == _READ_COMMITTED else FetchIsolation.HIGH_WATERMARK
    response = response_pattern(version, request, topic, asked.partition)
    limits = FetchLimits(min(request.min_bytes, max_bytes), min(asked.partition_max_bytes, max_bytes), isolation)
    return RepeatedFetch(broker, partition.cursor(limits), (pattern, response), (session, target, asked))


def request_pattern(version: int, request: FetchRequest, frame: memoryview, position: int) -> RequestPattern | None:
    """Build the pattern of requests like this one; None for one of several partitions, or one whose encoding is not
    what came."""
    asks_for_session = request.session_epoch == INITIAL_EPOCH or (
        request.session_epoch == FINAL_EPOCH and request.session_id != INVALID_SESSION_ID
    )
    if (
        version < FIRST_VERSION
        or len(request.topics) != 1
        or len(request.topics[0].partitions) != 1
        or request.topics[0].partitions[0].last_fetched_epoch != _NO_EPOCH
        or request.forgotten_topics_data
        or asks_for_session
    ):
        return None
    asked = request.topics[0].partitions[0]
    asked_epoch, asked_offset = request.session_epoch, asked.fetch_offset
    epoch, offset = _EPOCH.pack(asked_epoch), _OFFSET.pack(asked_offset)
    request.session_epoch, asked.fetch_offset = _EPOCH_MARK, _OFFSETS[0]
    encoded = request.encode(version)
    request.session_epoch, asked.fetch_offset = asked_epoch, asked_offset
    first, epoch_mark, rest = encoded.partition(_EPOCH.pack(_EPOCH_MARK))
    second, offset_mark, third = rest.partition(_OFFSET.pack(_OFFSETS[0]))
    if not epoch_mark or not offset_mark or first + epoch + second + offset + third != frame[position:]:
        return None
    first = bytes(frame[_REQUEST_START:position]) + first
    layout = Struct(f">4si{len(first)}si{len(second)}sq{len(third)}s")
    return RequestPattern(len(frame), layout, (bytes(frame[:4]), first, second, third))


def response_pattern(version: int, request: FetchRequest, topic: FetchTopic, index: int) -> ResponsePattern:
    """Build the pattern of the answers to such requests."""
    committed = request.isolation_level == _READ_COMMITTED
    marker = TransferableRecords(_NoFile(), 0, _MARKER_BYTES)
    high_watermark, last_stable, log_start = _OFFSETS
    data = PartitionData(
        partition_index=index, high_watermark=high_watermark, last_stable_offset=last_stable,
        log_start_offset=log_start, records=marker, aborted_transactions=[] if committed else None,
    )  # fmt: skip
    found = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])
    head, _, after = FetchResponse(session_id=request.session_id, responses=[found]).encode_parts(version)
    assert isinstance(head, bytes)
    assert isinstance(after, bytes)
    before, _, between = head.partition(_THREE_OFFSETS.pack(*_OFFSETS))
    between = between.removesuffix(unsigned_varint(_MARKER_BYTES + 1))
    if response_header_version(ApiKey.FETCH, version) >= 1:
        before = b"\0" + before
    return ResponsePattern(Struct(f">ii{len(before)}sqqq{len(between)}s"), before, between, after)


class _NoFile:
    """The file of the slice that marks the records' place in a response pattern; it is never read."""

    def fileno(self) -> int:
        return -1

    def retain(self) -> None:
        """Nothing to keep."""

    def release(self) -> None:
        """Nothing to let go."""
