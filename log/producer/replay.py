"""Replay of stored batches into producer state, for loads, truncations, followers' appends, and rebuilds and proofs of
transaction indices.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.producer.state import (
    BATCHES_TO_RETAIN,
    MAX_SEQUENCE,
    BatchMetadata,
    Marker,
    ProducerBatch,
    ProducerEntry,
    ProducerStateManager,
)
from tidelog.log.segment.batch_scan import BatchHeader, crc_matches
from tidelog.log.segment.resync import is_misplaced
from tidelog.log.segment.segment import LogSegment, readable_headers
from tidelog.log.segment.segments import LogSegments
from tidelog.protocol.errors import CorruptMessageError, KafkaError
from tidelog.protocol.record.record_batch import CONTROL_TYPE_ABORT, CONTROL_TYPE_COMMIT, Buffer, RecordBatch

logger = logging.getLogger(__name__)

RECALLED_BYTES = 64 * 1024 * 1024
"""Bytes of records before a snapshot whose headers are read again after a recovery. Recovery has just read them, so
they are in the page cache. Clients retry what was in flight when the broker died: each at most five recent batches."""
RECALLED_BYTES_FLUSHED = 512 * 1024
"""The same for a log that needs no recovery: all that was in flight is among the last records. This takes 1 ms."""

RECALLED_AT_ONCE_BYTES = 512 * 1024
"""Size of the stretches in which the records before a snapshot are read, newest first."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


def marker_of(batch: Buffer, producer_id: int, producer_epoch: int, offset: int) -> Marker | None:
    """Find the end-transaction marker in a control batch; None if a cleaner has emptied the batch, or it holds another
    control record. Raises what ``RecordBatch.records`` raises."""
    for record in RecordBatch(batch).records():
        if record.key is None or len(record.key) < _KEY.size:
            return None
        kind = _KEY.unpack_from(record.key)[1]
        if kind not in (CONTROL_TYPE_ABORT, CONTROL_TYPE_COMMIT) or record.value is None:
            return None
        coordinator_epoch = _VALUE.unpack_from(record.value)[1] if len(record.value) >= _VALUE.size else -1
        is_abort = kind == CONTROL_TYPE_ABORT
        return Marker(producer_id, producer_epoch, coordinator_epoch, offset, record.timestamp, is_abort)
    return None


def replay_batch(state: ProducerStateManager, header: BatchHeader, batch: Buffer) -> AbortedTxn | None:
    """Apply a stored batch; return the transaction to index if it is a marker that aborted one. Raises what
    :func:`marker_of` raises. ``batch`` is read only if it is a control batch."""
    aborted = None
    if header.producer_id >= 0:
        if header.is_control:
            marker = marker_of(batch, header.producer_id, header.producer_epoch, header.base_offset)
            aborted = state.update_marker(marker) if marker is not None else None
        else:
            batch_seen = ProducerBatch(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                _last_sequence(header),
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.is_transactional,
            )
            state.update(batch_seen)
    state.end_offset = header.last_offset + 1
    return aborted


