"""Removal of segments by retention, truncation and the cleaner's swap. Unless a function says otherwise, callers hold
the log's lock, or no other thread knows the log yet.

A deleted segment is taken out of the log's segments, its files are renamed to ``.deleted``, and unlinked after
``file.delete.delay.ms``. Readers that hold the old snapshot, or a slice of the file, read on.

Swap: the steps, and what the next start does after a crash during each::

    1  new files written and synced as .cleaned              -> they are removed; the old segments stay
    2  renamed to .swap, from the highest base offset down   -> if a .cleaned is left, these .swap are removed with it
    3  directory synced                                      -> as during 2, or as during 4 if 2 is on the disk
    4  old files renamed to .deleted                         -> all new files are .swap: the swap is finished
    5  renamed without .swap, from the lowest base up        -> the swap is finished
    6  directory synced; .deleted unlinked later             -> .deleted files are removed

A disk that does not keep the order of renames could have a new segment under its final name beside an old one that it
overlaps; the log is then refused.

Retention has two halves: the log start offset moves, and the log manager makes it durable; then the segments below it
are removed, oldest first. The renames are not synced, so a power loss may undo any of them; segments missing below the
log start offset do not count as a gap. Also, because the start offset moves first, a new reader gets
OFFSET_OUT_OF_RANGE instead of losing its file.

Retention deletes from the oldest segment on, never above the high watermark. A segment's age is that of its *largest*
timestamp, so a record with a timestamp in the future keeps its segment from being deleted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from tidelog.log.file_use import LogDeletedError
from tidelog.log.segment.segment import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, LogSegment
from tidelog.log.segment.segments import close_indices_until_lookup
from tidelog.log.system.file_system import LogStorageError
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class StartOffsetReason(IntEnum):
    """The reason why a log start offset moves. DELETE_RECORDS, also used by retention by time and size, may not
    move it above the high watermark. SNAPSHOT moves the start of a metadata log to the end of a snapshot."""

    DELETE_RECORDS = 0
    SNAPSHOT = 1


@contextlib.contextmanager
def whole_or_out_of_service(log: UnifiedLog) -> Iterator[None]:
    """Take the log out of service if the block raises KafkaStorageError: the block changes several files and cannot be
    undone.

    After a failure memory and files disagree, and new records could get offsets that others have. So the log serves
    nothing until it is loaded again.
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
        with contextlib.suppress(LogDeletedError), log.files:  # of a deleted log the whole directory is removed
            segment.delete_files()

    log.environment.deletions.schedule(log.config.file_delete_delay_ms, delete)


def remove_segments(log: UnifiedLog, removed: Sequence[LogSegment], *, oldest_first: bool = False) -> None:
    """Take segments out of the log and delete their files later. Raises KafkaStorageError."""
    log.segments = log.segments.replace(removed=removed)
    delete_segments(log, removed, oldest_first=oldest_first)


def delete_segments(log: UnifiedLog, removed: Iterable[LogSegment], *, oldest_first: bool = False) -> None:
    """Delete the files of segments later, which the caller takes out of the log. Raises KafkaStorageError.

    Truncation removes the newest first, retention the oldest first: so a crash in between leaves no gap.
    """
    for segment in sorted(removed, key=lambda s: s.base_offset, reverse=not oldest_first):
        _schedule_deletion(log, segment)
        log.producer_state.remove_snapshot(segment.base_offset)


def delete_old_segments(log: UnifiedLog, now_ms: int) -> int:
    """Delete segments by log start offset, time and size; return how many. Raises KafkaStorageError.

    The start offset is not made durable here; the log manager calls the two halves itself (see the module).
    """
    move_start(log, now_ms)
    return remove_below_start(log, log.log_start_offset)


def move_start(log: UnifiedLog, now_ms: int) -> bool:
    """Move the log start offset as far as retention by time and size asks. Return whether there are segments to remove.

    Raises KafkaStorageError.
    """
    try:
        if log.config.delete:
            if log.config.retention_ms >= 0:
                _move_while(log, "older than retention.ms", _make_expiry_test(log, now_ms))
            if log.config.retention_bytes >= 0:
                _move_while(log, "beyond retention.bytes", _make_size_test(log, now_ms))
    except LogStorageError as error:
        log.note_error(error)
        raise
    finally:
        close_indices_until_lookup(log.segments)  # this function, readers and appends have opened them
    return bool(_oldest(log, _make_start_test(log.log_start_offset)))


