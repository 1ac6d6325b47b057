"""The choice among the replicas of a partition, when the data directories of several brokers are read.

    broker 1   |=====================|-|          ends at 105, its checkpoint says 100
    broker 2   |================|                 ends at 90,  its checkpoint says 88
    broker 3   |=======================|----|     ends at 125, its checkpoint says 110    -> read, up to 110

Each broker writes its high watermarks to ``replication-offset-checkpoint``, by default every 5 s
(``replica.high.watermark.checkpoint.interval.ms``). Records below the largest of them are committed: all replicas are
equal there, while a record above it may still be truncated. So the replica that reaches furthest, up to that offset, is
read; of equal ones the one that begins first, or that was named first.

A partition that is in no checkpoint was created after they were written: nothing of it is known to be committed.
It is an error when there is no checkpoint at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tidelog.log.files.checkpoints import REPLICATION_OFFSET_FILE
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.errors import SelectionError
from tidelog.pipeline.plan.offsets import LogBounds
from tidelog.pipeline.plan.selection import PartitionDirectory


def high_watermarks_path(directory: PartitionDirectory) -> str:
    """Return the checkpoint of high watermarks that covers a partition's directory."""
    return os.path.join(os.path.dirname(directory.path), REPLICATION_OFFSET_FILE)


def known_high_watermark(
    replicas: Sequence[PartitionDirectory], checkpoints: Sequence[Mapping[TopicPartition, int]]
) -> int:
    """Return the largest high watermark that a checkpoint has for the partition; 0 if none has one.

    Raises SelectionError if all checkpoints are empty.
    """
    partition = TopicPartition(replicas[0].topic, replicas[0].partition)
    if not any(checkpoints):
        paths = ", ".join(replica.path for replica in replicas)
        one = ", or one of the paths" if len(replicas) > 1 else ""
        raise SelectionError(
            f"{partition} is in {paths}, and no {REPLICATION_OFFSET_FILE} says how much of it is committed: expected "
            f"that file beside them, or kafka.bootstrap.servers{one}"
        )
    return max(checkpoint.get(partition, 0) for checkpoint in checkpoints)


def cut_to(bounds: LogBounds, high_watermark: int) -> LogBounds:
    """Cut the bounds of a log to its committed records."""
    end = max(bounds.start, min(bounds.end, high_watermark))
    return LogBounds(bounds.start, end, min(bounds.last_stable, end))


def best_of(bounds: Sequence[LogBounds]) -> int:
    """Return the index of the bounds that reach furthest; of equal ones those that begin first."""
    return max(range(len(bounds)), key=lambda number: (bounds[number].end, -bounds[number].start, -number))
