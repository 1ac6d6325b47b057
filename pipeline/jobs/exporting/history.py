"""Leader epochs of exported logs: they tell a log that went on from one that was cut and written again.

    exported up to offset 150, the record before it of epoch 6
    epochs of the log now:  5 from 0, 6 from 100                 the log that was exported
                            5 from 0, 6 from 100, 7 from 140     cut at 140 and written again: refused

Offsets alone do not tell the two apart once the log is as long again. A log whose leader stayed the same keeps its
epoch; what such a leader cuts it never wrote with the high watermark, which bounds an export. A log without
``leader-epoch-checkpoint`` (of old formats, of copies without it) is believed.

Epochs of a replica that was fetched from a compacted leader, or that were rebuilt from a compacted log, may begin later
than they did. So the batch of the offset decides, and a log where a cleaner took it is believed.
"""

from __future__ import annotations

import os

from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE, CheckpointCorruptError, EpochEntry, read_leader_epochs
from tidelog.pipeline.errors import LogRewrittenError
from tidelog.pipeline.export.manifest import PartitionState
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.segment_files import OpenSegment, list_segments
from tidelog.pipeline.files.storage import files_at
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.errors import KafkaStorageError

NO_EPOCH = -1


def epochs_of(directory: PartitionDirectory) -> tuple[EpochEntry, ...]:
    """Read the leader epochs of a log, none where they are not known.

    Read it after the log's end: a broker notes an epoch before it appends the first record of it.
    """
    path = os.path.join(directory.path, LEADER_EPOCH_FILE)
    try:
        return tuple(read_leader_epochs(files_at(path), path))
    except (CheckpointCorruptError, KafkaStorageError, OSError):
        return ()


def epoch_at(epochs: tuple[EpochEntry, ...], offset: int) -> int:
    """Find the epoch of an offset, NO_EPOCH where no entry reaches it."""
    return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=NO_EPOCH)


def require_same_history(directory: PartitionDirectory, state: PartitionState, epochs: tuple[EpochEntry, ...]) -> None:
    """Compare the log's epoch at the end of what was exported. Raises LogRewrittenError."""
    known, found = state.leader_epoch, epoch_at(epochs, state.end - 1)
    if NO_EPOCH in (known, found) or known == found:
        return
    found = _epoch_of_batch(directory, state.end - 1)
    if found in (NO_EPOCH, known):
        return
    raise LogRewrittenError(
        f"{directory.topic}-{directory.partition}: offset {state.end - 1} was exported in leader epoch {known}, the "
        f"log has it in epoch {found}: it was cut and written again; expected the log that was exported before"
    )


def _epoch_of_batch(directory: PartitionDirectory, offset: int) -> int:
    """Read the epoch of the batch that has an offset, NO_EPOCH without one."""
    try:
        segments = [segment for segment in list_segments(directory.path) if segment.base_offset <= offset]
        with OpenSegment(segments[-1].path) as file:
            batch = next(one for one in headers(file, 0, file.size) if one.last_offset >= offset)
    except (FileNotFoundError, IndexError, StopIteration, KafkaStorageError):
        return NO_EPOCH
    return batch.leader_epoch if batch.base_offset <= offset else NO_EPOCH
