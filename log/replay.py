"""Replaying batches into producer state: what recovery, truncation and index rebuilds share."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from log.batch_scan import BatchHeader
from log.producer_state import MAX_SEQUENCE, Marker, ProducerBatch, ProducerStateManager
from log.segment import LogSegment
from log.segments import LogSegments
from log.transaction_index import AbortedTxn
from protocol.record_batch import CONTROL_TYPE_ABORT, CONTROL_TYPE_COMMIT, Buffer, RecordBatch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


def marker_of(batch: Buffer, producer_id: int, producer_epoch: int, offset: int) -> Marker | None:
    """The end-transaction marker in a control batch; None when a cleaner emptied it or it is of another kind."""
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
    """Take note of a stored batch; the transaction to index when it is a marker that aborted one."""
    aborted = None
    if header.producer_id >= 0:
        if header.is_control:
            marker = marker_of(batch, header.producer_id, header.producer_epoch, header.base_offset)
            aborted = state.update_marker(marker) if marker is not None else None
        else:
            first_sequence = header.base_sequence
            last_sequence = (first_sequence + header.last_offset_delta) & MAX_SEQUENCE if first_sequence >= 0 else -1
            batch_seen = ProducerBatch(
                header.producer_id,
                header.producer_epoch,
                first_sequence,
                last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.is_transactional,
            )
            state.update(batch_seen)
    state.end_offset = header.last_offset + 1
    return aborted


def rebuild_producer_state(
    state: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    log_end_offset: int,
    *,
    keep_later_snapshots: bool = False,
) -> None:
    """Producer state as of ``log_end_offset``: the newest snapshot, and the batches behind it.

    Raises KafkaStorageError, CorruptMessageError.
    """
    state.load(log_start_offset, log_end_offset, keep_later=keep_later_snapshots)
    if state.end_offset < log_end_offset:
        for segment in segments.values(state.end_offset, log_end_offset):
            _replay_segment(state, segment, log_end_offset)
    state.end_offset = log_end_offset
    state.on_high_watermark(log_end_offset)


def _replay_segment(state: ProducerStateManager, segment: LogSegment, log_end_offset: int) -> None:
    start_offset = max(state.end_offset, segment.base_offset)
    found = segment.translate_offset(start_offset)
    if found is None:
        return
    for header in segment.headers(found.position):
        if header.base_offset >= log_end_offset:
            return
        if header.producer_id >= 0 and header.last_offset >= start_offset:
            body = segment.records.read_at(header.position, header.size) if header.is_control else b""
            replay_batch(state, header, body)


def bases_and(segments: Iterable[LogSegment], end: int) -> set[int]:
    """Offsets at which a snapshot is worth keeping: segment bases and the log end."""
    return {segment.base_offset for segment in segments} | {end}
