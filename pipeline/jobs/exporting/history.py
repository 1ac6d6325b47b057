"""Leader epochs of exported logs: they show whether a log was truncated and written again since the last export.

    exported: offsets below 150, the last one in epoch 6
    epochs of the log now:  5 from 0, 6 from 100                 the log that was exported
                            5 from 0, 6 from 100, 7 from 140     truncated at 140 and written again: refused

Offsets alone do not show the difference once the log is as long as it was before. A leader that stays the same keeps
its epoch. After a power loss its log may lack exported records that were not synced; once the log is as long as before,
this is not noticed. A log without ``leader-epoch-checkpoint`` (an old format, or a copy without it) is accepted.

A replica that was fetched from a compacted leader, or whose epochs were rebuilt from a compacted log, may have larger
start offsets of epochs. So if epochs differ, the epoch in the offset's batch decides. If a cleaner has removed the
batch, the log is accepted.
"""

from __future__ import annotations

import os

from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE, CheckpointCorruptError, EpochEntry, read_leader_epochs
from tidelog.pipeline.errors import LogRewrittenError
from tidelog.pipeline.export.manifest import PartitionState
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.storage import files_at
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.errors import KafkaStorageError

NO_EPOCH = -1


def epochs_of(directory: PartitionDirectory) -> tuple[EpochEntry, ...]:
    """Read the leader epochs of a log; empty if they are not known.

    Call it after looking up the log's end: a broker writes an epoch to the file before it appends the epoch's first
    record.
    """
    path = os.path.join(directory.path, LEADER_EPOCH_FILE)
    try:
        return tuple(read_leader_epochs(files_at(path), path))
    except (CheckpointCorruptError, KafkaStorageError, OSError):
        return ()


def epoch_at(epochs: tuple[EpochEntry, ...], offset: int) -> int:
    """Find the epoch of an offset, NO_EPOCH if it lies before the first entry."""
    return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=NO_EPOCH)


def require_same_history(directory: PartitionDirectory, state: PartitionState, epochs: tuple[EpochEntry, ...]) -> None:
    """Check that the log's epoch of the last exported offset has not changed.

    Raises LogRewrittenError if it has changed, other PipelineErrors if the log cannot be read.
    """
    exported, found = state.leader_epoch, epoch_at(epochs, state.end - 1)
    if NO_EPOCH in (exported, found) or exported == found:
        return
    found = _epoch_of_batch(directory, state.end - 1)
    if found in (NO_EPOCH, exported):
        return
    raise LogRewrittenError(
        f"{directory.topic}-{directory.partition}: offset {state.end - 1} was exported in leader epoch {exported}, the "
        f"log has epoch {found} there: it was truncated and written again; expected the log that was exported before"
    )


def _epoch_of_batch(directory: PartitionDirectory, offset: int) -> int:
    """Read the epoch of the batch that has an offset, NO_EPOCH if there is none."""
    try:
        segments = [segment for segment in list_segments(directory.path) if segment.base_offset <= offset]
        with OpenSegment(segments[-1].path) as file:
            batch = next(one for one in headers(file, 0, file.size) if one.last_offset >= offset)
    except (FileNotFoundError, IndexError, StopIteration):
        return NO_EPOCH
    return batch.leader_epoch if batch.base_offset <= offset else NO_EPOCH
