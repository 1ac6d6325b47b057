"""The chosen partitions and their first and last offsets (bounds). A stream looks them up at every trigger, a batch
query once.

Only what has changed is read again:

    data directory unchanged                     it is not listed                  (``tidelog.pipeline.plan.selection``)
    checkpoint of start offsets unchanged        it is not parsed
    partition directory and active segment unchanged, same start     the bounds are those of the last time

So a chosen partition in which nothing happens costs four ``stat``s: of its metadata, the checkpoint, its directory and
its active segment. Other partitions of the data directory cost none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.errors import OffsetRangeError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.files.stamps import Stamp, settled_stamp_of, stamp_of
from tidelog.pipeline.files.storage import for_each
from tidelog.pipeline.options.offset_json import PartitionOffsets
from tidelog.pipeline.options.options import SourceOptions
from tidelog.pipeline.plan.offsets import (
    LogBounds,
    bounds_of,
    broker_ends,
    checkpointed_start,
    read_checkpoint,
    retry_on_deletion,
    start_offsets_path,
)
from tidelog.pipeline.plan.replicas import best_of, cut_to, high_watermarks_path, known_high_watermark
from tidelog.pipeline.plan.selection import PartitionDirectory, PartitionFinder


class Partition(NamedTuple):
    """A partition with the bounds that were looked up for it."""

    directory: PartitionDirectory
    bounds: LogBounds

    @property
    def end(self) -> int:
        """End of the visible offsets: the broker's answer if a broker is given; else the log's end, or with
        ``read_committed`` the last stable offset. If the partition is known to have other replicas, it is at most the
        known high watermark."""
        return self.bounds.last_stable


class _Seen(NamedTuple):
    """Bounds of a log, and the stamps of its directory and active segment from when they were looked up."""

    directory: Stamp | None
    active_path: str
    active: Stamp | None
    start: int
    bounds: LogBounds


class LogWatch:
    """Look-up of the partitions that the options choose, which keeps what it read. One thread."""

    def __init__(self, options: SourceOptions, *, accepts_damage: bool = False) -> None:
        """``accepts_damage``: a partition whose metadata cannot be read gets no topic id, and a checkpoint that cannot
        be read has no entries; otherwise both are errors."""
        self._accepts_damage = accepts_damage
        self._options = options
        self._finder = PartitionFinder(options.paths, options.choice, accepts_damage=accepts_damage)
        self._logs: dict[str, _Seen] = {}
        self._checkpoints: dict[str, tuple[Stamp | None, Mapping[TopicPartition, int]]] = {}

    def partitions(self, count: ReadCount | None = None) -> list[Partition]:
        """Find the current partitions: bounds from the files, ends from the broker when one is given. Raises
        PipelineError."""
        groups = self._finder.find_replicas()
        options, ends = self._options, PartitionOffsets()
        if options.bootstrap is not None:
            first = [replicas[0] for replicas in groups]
            ends = broker_ends(
                options.bootstrap, first, read_committed=options.read_committed, security=options.security
            )
        found = for_each(groups, lambda replicas: replicas[0].path, lambda group: self._choose(group, ends, count))
        paths = [directory.path for replicas in groups for directory in replicas]
        if len(self._logs) > 2 * len(paths):
            self._logs = {path: self._logs[path] for path in paths}
        return found

    def _choose(
        self, replicas: tuple[PartitionDirectory, ...], ends: PartitionOffsets, count: ReadCount | None
    ) -> Partition:
        """Return the partition of one directory, or of the best of several replicas, up to the offset below which
        records are known to be committed.
        """
        if len(replicas) == 1:
            return self._with_bounds(replicas[0], ends, count)
        end = ends.get(replicas[0].topic, {}).get(replicas[0].partition)
        read_committed = self._options.read_committed and end is None
        bounds = [self._bounds(replica, read_committed, count) for replica in replicas]
        if end is not None:
            longest = max(range(len(replicas)), key=lambda number: bounds[number].end)
            return self._with_bounds(replicas[longest], ends, count)
        checkpoints = [self._checkpoint(high_watermarks_path(replica)) for replica in replicas]
        mark = known_high_watermark(replicas, checkpoints)
        committed = [cut_to(one, mark) for one in bounds]
        best = best_of(committed)
        return Partition(replicas[best], committed[best])

    def _with_bounds(self, directory: PartitionDirectory, ends: PartitionOffsets, count: ReadCount | None) -> Partition:
        end = ends.get(directory.topic, {}).get(directory.partition)
        found = self._bounds(directory, self._options.read_committed and end is None, count)
        if end is None:
            return Partition(directory, self._cut_uncommitted(directory, found))
        if found.end < end:  # a broker writes records to its files before it reports their offsets
            raise OffsetRangeError(
                f"{directory.path} ends at offset {found.end}, {self._options.bootstrap} has {end}: "
                "expected the data directory of that broker"
            )
        return Partition(directory, LogBounds(found.start, end, end))

    def _cut_uncommitted(self, directory: PartitionDirectory, found: LogBounds) -> LogBounds:
        """Return the bounds of a directory's log with its visible end cut to the known high watermark, if the partition
        has other replicas: later records may be truncated."""
        if (directory.topic, directory.partition) not in self._options.replicated:
            return found
        mark = known_high_watermark((directory,), (self._checkpoint(high_watermarks_path(directory)),))
        return LogBounds(found.start, found.end, max(found.start, min(found.last_stable, mark)))

    def _bounds(self, directory: PartitionDirectory, read_committed: bool, count: ReadCount | None) -> LogBounds:
        start = self._checkpointed_start(directory)
        seen = self._logs.get(directory.path)
        if seen is None or seen.start != start or not _is_unchanged(directory.path, seen):
            seen = retry_on_deletion(directory, lambda: _look(directory.path, start, read_committed, count))
            self._logs[directory.path] = seen
        return seen.bounds

    def _checkpointed_start(self, directory: PartitionDirectory) -> int:
        return checkpointed_start(directory, self._checkpoint(start_offsets_path(directory)))

    def _checkpoint(self, path: str) -> Mapping[TopicPartition, int]:
        """Return a checkpoint of a data directory, which is read when it has changed. Raises PipelineError."""
        stamp = stamp_of(path)
        known = self._checkpoints.get(path)
        if known is None or known[0] != stamp:
            found = read_checkpoint(path, accepts_damage=self._accepts_damage)
            known = self._checkpoints[path] = stamp, found
        return known[1]


def _look(path: str, start: int, read_committed: bool, count: ReadCount | None) -> _Seen:
    directory = settled_stamp_of(path)  # stamps first: what changes from here on shows in the next ones
    segments = list_segments(path)
    active_path = segments[-1].path if segments else path
    active = stamp_of(active_path)
    return _Seen(directory, active_path, active, start, bounds_of(segments, start, read_committed, count))


def _is_unchanged(path: str, seen: _Seen) -> bool:
    return (
        seen.directory is not None
        and seen.directory == settled_stamp_of(path)
        and seen.active is not None
        and seen.active == stamp_of(seen.active_path)
    )
