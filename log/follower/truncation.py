"""Truncation of a follower to where its log and the leader's part: by epochs alone, never to the high watermark.

A cut is made of several calls, of which a power loss may keep any::

    1  lower_recovery_point, checkpoints written   -> the segments to be cut are recovered, and end at the first gap
    2  segments renamed, the last one cut          -> any of it may be there
    3  sync_cut                                    -> nothing that was cut comes back
    4  checkpoints written                         -> high watermark and log start offset are those of what is left

With the old recovery point a gap that step 2 leaves would be that of synced records that are lost: such a log is
refused. Any thread; each call takes the log's lock, and a caller may hold it to look at the log first. Source: KIP-101,
KIP-279.
"""

from __future__ import annotations

import logging

from tidelog.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


def lower_recovery_point(log: UnifiedLog, offset: int) -> bool:
    """Lower the recovery point to the segment that holds ``offset``, where a cut is to be made, or to the first one if
    it lies before that; False where it was not above, or nothing is to be cut.

    The checkpoint is the caller's to write. A flush raises the point again.
    """
    with log.lock:
        segment = log.segments.floor(offset) or log.segments.first
        if offset >= log.log_end_offset or log.recovery_point <= segment.base_offset:
            return False
        log.recovery_point = segment.base_offset
        return True


def end_of_epoch(log: UnifiedLog, epoch: int, leader_end_offset: int) -> int:
    """Return where ``epoch`` ends here, or at the leader, whichever comes first."""
    with log.lock:
        offset = min(leader_end_offset, log.log_end_offset)
        if epoch != UNDEFINED_EPOCH:
            _, own_end_offset = log.leader_epochs.end_offset_for(epoch, log.log_end_offset)
            if own_end_offset != UNDEFINED_EPOCH_OFFSET:
                offset = min(offset, own_end_offset)
        return offset


def truncate_to_epoch_end(log: UnifiedLog, epoch: int, leader_end_offset: int) -> bool:
    """Cut the log where ``epoch`` ends here, or at the leader, whichever comes first; False when nothing went.

    Records below the high watermark go too, where the leader lacks them: only an unclean election brings that about.
    Raises KafkaStorageError.
    """
    with log.lock:
        return truncate_as_follower(log, end_of_epoch(log, epoch, leader_end_offset))


def truncate_as_follower(log: UnifiedLog, offset: int) -> bool:
    """Cut the log at ``offset``, with a loud line for records that were committed. Raises KafkaStorageError."""
    with log.lock:
        end, committed = log.log_end_offset, log.high_watermark
        before = log.leader_epochs.latest_epoch
        is_cut = log.truncate_to(offset)
        if is_cut:
            logger.info("%s is cut from %d to %d: its leader has no more", log.topic_partition, end, log.log_end_offset)
        if log.log_end_offset < committed:
            logger.error(
                "%s lost committed records: offsets %d to %d are not at its leader",
                log.topic_partition, log.log_end_offset, committed - 1,
            )  # fmt: skip
        return is_cut or log.leader_epochs.latest_epoch != before


def sync_cut(log: UnifiedLog) -> None:
    """Make a cut durable, before a high watermark of later records is: a power loss would bring back what was cut.

    Raises KafkaStorageError.
    """
    try:
        with log.files:
            log.leader_epochs.flush()
            log.segments.active.flush(with_indices=False)
            log.environment.file_system.sync_directory(log.directory)
    except LogStorageError as error:
        log.note(error)
        raise
