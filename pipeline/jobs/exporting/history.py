"""Leader epochs of exported logs: they tell a log that went on from one that was cut and written again.

    exported up to offset 150, the record before it of epoch 6
    epochs of the log now:  5 from 0, 6 from 100                 the log that was exported
                            5 from 0, 6 from 100, 7 from 140     cut at 140 and written again: refused

Offsets alone do not tell the two apart once the log is as long again. A log whose leader stayed the same keeps its
epoch; what such a leader cuts it never wrote with the high watermark, which bounds an export. A log without
``leader-epoch-checkpoint`` (of old formats, of copies without it) is believed.
"""

from __future__ import annotations

import os

from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE, CheckpointCorruptError, EpochEntry, read_leader_epochs
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.errors import LogRewrittenError
from tidelog.pipeline.export.manifest import PartitionState
from tidelog.pipeline.files.storage import files_at
from tidelog.pipeline.plan.holes import checkpointed_below
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.errors import KafkaStorageError

NO_EPOCH = -1


def epochs_of(directory: PartitionDirectory) -> tuple[EpochEntry, ...]:
    """The leader epochs of a log, none where they are not known.

    Read it after the log's end: a broker notes an epoch before it appends the first record of it.
    """
    path = os.path.join(directory.path, LEADER_EPOCH_FILE)
    try:
        return tuple(read_leader_epochs(files_at(path), path))
    except (CheckpointCorruptError, KafkaStorageError, OSError):
        return ()


def epoch_at(epochs: tuple[EpochEntry, ...], offset: int) -> int:
    """The epoch of an offset, NO_EPOCH where no entry reaches it."""
    return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=NO_EPOCH)


def require_same_history(directory: PartitionDirectory, state: PartitionState, epochs: tuple[EpochEntry, ...]) -> None:
    """Compare the log's epoch at the end of what was exported. Raises LogRewrittenError."""
    known, found = state.leader_epoch, epoch_at(epochs, state.end - 1)
    if NO_EPOCH in (known, found) or known == found:
        return
    if found < known and _is_cleaned(directory):
        return  # epochs that are rebuilt from a compacted log may begin later than they did
    raise LogRewrittenError(
        f"{directory.topic}-{directory.partition}: offset {state.end - 1} was exported in leader epoch {known}, the "
        f"log has it in epoch {found}: it was cut and written again; expected the log that was exported before"
    )


def _is_cleaned(directory: PartitionDirectory) -> bool:
    try:
        return checkpointed_below(TopicPartition(directory.topic, directory.partition), directory.path) > 0
    except CheckpointCorruptError:
        return True