def remove_below_start(log: UnifiedLog, durable_start: int) -> int:
    """Remove the segments that end at or below both the log start offset and ``durable_start``; return how many.

    ``durable_start`` is the start offset that the caller has made durable, if it could. Raises KafkaStorageError.
    """
    try:
        removed = _oldest(log, _make_start_test(min(log.log_start_offset, durable_start)))
        if removed and len(removed) == len(log.segments):
            log.roll()
        remove_segments(log, removed, oldest_first=True)
    except LogStorageError as error:
        log.note_error(error)
        raise
    return len(removed)


Predicate = Callable[[LogSegment, int], bool]


def _make_start_test(offset: int) -> Predicate:
    return lambda _, next_base: next_base <= offset


def _make_expiry_test(log: UnifiedLog, now_ms: int) -> Predicate:
    limit = now_ms - max(log.config.retention_ms, log.config.min_compaction_lag_ms if log.config.compact else 0)
    return lambda segment, _: segment.largest_timestamp < limit


def _make_size_test(log: UnifiedLog, now_ms: int) -> Predicate:
    excess = log.size_bytes - log.config.retention_bytes
    # In a compacted log, records younger than min.compaction.lag.ms must stay.
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
    """Return the end offset of these segments, the oldest ones of the log; -1 if there are none."""
    segments = log.segments
    if not oldest:
        return -1
    return log.log_end_offset if len(oldest) == len(segments) else segments[len(oldest)].base_offset


def _oldest(log: UnifiedLog, should_go: Predicate) -> list[LogSegment]:
    """Collect the oldest segments, up to the first that ``should_go`` does not accept or that must stay."""
    segments = log.segments
    removed: list[LogSegment] = []
    for index, segment in enumerate(segments):
        is_active = index + 1 == len(segments)
        next_base = log.log_end_offset if is_active else segments[index + 1].base_offset
        # There is nothing to delete in an empty active segment, and records above the high watermark must stay.
        if (is_active and segment.size == 0) or next_base > log.high_watermark or not should_go(segment, next_base):
            break
        removed.append(segment)
    return removed


def swap_segments(
    log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment], check: Callable[[], None]
) -> None:
    """Carry out steps 2 to 6 of a swap, for ``UnifiedLog.replace_segments``. Call it without the log's lock, which is
    taken for ``check`` and steps 4 and 5 only.

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
    """Carry out steps 2 and 3 of a swap, for flushed ``.cleaned`` segments. Call it without the log's lock: to sync a
    directory takes milliseconds, up to a hundred beside other writers, and appends on the event loop would wait.

    Raises KafkaStorageError. After a recoverable error, such as a full disk, the swap is undone. After another one the
    log is out of service, and its next load undoes or finishes the swap, as the module's table says.
    """
    try:
        for segment in sorted(new, key=lambda s: s.base_offset, reverse=True):
            assert segment.suffix == CLEANED_SUFFIX
            segment.rename_suffix(SWAP_SUFFIX)
        log.environment.file_system.sync_directory(log.directory)
    except LogStorageError as error:
        if error.is_recoverable:
            undo_swap(log, new)
        else:
            _fail_swap(log, error)
        raise


def undo_swap(log: UnifiedLog, new: Sequence[LogSegment]) -> None:
    """Rename ``.swap`` segments to ``.cleaned`` again, so that no start finishes the swap. With or without the log's
    lock. Raises KafkaStorageError.
    """
    try:
        for segment in new:
            segment.rename_suffix(CLEANED_SUFFIX)
    except LogStorageError as error:
        _fail_swap(log, error)
        raise


def finish_swap(log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
    """Carry out steps 4 and 5 of a swap under the log's lock. A flush or read that does not find a renamed file takes
    the lock too, and then sees the new segments.

    The caller syncs the directory afterwards. Raises KafkaStorageError: then the log is out of service, and its next
    load finishes the swap.
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
        _fail_swap(log, error)
        raise
    log.segments = log.segments.replace(removed=present, added=ascending)
    kept = {segment.base_offset for segment in ascending}
    for segment in present:
        if segment.base_offset not in kept:
            log.producer_state.remove_snapshot(segment.base_offset)


def sync_swap(log: UnifiedLog) -> None:
    """Carry out step 6 of a swap, without the log's lock. Raises KafkaStorageError.

    If the process has no file descriptor left for it, the next sync of the directory makes the names durable. A crash
    before that is one of those in the module's table.
    """
    try:
        log.environment.file_system.sync_directory(log.directory)
    except LogStorageError as error:
        if error.is_recoverable:
            logger.warning("%s: the names of cleaned segments are not synced yet: %s", log.topic_partition, error)
            return
        _fail_swap(log, error)
        raise


def _fail_swap(log: UnifiedLog, error: LogStorageError) -> None:
    """Take the log out of service; its next load undoes or finishes the swap."""
    log.note_error(error)
    log.take_out_of_service(error)
