"""Append of a follower: the leader's batches as they are.

Recovery's compiled walk (``tidelog.log.recovery.scan``) goes over the batch headers. It checks each batch's checksum
and order, and collects index entries, leader epochs and the producers' batches. The records are then written with one
call for each segment, or for each full table of the walk. Offsets and epochs stay as the leader assigned them, so both
logs hold the same batches::

    a batch that ends after the fetched bytes      left out: it is fetched again
    a batch of a later epoch than allowed          left out, with all that follow (KAFKA-18723)
    a bad checksum or order, an old format         CorruptMessageError; valid batches before it may be appended
    offsets missing between batches                accepted: the leader's cleaner removed them

Any thread; the call takes the log's lock, and a caller may hold it to look at the log first.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tidelog.log.fetch import LogEnd
from tidelog.log.index.time_index import TimestampOffset
from tidelog.log.producer.replay import replay_batch
from tidelog.log.recovery.scan import SegmentScan
from tidelog.log.segment.batch_scan import BatchHeader, crc_matches, parse_header
from tidelog.log.segment.segment import BatchesToAppend, LogSegment
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import LogAppendInfo, UnifiedLog
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD

_BASE_OFFSET = Struct(">q")
_MAX_TIMESTAMP = Struct(">q")
_LENGTH, _EPOCH, _MAX_TIMESTAMP_OFFSET = 8, 12, 35
_MAX_RELATIVE_OFFSET = 0x7FFFFFFF
_idle_scans: list[SegmentScan] = []
"""Idle walks, kept for later appends: the tables of each take a megabyte."""


class _Part(NamedTuple):
    """Batches from the front of the fetched records that go into one segment with one write. ``epochs`` has new leader
    epochs with their first offsets. ``rows`` has the header fields of those batches with a producer id that a replay
    needs. ``is_stopped`` says that the walk stopped at a batch it could not take."""

    segment: LogSegment
    batches: BatchesToAppend
    size: int
    end_offset: int
    epochs: list[tuple[int, int]]
    rows: list[tuple[int, ...]]
    is_stopped: bool


def append_as_follower(log: UnifiedLog, records: memoryview, max_leader_epoch: int) -> LogAppendInfo | None:
    """Append the leader's whole batches, up to the first one of a later epoch than ``max_leader_epoch``; return None if
    nothing was appended. The ``max_timestamp`` of the result is the active segment's, not that of these batches.

    Raises CorruptMessageError, KafkaStorageError, and what ``RecordBatch.records`` raises for a control batch, which is
    in the log then.
    """
    with log.lock:
        log.ensure_appendable()
        if log.leader_epochs.latest_epoch > max_leader_epoch:
            return None
        _adopt_first_batch(log, records)
        first, at = _base_offset_of(records), 0
        while at < len(records):
            part = _next_part(log, records[at:], max_leader_epoch)
            if part.size == 0:
                break
            _write(log, part)
            at += part.size
        if at == 0:
            return None
        largest = log.segments.active.largest.timestamp
        return LogAppendInfo(
            first, log.log_end_offset - 1, largest, -1, log.log_start_offset, False, at, log.high_watermark
        )


# ---- one part


def _next_part(log: UnifiedLog, records: memoryview, max_leader_epoch: int) -> _Part:
    """Return the part at the front of ``records``, after a roll if it needs one; its size is 0 if no whole batch is
    left, or the next one has a later epoch. Raises CorruptMessageError, KafkaStorageError.
    """
    active = log.segments.active
    part = _walk(log, active, records, max_leader_epoch)
    if part.size:
        largest, config = part.batches.largest.timestamp, log.config
        is_due = active.should_roll(config.segment_bytes, config.segment_ms, part.size, largest, part.end_offset - 1)
    else:
        is_due = part.is_stopped and _needs_segment(active, _header_of(log, records))
    if is_due:
        active = _roll(log, _base_offset_of(records))
        part = _walk(log, active, records, max_leader_epoch)
    if part.size == 0 and part.is_stopped:
        raise CorruptMessageError(_fault(log, active, records))
    return part


def _roll(log: UnifiedLog, base_offset: int) -> LogSegment:
    """Roll the log. A disk error is noted, as one of an append is: the log may then be out of service."""
    try:
        return log.roll(base_offset)
    except LogStorageError as error:
        log.note_error(error)
        raise


def _walk(log: UnifiedLog, segment: LogSegment, records: memoryview, max_leader_epoch: int) -> _Part:
    """Walk over the valid batches at the front of ``records``, as an append to ``segment``."""
    scan = _take_scan()
    try:
        _begin(scan, log, segment)
        scan.scan(records, 0, len(records), segment.size)
        part = _part_of(scan, segment, records)
    finally:
        _idle_scans.append(scan)
    if part.epochs and part.epochs[-1][0] > max_leader_epoch:
        return _walk(log, segment, _before_later_epoch(records, max_leader_epoch), max_leader_epoch)
    return part


def _take_scan() -> SegmentScan:
    """Return an idle walk, or a new one. Any thread: another one may take the last idle walk at any moment."""
    try:
        return _idle_scans.pop()
    except IndexError:
        return SegmentScan(0, 0)


def _part_of(scan: SegmentScan, segment: LogSegment, records: memoryview) -> _Part:
    size = scan.consumed
    batches = BatchesToAppend(
        records[:size],
        scan.offset_entries(),
        scan.time_entries(),
        scan.last_entry_position,
        TimestampOffset(scan.largest_timestamp, scan.largest_offset),
        _MAX_TIMESTAMP.unpack_from(records, _MAX_TIMESTAMP_OFFSET)[0] if size else -1,
    )
    return _Part(segment, batches, size, scan.next_offset, scan.epochs(), scan.needed_rows(), scan.is_stopped)


def _begin(scan: SegmentScan, log: UnifiedLog, segment: LogSegment) -> None:
    scan.base_offset, scan.interval_bytes = segment.base_offset, log.config.index_interval_bytes
    scan.next_offset = log.log_end_offset
    scan.last_entry_position = segment.last_entry_position
    scan.largest_timestamp, scan.largest_offset = segment.largest
    scan.last_entry_timestamp = segment.time_index.last_entry.timestamp
    scan.latest_epoch = log.leader_epochs.latest_epoch
    scan.offset_room, scan.time_room = segment.offset_index.room, segment.time_index.room


def _write(log: UnifiedLog, part: _Part) -> None:
    """Write a part, and adopt its epochs, end and producers. Raises KafkaStorageError; no records are written then,
    unless only an aborted transaction could not be indexed. Raises also what :func:`_replay` raises."""
    try:
        for epoch, base_offset in part.epochs:
            log.leader_epochs.assign(epoch, base_offset)
        position = part.segment.append_batches(part.batches)
    except LogStorageError as error:
        log.note_error(error)
        raise
    log.end = LogEnd(part.end_offset, part.segment.base_offset, position + part.size)
    log.log_end_offset = part.end_offset
    for row in part.rows:
        _replay(log, part, position, row)
    log.producer_state.end_offset = part.end_offset


def _replay(log: UnifiedLog, part: _Part, position: int, row: tuple[int, ...]) -> None:
    """Apply a producer's batch, whose fields are ``row``. The records are in the log and cannot be removed: if an
    aborted transaction cannot be indexed, the log is taken out of service. Raises KafkaStorageError, and what
    ``RecordBatch.records`` raises for a control batch."""
    at, size, base, delta, max_timestamp, epoch, attributes, producer, producer_epoch, sequence, count = row
    header = BatchHeader(position + at, size, MAGIC_V2, base, base + delta, max_timestamp, epoch, attributes, producer,
                         producer_epoch, sequence, delta, count)  # fmt: skip
    aborted = replay_batch(log.producer_state, header, part.batches.records[at : at + size])
    if aborted is not None:
        try:
            part.segment.transaction_index.append(aborted)
        except LogStorageError as error:
            log.take_out_of_service(error)
            raise


# ---- bounds and faults


def _before_later_epoch(records: memoryview, max_leader_epoch: int) -> memoryview:
    """Return the valid records before the first batch of a later epoch."""
    at = 0
    while int.from_bytes(records[at + _EPOCH : at + _EPOCH + 4], "big", signed=True) <= max_leader_epoch:
        at += LOG_OVERHEAD + int.from_bytes(records[at + _LENGTH : at + _LENGTH + 4], "big")
    return records[:at]


def _base_offset_of(records: memoryview) -> int:
    return int(_BASE_OFFSET.unpack_from(records)[0]) if len(records) >= _BASE_OFFSET.size else -1


def _adopt_first_batch(log: UnifiedLog, records: memoryview) -> None:
    """Move the start of an empty log to the base offset of the leader's first batch, if the log begins within it."""
    first = _base_offset_of(records)
    is_within = 0 <= first < log.log_end_offset == log.log_start_offset and len(records) >= RECORD_BATCH_OVERHEAD
    if is_within and _header_of(log, records).last_offset >= log.log_end_offset:
        log.truncate_fully_and_start_at(first)


