"""Truncation of a follower's log where its leader's log ends or diverges from it.

Leader epochs show where the logs diverge; the high watermark does not.

A cut has four steps, with these results after a power loss::

    1  recovery point lowered, checkpoints written   -> the segments to be cut are recovered, and end at the first gap
    2  segments renamed, the last one cut            -> any part of this may be on the disk
    3  sync_cut                                      -> nothing that was cut comes back
    4  checkpoints written                           -> high watermark and log start offset are those after the cut

With the old recovery point, a gap that step 2 leaves would look like a loss of synced records, and such a log is
refused. So no flush raises the recovery point before step 3 is done, even if the flush began before step 1. Any thread;
each call but ``sync_cut`` takes the log's lock, and a caller may hold it to look at the log first. Source: KIP-101,
KIP-279.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from tidelog.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import UNBOUND, UnifiedLog

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def lowered_recovery_point(log: UnifiedLog, offset: int, write_checkpoints: Callable[[], object]) -> Iterator[None]:
    """Hold the recovery point down during steps 1 to 3 of a cut at ``offset``, also in the checkpoint: at the base
    offset of the segment that holds ``offset``, or of the first segment.

    The block makes steps 2 and 3; after it, flushes raise the recovery point again. If the cut removes no records,
    nothing is lowered or written. Raises what ``write_checkpoints`` raises.
    """
    is_cut = _lower_recovery_point(log, offset)
    try:
        if is_cut:
            write_checkpoints()
        yield
    finally:
        log.recovery_bound = UNBOUND


def _lower_recovery_point(log: UnifiedLog, offset: int) -> bool:
    """Lower the recovery point for a cut at ``offset``, and keep flushes from raising it; return False if no records
    would be cut."""
    with log.lock:
        if offset >= log.log_end_offset:
            return False
        segment = log.segments.floor(offset) or log.segments.first
        log.recovery_bound = segment.base_offset
        log.recovery_point = min(log.recovery_point, segment.base_offset)
        return True


def end_of_epoch(log: UnifiedLog, epoch: int, leader_end_offset: int) -> int:
    """Return the end offset of ``epoch`` in this log or at the leader, whichever is lower. The end in this log is the
    log end if ``epoch`` is -1 or later than all epochs of the log."""
    with log.lock:
        offset = min(leader_end_offset, log.log_end_offset)
        if epoch != UNDEFINED_EPOCH:
            _, own_end_offset = log.leader_epochs.end_offset_for(epoch, log.log_end_offset)
            if own_end_offset != UNDEFINED_EPOCH_OFFSET:
                offset = min(offset, own_end_offset)
        return offset


def truncate_to_epoch_end(log: UnifiedLog, epoch: int, leader_end_offset: int) -> bool:
    """Cut the log where ``epoch`` ends here or at the leader, whichever is lower; return False if nothing changed.

    Records below the high watermark are cut too if the leader lacks them, which only an unclean election causes.
    Raises KafkaStorageError.
    """
    with log.lock:
        return truncate_as_follower(log, end_of_epoch(log, epoch, leader_end_offset))


def truncate_as_follower(log: UnifiedLog, offset: int) -> bool:
    """Cut the log at ``offset``, and log an error if committed records are lost; return False if nothing changed.
    Raises KafkaStorageError."""
    with log.lock:
        end, committed = log.log_end_offset, log.high_watermark
        before = log.leader_epochs.latest_epoch
        is_cut = log.truncate_to(offset)
        if is_cut:
            logger.info(
                "%s is cut from %d to %d, where its leader's log ends or diverges",
                log.topic_partition, end, log.log_end_offset,
            )  # fmt: skip
        if log.log_end_offset < committed:
            logger.error(
                "%s lost committed records: offsets %d to %d are not at its leader",
                log.topic_partition, log.log_end_offset, committed - 1,
            )  # fmt: skip
        return is_cut or log.leader_epochs.latest_epoch != before


def sync_cut(log: UnifiedLog) -> None:
    """Make a cut durable. Call it before the high watermark passes records that are appended after the cut: otherwise a
    power loss could bring back the cut records in their place.

    Raises KafkaStorageError.
    """
    try:
        with log.files:
            log.leader_epochs.flush()
            log.segments.active.flush(with_indices=False)
            log.environment.file_system.sync_directory(log.directory)
    except LogStorageError as error:
        log.note_error(error)
        raise
