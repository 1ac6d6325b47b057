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

Reading on: where the batch after the one sent begins, its size and last offset are known from a look at its header,
taken with RWF_NOWAIT when the batch before it was sent. This look is also the probe that both ends of the slice are in
memory (see ``broker/network/send_queue.py``), and shows where to end the slice so that no half batch is sent. A fetch
of 1 MiB takes 40 µs of user time in place of 106: what counts there is how much code and data one request touches,
because the megabyte before it has taken the caches. Loop thread only.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import NamedTuple

from tidelog.broker.broker import Broker
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
from tidelog.log.index_proof import UnprovenIndexError
from tidelog.log.segment.segment import LogSegment
from tidelog.log.segment.segments import LogSegments
from tidelog.log.unified_log import UnifiedLog
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
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD
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
LOOKS_SKIPPED = 64
"""Where batches are small, this many answers are made before the next look whether they still are."""
_HEADER = Struct(">qi4xB6xi")  # base offset, length, magic, last offset delta
_RWF_NOWAIT = os.RWF_NOWAIT
_COMMITTED = FetchIsolation.TXN_COMMITTED
_MOST = 1 << 63
_new_tuple = tuple.__new__


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


class Limits(NamedTuple):
    """Limits of a fetch: the least and the most bytes of records to answer with, and which of them."""

    least: int
    most: int
    isolation: FetchIsolation


class NextBatch(NamedTuple):
    """The batch that a consumer reads next."""

    offset: int
    last_offset: int
    position: int
    size: int
    segment: LogSegment
    segments: LogSegments
    version: int


