"""Removal of segments by retention, truncation and the cleaner's swap. Callers hold the log's lock.

A deleted segment leaves the snapshot, its files are renamed to ``.deleted``, and unlinked after
``file.delete.delay.ms``. Readers with the old snapshot, or with a promised slice, read on.

Swap (names at rest -> what a crash here leads to at the next start)::

    1  new files written and synced as .cleaned              -> removed; the old segments stay
    2  renamed to .swap, from the highest base offset down   -> any .cleaned left? then these .swap go too: old segments
    3  directory synced
    4  old files renamed to .deleted                         -> all new are .swap: the swap is completed
    5  .swap endings taken off, from the lowest base up      -> completed
    6  directory synced; .deleted unlinked later             -> .deleted removed

A disk that does not keep the order of renames could have a new segment without its ending beside an old one that it
overlaps; the log is then refused, as by Apache Kafka.

Retention has two halves: the log start offset moves, and the log's manager makes it durable; then the segments below it
are removed, oldest first. Their renames are not synced, so a power loss may keep any of them: segments missing below
the start offset are no gap. The start moves first also because a new reader then gets OFFSET_OUT_OF_RANGE instead of
losing its file.

Retention deletes from the oldest segment on, never above the high watermark. It measures a segment by its *largest*
timestamp, so a record from the future keeps its segment (F11).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from tidelog.log.file_use import LogDeletedError
from tidelog.log.segment.segment import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, LogSegment
from tidelog.log.segment.segments import rest_indices
from tidelog.log.system.file_system import LogStorageError
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class StartOffsetReason(IntEnum):
    """The reason why the log start moves, as the log line names it."""

    DELETE_RECORDS = 0
    RETENTION = 1


@contextlib.contextmanager
def whole_or_out_of_service(log: UnifiedLog) -> Iterator[None]:
    """Take the log out of service if the block fails: it changes several files and cannot be undone.

    After a failure memory and files disagree, and new records could get offsets of others. So the log serves nothing
    until it is loaded again, whatever the error is.
    """
    try:
        yield
    except KafkaStorageError as error:
        if not log.is_closed:
            log.take_out_of_service(error)
        raise


def _schedule_deletion(log: UnifiedLog, segment: LogSegment) -> None:
    segment.rename_suffix(DELETED_SUFFIX)

    def delete() -> None:
        segment.release()
        with contextlib.suppress(LogDeletedError), log.files:  # a deleted log's directory is removed as a whole
            segment.delete_files()

    log.environment.deletions.schedule(log.config.file_delete_delay_ms, delete)


def remove_segments(log: UnifiedLog, removed: Sequence[LogSegment], *, oldest_first: bool = False) -> None:
    """Take segments out of the log and delete their files later. Raises KafkaStorageError.

    Truncation goes newest first, retention oldest first: a crash in between then leaves no gap.
    """
    log.segments = log.segments.replace(removed=removed)
    for segment in sorted(removed, key=lambda s: s.base_offset, reverse=not oldest_first):
        _schedule_deletion(log, segment)
        log.producer_state.remove_snapshot(segment.base_offset)


def delete_old_segments(log: UnifiedLog, now_ms: int) -> int:
    """Delete segments by log start offset, time and size; return how many. Raises KafkaStorageError.

    A manager of many logs makes the start offsets durable between the two halves; see the module.
    """
    move_start(log, now_ms)
    return remove_below_start(log, log.log_start_offset)


def move_start(log: UnifiedLog, now_ms: int) -> bool:
    """Move the log start offset to where retention by time and size allows. Returns whether segments may be removed
    now.

    Raises KafkaStorageError.
    """
    try:
        if log.config.delete:
            if log.config.retention_ms >= 0:
                _move_while(log, "older than retention.ms", _make_expiry_test(log, now_ms))
            if log.config.retention_bytes >= 0:
                _move_while(log, "beyond retention.bytes", _make_size_test(log, now_ms))
    except LogStorageError as error:
        log.note(error)
        raise
    finally:
        rest_indices(log.segments)  # opened for their times just now, or by readers and appends before
    return bool(_oldest(log, _below(log.log_start_offset)))


def remove_below_start(log: UnifiedLog, durable_start: int) -> int:
    """Remove the segments below the log start offset, as far as that is durable; return how many.

    Raises KafkaStorageError.
    """
    try:
        removed = _oldest(log, _below(min(log.log_start_offset, durable_start)))
        if removed and len(removed) == len(log.segments):
            log.roll()
        remove_segments(log, removed, oldest_first=True)
    except LogStorageError as error:
        log.note(error)
        raise
    return len(removed)


Predicate = Callable[[LogSegment, int], bool]


def _below(offset: int) -> Predicate:
    return lambda _, next_base: next_base <= offset


def _make_expiry_test(log: UnifiedLog, now_ms: int) -> Predicate:
    limit = now_ms - max(log.config.retention_ms, log.config.min_compaction_lag_ms if log.config.compact else 0)
    return lambda segment, _: segment.largest_timestamp < limit


def _make_size_test(log: UnifiedLog, now_ms: int) -> Predicate:
    excess = log.size_bytes - log.config.retention_bytes
    # On a compacted log a record younger than min.compaction.lag.ms must stay.
    youngest = now_ms - log.config.min_compaction_lag_ms if log.config.compact else None

    def is_excess(segment: LogSegment, _: int) -> bool:
        nonlocal excess
        if excess < segment.size or (youngest is not None and segment.largest_timestamp > youngest):
            return False
        excess -= segment.size
        return True

    return is_excess


def _move_while(log: UnifiedLog, reason: str, should_go: Predicate) -> None:
    removed = _oldest(log, should_go)
    end = _end_of(log, removed)
    if end > log.log_start_offset:
        logger.info("%s: deleting %d segments %s", log.topic_partition, len(removed), reason)
        log.maybe_increment_log_start_offset(end)


def _end_of(log: UnifiedLog, oldest: Sequence[LogSegment]) -> int:
    """Return the offset after these segments, the oldest ones of the log; -1 for none."""
    segments = log.segments
    if not oldest:
        return -1
    return log.log_end_offset if len(oldest) == len(segments) else segments[len(oldest)].base_offset


def _oldest(log: UnifiedLog, should_go: Predicate) -> list[LogSegment]:
    """Collect the oldest segments, as many as should go."""
    segments = log.segments
    removed: list[LogSegment] = []
    for index, segment in enumerate(segments):
        is_active = index + 1 == len(segments)
        next_base = log.log_end_offset if is_active else segments[index + 1].base_offset
        # An empty active segment is already all that is left; and nothing above the high watermark may go.
        if (is_active and segment.size == 0) or next_base > log.high_watermark or not should_go(segment, next_base):
            break
        removed.append(segment)
    return removed


def swap_segments(
    log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment], check: Callable[[], None]
) -> None:
    """Do steps 2 to 6 of the module's table, which are ``UnifiedLog.replace_segments``. The log's lock is held for the
    renames alone.

    Raises KafkaStorageError and what ``check`` raises.
    """
    with log.files:
        begin_swap(log, new)
        with log.lock:
            try:
                check()
            except BaseException:
                undo_swap(log, new)
                raise
            finish_swap(log, new, old)
            log.version += 1
        sync_swap(log)


def begin_swap(log: UnifiedLog, new: Sequence[LogSegment]) -> None:
    """Do steps 2 and 3 of the module's table for flushed ``.cleaned`` segments. Without the log's lock: a directory
    takes milliseconds to sync, up to a hundred while others write, and appends would wait for it on the event loop.

    Raises KafkaStorageError; the swap is undone then, or by the next start.
    """
    try:
        for segment in sorted(new, key=lambda s: s.base_offset, reverse=True):
            assert segment.suffix == CLEANED_SUFFIX
            segment.rename_suffix(SWAP_SUFFIX)
        log.environment.file_system.sync_directory(log.directory)
    except LogStorageError as error:
        if error.recoverable:
            undo_swap(log, new)
        else:
            _swap_failed(log, error)
        raise


def undo_swap(log: UnifiedLog, new: Sequence[LogSegment]) -> None:
    """Rename ``.swap`` segments to ``.cleaned`` again, so that no start finishes the swap.

    Raises KafkaStorageError.
    """
    try:
        for segment in new:
            segment.rename_suffix(CLEANED_SUFFIX)
    except LogStorageError as error:
        _swap_failed(log, error)
        raise


def finish_swap(log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
    """Do steps 4 and 5 of the module's table. Under the log's lock: a flush opens the files of a segment by name.

    The caller syncs the directory after it. Raises KafkaStorageError; the next start then finishes the swap.
    """
    ascending = sorted(new, key=lambda segment: segment.base_offset)
    present = [segment for segment in old if segment in log.segments]
    assert log.segments.active not in present, "the active segment cannot be replaced"
    try:
        for segment in sorted(present, key=lambda s: s.base_offset):
            _schedule_deletion(log, segment)
        for segment in ascending:
            segment.rename_suffix("")
    except LogStorageError as error:
        _swap_failed(log, error)
        raise
    log.segments = log.segments.replace(removed=present, added=ascending)
    kept = {segment.base_offset for segment in ascending}
    for segment in present:
        if segment.base_offset not in kept:
            log.producer_state.remove_snapshot(segment.base_offset)


def sync_swap(log: UnifiedLog) -> None:
    """Do step 6 of the module's table. Without the log's lock. Raises KafkaStorageError.

    If no descriptor is left, the directory's next sync makes the names durable: each state before that is one of the
    table.
    """
    try:
        log.environment.file_system.sync_directory(log.directory)
    except LogStorageError as error:
        if error.recoverable:
            logger.warning("%s: the swapped segments' names are not synced yet: %s", log.topic_partition, error)
            return
        _swap_failed(log, error)
        raise


def _swap_failed(log: UnifiedLog, error: LogStorageError) -> None:
    """Take the log out of service: only loading it again resolves half-renamed files."""
    log.note(error)
    log.take_out_of_service(error)
