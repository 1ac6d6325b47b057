"""First and last offsets of a partition's log, with and without a broker.

Without one (files alone):

    start        log-start-offset-checkpoint, but not below the first segment's base offset
    end          the end of the valid batches of the last segment (a torn tail is not part of it)
    last stable  the first offset of the oldest open transaction, from the newest producer snapshot and the batches
                 after it; the end when no transaction is open

The broker's own checkpoint of high watermarks is written every five seconds: a reader that trusted it would miss the
newest records. With one replica and without ``flush.messages`` the high watermark *is* the end of the log. With
``flush.messages`` it may be lower, so a power loss can still remove the newest records that are read. Of a partition
with several replicas the valid end may lie above the high watermark: ``LogWatch`` then ends where the leaders' answers
to ListOffsets say (``kafka.bootstrap.servers``), or without them at the checkpoint, up to five seconds behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidelog.client.admin.offsets import READ_COMMITTED, log_ends
from tidelog.client.cluster import Cluster, Trouble
from tidelog.client.connection import PLAIN
from tidelog.client.security import Security
from tidelog.log.files.checkpoints import LOG_START_OFFSET_FILE, read_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.batch_walk import valid_end
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import batch_at, offset_index
from tidelog.pipeline.files.storage import files_at, is_directory
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST, PartitionOffsets, from_json, to_json
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.plan.transactions.last_stable import first_unstable_offset
from tidelog.protocol.errors import KafkaStorageError

__all__ = ["EARLIEST", "LATEST", "LogBounds", "PartitionOffsets", "broker_ends", "from_json", "log_bounds", "to_json"]


_Seen = TypeVar("_Seen")
#: How often the bounds are looked up at most: again if the cleaner or retention removed files meanwhile.
ATTEMPTS = 5
#: How long a request to a broker may take, and how long a leader is searched for, in seconds.
TIMEOUT_S = 10.0


class LogBounds(NamedTuple):
    """First offset, the offset after the last record, and the last stable offset, where read_committed ends."""

    start: int
    end: int
    last_stable: int


def log_bounds(
    directory: PartitionDirectory,
    *,
    read_committed: bool = False,
    count: ReadCount | None = None,
    accepts_damage: bool = False,
) -> LogBounds:
    """Compute the bounds of a partition from its files. ``last_stable`` is looked up only with ``read_committed``,
    otherwise it is the end. With ``accepts_damage`` the checkpoint of start offsets may be unreadable. Raises
    PipelineError, CorruptBatchError.
    """
    starts = read_checkpoint(start_offsets_path(directory), accepts_damage=accepts_damage)
    start = checkpointed_start(directory, starts)
    return retry_on_deletion(directory, lambda: bounds_of(list_segments(directory.path), start, read_committed, count))


def retry_on_deletion(directory: PartitionDirectory, look: Callable[[], _Seen]) -> _Seen:
    """Return the value of ``look``, called again if a file was deleted. Raises PipelineError after ATTEMPTS, or if the
    directory was deleted."""
    for _ in range(ATTEMPTS):
        try:
            return look()
        except FileNotFoundError:
            if not is_directory(directory.path):
                raise PipelineError(f"{directory.path} was deleted: its topic is gone") from None
    raise PipelineError(f"{directory.path}: its segments were deleted faster than they could be read")


def bounds_of(
    segments: Sequence[SegmentFile], checkpointed: int, read_committed: bool, count: ReadCount | None
) -> LogBounds:
    """Compute the bounds of a log that has these segments. Raises FileNotFoundError when one is deleted meanwhile,
    PipelineError, CorruptBatchError.
    """
    if not segments:
        return LogBounds(0, 0, 0)
    start = max(segments[0].base_offset, checkpointed)
    end = max(start, end_of_segment(segments[-1], count))
    if not read_committed:
        return LogBounds(start, end, end)
    unstable = first_unstable_offset(segments, end, count)
    return LogBounds(start, end, end if unstable is None else min(end, max(unstable, start)))


def start_offsets_path(directory: PartitionDirectory) -> str:
    """Return the checkpoint of log start offsets that covers a partition."""
    return os.path.join(os.path.dirname(directory.path), LOG_START_OFFSET_FILE)


def read_checkpoint(path: str, *, accepts_damage: bool = False) -> Mapping[TopicPartition, int]:
    """Read a checkpoint of a data directory; empty when there is none. One that cannot be read raises PipelineError;
    with ``accepts_damage`` it is empty, too."""
    try:
        return read_offset_checkpoint(files_at(path), path)
    except KafkaStorageError as error:
        if accepts_damage:
            return {}
        raise PipelineError(str(error)) from error


def checkpointed_start(directory: PartitionDirectory, offsets: Mapping[TopicPartition, int]) -> int:
    """Return the start offset that the checkpoint gives a partition."""
    return offsets.get(TopicPartition(directory.topic, directory.partition), 0)


def end_of_segment(segment: SegmentFile, count: ReadCount | None = None) -> int:
    """Find the offset after the last valid record of a segment; its base offset when it is empty."""
    with OpenSegment(segment.path, count) as file:
        index = offset_index(segment, count)
        try:
            # the last entries may point to records that were truncated: three are tried, then the whole segment is read
            for slot in range(index.entries - 1, max(-1, index.entries - 4), -1):
                batch = batch_at(file, index, slot, segment.base_offset)
                if batch is None:
                    continue
                found = valid_end(file, segment.base_offset, batch.position)
                if found.next_offset > segment.base_offset + index.entry(slot).key:
                    return found.next_offset
        finally:
            index.close()
        return valid_end(file, segment.base_offset).next_offset


def broker_ends(
    bootstrap: str,
    directories: Iterable[PartitionDirectory],
    *,
    read_committed: bool = False,
    security: Security = PLAIN,
) -> PartitionOffsets:
    """Ask the leader of each partition by ListOffsets for its end: the high watermark, or with ``read_committed`` the
    last stable offset. Raises PipelineError.
    """
    partitions = [(directory.topic, directory.partition) for directory in directories]
    try:
        with Cluster(bootstrap, TIMEOUT_S, security) as cluster:
            found = log_ends(cluster, partitions, isolation_level=READ_COMMITTED if read_committed else 0)
    except Trouble as error:
        raise PipelineError(f"kafka.bootstrap.servers={bootstrap}: {error}") from error
    ends: PartitionOffsets = {}
    for (topic, number), offset in found.items():
        ends.setdefault(topic, {})[number] = offset
    return ends