class RepeatedFetch:
    """One connection's pattern. See the module."""

    __slots__ = (
        "_asked",
        "_broker",
        "_bytes_out",
        "_committed",
        "_committed_from",
        "_header",
        "_header_list",
        "_last_length",
        "_limits",
        "_log",
        "_looks_to_skip",
        "_next",
        "_request",
        "_response",
        "_session",
        "_target",
    )

    def __init__(
        self,
        broker: Broker,
        log: UnifiedLog,
        patterns: tuple[RequestPattern, ResponsePattern],
        limits: Limits,
        session: tuple[FetchSession | None, FetchTarget | None, FetchPartition],
    ) -> None:
        """``session`` ends with what it asks."""
        self._broker = broker
        self._log = log
        self._request, self._response = patterns
        self._limits = limits
        self._committed = limits.isolation is _COMMITTED
        self._committed_from: tuple[LogSegments, int] | None = None
        self._session, self._target, self._asked = session
        self._bytes_out = broker.metrics.bytes_out
        self._last_length = (0, b"")
        self._next: NextBatch | None = None
        self._looks_to_skip = 0
        self._header = bytearray(_HEADER.size)
        self._header_list = [self._header]

    def answer(self, frame: memoryview) -> list[Part] | None:
        """The response to ``frame`` if it matches and is the plain case, else None."""
        size, layout, same = self._request
        if len(frame) != size:
            return None
        api, correlation_id, first, epoch, second, offset, third = layout.unpack(frame)
        log = self._log
        if (api, first, second, third) != same or not log.is_serving or self._broker.services.quotas.made is not None:
            return None
        session, target = self._session, self._target
        if session is None or target is None:
            if epoch != FINAL_EPOCH:
                return None
        elif not self._may_go_on(session, target, epoch):
            return None
        records = self._read(log, offset)
        if records is None:
            return None
        if session is not None and target is not None:
            self._go_on(session, target, offset)
        size = records.size
        self._bytes_out.count += size
        layout, before, between, after = self._response
        last_size, length = self._last_length
        if size != last_size:
            length = unsigned_varint(size + 1)
            self._last_length = (size, length)
        head = layout.pack(
            layout.size - _SIZE_OF_SIZE + len(length) + size + len(after), correlation_id, before,
            log.high_watermark, log.last_stable_offset, log.log_start_offset, between,
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
        target.sent_high_watermark = self._log.high_watermark
        target.sent_log_start_offset = self._log.log_start_offset

    # ---- reading

    def _read(self, log: UnifiedLog, offset: int) -> TransferableRecords | None:
        """The records at ``offset``; None when the general way has to look."""
        found, self._next = self._next, None
        try:
            if not log.log_start_offset <= offset < log.high_watermark:
                return None
            if self._committed and log.last_stable_offset != log.high_watermark:
                return None
            if found is not None and found.offset == offset:
                records = self._read_on(log, found)
                if records is not None:
                    return records
            version, segments = log.version, log.segments
            least, most, isolation = self._limits
            info = log.read(offset, most, isolation=isolation, min_one_message=True, prove=False)
            if not isinstance(info.records, TransferableRecords):
                return None
            if info.records.size < least or info.aborted_transactions:
                info.records.release()
                return None
            if self._looks_to_skip:
                self._looks_to_skip -= 1
                return info.records
            begun = self._begin(log, offset, info.records, (segments, version))
            if begun is None:
                return info.records
            info.records.release()
            return begun
        except (KafkaError, UnprovenIndexError):
            return None  # the general way meets it again and answers with it

    def _begin(
        self, log: UnifiedLog, offset: int, records: TransferableRecords, seen: tuple[LogSegments, int]
    ) -> TransferableRecords | None:
        """Read on from where ``records`` begin, if a large batch does; they stay the caller's."""
        segments, version = seen
        segment = segments.floor(offset)
        header = self._look(records.file.fileno(), records.position)
        if header is None or header[1] * 2 <= self._limits.most or segment is None:
            self._looks_to_skip = LOOKS_SKIPPED
            return None
        base_offset, size, last_offset_delta = header
        last_offset = base_offset + last_offset_delta
        if last_offset < offset:
            return None
        found = NextBatch(offset, last_offset, records.position, size, segment, segments, version)
        try:
            begun = self._read_on(log, found)
        except KafkaError:
            return None  # the segment was swapped meanwhile; what was found in it still stands
        if begun is not None and begun.file is not records.file:
            begun.release()
            self._next = None
            return None  # another segment than the one that was read
        return begun

    def _read_on(self, log: UnifiedLog, found: NextBatch) -> TransferableRecords | None:
        """The batch that was looked at when the one before it was sent; looks at the one after it.

        Raises KafkaStorageError when the segment's file is closed.
        """
        _, last_offset, position, size, segment, segments, version = found
        end = log.end
        if log.version != version or log.segments is not segments or not last_offset < log.high_watermark == end.offset:
            return None
        bound = end.position if segment.base_offset == end.base_offset else segment.records.size
        following = position + size
        least, most, _ = self._limits
        if size < least or (self._committed and not self._nothing_aborted(segments, segment)):
            return None
        records = segment.records.slice(position, size)
        if following >= bound:
            return records
        header = self._look(records.file.fileno(), following)
        if header is None or header[1] <= min(most, bound - position) - size:
            records.release()
            return None  # not in memory, or more than one batch belongs into the answer
        base_offset, next_size, last_offset_delta = header
        self._next = _new_tuple(NextBatch, (
            last_offset + 1, base_offset + last_offset_delta, following, next_size, segment, segments, version,
        ))  # fmt: skip
        records.in_memory = True
        return records

    def _nothing_aborted(self, segments: LogSegments, segment: LogSegment) -> bool:
        """Return whether no transaction whose marker is in ``segment`` or after it was aborted.

        Only the active segment's index can grow; the others are looked at once for each list of segments."""
        known = self._committed_from
        if known is None or known[0] is not segments or segment.base_offset < known[1]:
            indices = [later.transaction_index for later in segments.values(segment.base_offset, _MOST)]
            if any(not index.is_proven or index.entries for index in indices):
                return False
            self._committed_from = (segments, segment.base_offset)
        return not segments.active.transaction_index.entries

    def _look(self, descriptor: int, position: int) -> tuple[int, int, int] | None:
        """Base offset, size and last offset delta of the batch at ``position``; None when its header is not in memory
        or is none of magic 2."""
        try:
            count = os.preadv(descriptor, self._header_list, position, _RWF_NOWAIT)
        except OSError:
            return None
        base_offset, length, magic, last_offset_delta = _HEADER.unpack(self._header)
        if count < _HEADER.size or magic != MAGIC_V2 or length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD:
            return None
        return (base_offset, length + LOG_OVERHEAD, last_offset_delta) if last_offset_delta >= 0 else None


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
        partition.check_leader_epoch(asked.current_leader_epoch)
    except KafkaError:
        return None
    if partition.__class__ is not Partition or partition.opened_log is None:
        return None
    max_bytes = min(request.max_bytes, broker.config.get_int("fetch.max.bytes"))
    isolation = _COMMITTED if request.isolation_level == _READ_COMMITTED else FetchIsolation.HIGH_WATERMARK
    response = response_pattern(version, request, topic, asked.partition)
    limits = Limits(min(request.min_bytes, max_bytes), min(asked.partition_max_bytes, max_bytes), isolation)
    return RepeatedFetch(broker, partition.opened_log, (pattern, response), limits, (session, target, asked))


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