def _last_sequence(header: BatchHeader) -> int:
    """Return the sequence of a batch's last record, wrapped from 2^31 - 1 to 0; -1 when the batch has none."""
    return (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE if header.base_sequence >= 0 else -1


def rebuild_producer_state(
    state: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    log_end_offset: int,
    *,
    keep_later_snapshots: bool = False,
    recalled_bytes: int = RECALLED_BYTES_FLUSHED,
    snapshots: Iterable[int] | None = None,
) -> bool:
    """Rebuild producer state as of ``log_end_offset``, the end of ``segments``, from the newest snapshot and the
    batches after it.

    A snapshot holds the last batch of each producer; the four before it are read from up to ``recalled_bytes`` of
    records before the snapshot. ``snapshots`` are the offsets of the existing snapshot files, if the caller knows them.
    Damaged batches are left out, as by :func:`replay_segment`. Return False if the end of a transaction may be among
    them. Raises KafkaStorageError.
    """
    state.load(log_start_offset, log_end_offset, keep_later=keep_later_snapshots, snapshots=snapshots)
    if state.producers:
        recall_batches(state, segments, recalled_bytes)
    is_complete = True
    if state.end_offset < log_end_offset:
        replayed = segments.values(state.end_offset, log_end_offset)
        for segment, following in zip(replayed, [*replayed[1:], None], strict=False):
            end = log_end_offset if following is None else following.base_offset
            is_complete = replay_segment(state, segment, end) and is_complete
    state.end_offset = log_end_offset
    if not is_complete:
        logger.error(
            "%s: a damaged batch may hide the end of a transaction, which stays open", segments.active.directory
        )
    return is_complete


def recall_batches(state: ProducerStateManager, segments: LogSegments, max_bytes: int) -> None:
    """Add the batches before the last one to producers that come from a snapshot, from the last ``max_bytes`` of
    records.

    A client with five requests in flight retries the first of them first. It must be recognized as a duplicate: for
    librdkafka OUT_OF_ORDER_SEQUENCE_NUMBER would be fatal, and a Java client would write the batch again.
    Stretches are read from the end backwards, until no producer is wanted any more. Those after the last batch of every
    producer are passed over. A producer is wanted until its five batches are found, or RECALLED_BYTES_FLUSHED before
    its batch of sequence 0 were searched in vain. That batch is mostly its first one, but sequences wrap around. Raises
    KafkaStorageError.
    """
    found: dict[int, deque[BatchMetadata]] = {}
    wanted = dict(state.producers)
    bytes_left: dict[int, int] = {}
    for stretch in _stretches(segments, state.end_offset, max_bytes):
        if not any(number in found or entry.last_offset >= stretch.first_offset for number, entry in wanted.items()):
            continue
        here = _batches_of(wanted, stretch, state.end_offset)
        for number in wanted.keys() & found.keys() - here.keys():
            if found[number][0].first_sequence == 0 and _is_searched_enough(bytes_left, number, stretch):
                del wanted[number]
        for number, batches in here.items():
            batches.extend(found.get(number, ()))
            found[number] = batches
            if len(batches) == BATCHES_TO_RETAIN:
                del wanted[number]
        if not wanted:
            break
    for number, batches in found.items():
        entry = state.producers[number]
        if batches[-1].last_offset == entry.last_offset:
            entry.batches = batches


def _is_searched_enough(bytes_left: dict[int, int], number: int, stretch: Stretch) -> bool:
    """Return whether RECALLED_BYTES_FLUSHED before a producer's batch of sequence 0 have been searched, this stretch
    included. ``bytes_left`` has the bytes still to search, by producer id.
    """
    bytes_left[number] = bytes_left.get(number, RECALLED_BYTES_FLUSHED) - (stretch.end - stretch.start)
    return bytes_left[number] <= 0


class Stretch(NamedTuple):
    """Bytes of whole batches in a segment."""

    segment: LogSegment
    start: int
    end: int

    @property
    def first_offset(self) -> int:
        """The offset of the first batch; the segment's base offset if the batch cannot be read."""
        try:
            for header in self.segment.headers(self.start, self.end):
                return header.base_offset
        except CorruptMessageError:
            pass
        return self.segment.base_offset


def _stretches(segments: LogSegments, end_offset: int, max_bytes: int) -> Iterator[Stretch]:
    """Yield stretches of the last ``max_bytes`` (or a little more) of the segments below ``end_offset``, newest first.
    Raises KafkaStorageError.
    """
    for segment in reversed(segments.values(0, end_offset)):
        lowest, end = max(0, segment.size - max_bytes), segment.size
        while end > lowest:
            start = segment.offset_index.floor_position(max(lowest, end - RECALLED_AT_ONCE_BYTES))
            yield Stretch(segment, start, end)
            end = start
        max_bytes -= segment.size
        if max_bytes <= 0:
            return


def _batches_of(
    producers: Mapping[int, ProducerEntry], stretch: Stretch, end_offset: int
) -> dict[int, deque[BatchMetadata]]:
    """Collect the last five batches of each of these producers in a stretch, below ``end_offset``.

    The walk ends at a damaged header, as the batches after it cannot be found. Raises KafkaStorageError.
    """
    found: dict[int, deque[BatchMetadata]] = {}
    try:
        for header in stretch.segment.headers(stretch.start, stretch.end):
            if header.last_offset >= end_offset:
                break
            entry = producers.get(header.producer_id)
            if entry is None or header.producer_epoch != entry.producer_epoch or header.is_control:
                continue
            batches = found.setdefault(header.producer_id, deque(maxlen=BATCHES_TO_RETAIN))
            delta = header.last_offset_delta
            batches.append(BatchMetadata(_last_sequence(header), header.last_offset, delta, header.max_timestamp))
    except CorruptMessageError:
        pass
    return found


def replay_segment(
    state: ProducerStateManager,
    segment: LogSegment,
    end_offset: int,
    note_aborted: Callable[[AbortedTxn], object] = lambda _: None,
) -> bool:
    """Apply a segment's batches below ``end_offset`` that the state lacks, and pass on each aborted transaction.

    Damaged batches are left out: those of impossible headers or offsets, and control batches with a wrong checksum. A
    transaction that is open there stays open until its producer's next marker. Return False if one is, or if an offset
    is wrong: then transactions may be missing, or end too late. Raises KafkaStorageError.
    """
    start_offset = max(state.end_offset, segment.base_offset)
    position = segment.offset_index.lookup(start_offset).position
    next_offset, is_complete = segment.base_offset, True
    for header in readable_headers(segment, position):
        if header.position > position and state.has_open_transactions:
            is_complete = False
        position = header.position + header.size
        if header.last_offset >= end_offset or is_misplaced(segment.records, header, next_offset):
            is_complete = False
            continue
        next_offset = header.last_offset + 1
        if header.producer_id >= 0 and header.last_offset >= start_offset:
            body = segment.records.read_at(header.position, header.size) if header.is_control else b""
            try:
                if header.is_control and not crc_matches(header, memoryview(body)):
                    raise CorruptMessageError(f"wrong CRC at byte {header.position} of {segment.records.path}")
                aborted = replay_batch(state, header, body)
            except KafkaError as error:
                logger.warning("a damaged marker is left out: %s", error)
                is_complete = is_complete and not state.has_open_transactions
                continue
            if aborted is not None:
                note_aborted(aborted)
    return is_complete and (position >= segment.size or not state.has_open_transactions)


def choose_snapshots(segments: Iterable[LogSegment], end: int) -> set[int]:
    """Return the offsets whose snapshots are kept: the segments' base offsets and the log end offset ``end``."""
    return {segment.base_offset for segment in segments} | {end}