def _header_of(log: UnifiedLog, records: memoryview) -> BatchHeader:
    """Return the header at the front of ``records``. Raises CorruptMessageError."""
    return parse_header(records, 0, 0, f"the leader's records of {log.topic_partition}")


def _needs_segment(segment: LogSegment, header: BatchHeader) -> bool:
    """Return whether a full index, or an offset too far from the segment's base, may have stopped the walk."""
    is_far = header.last_offset - segment.base_offset > _MAX_RELATIVE_OFFSET
    return is_far or segment.offset_index.room <= 0 or segment.time_index.room <= 0


def _fault(log: UnifiedLog, segment: LogSegment, records: memoryview) -> str:
    """Return the message of an error about the batch at the front of ``records``, which cannot be appended to
    ``segment``. The walk does not tell why it stopped, so its checks are made again. Raises CorruptMessageError."""
    header = _header_of(log, records)
    where = f"{log.topic_partition}: the leader's batch at offset {header.base_offset}"
    if header.magic != MAGIC_V2:
        return f"{where} has message format {header.magic}"
    if header.base_offset < log.log_end_offset:
        return f"{where} begins before {log.log_end_offset}, where the log ends"
    if not crc_matches(header, records[: header.size]):
        return f"{where} has a wrong checksum"
    if header.last_offset - segment.base_offset > _MAX_RELATIVE_OFFSET:
        return f"{where} ends too far from {segment.base_offset}, where its segment begins"
    for index in (segment.offset_index, segment.time_index):
        if index.room <= 0:
            return f"{where} fits into no segment: {index.path} is full"
    return f"{where} cannot be appended, and no reason was found"
