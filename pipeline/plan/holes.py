"""Offsets that no batch holds: removed by a cleaner, or lost.

Every offset of a log that was never compacted is in a batch: of data, aborted or not, or of a control record. So where
two batches do not follow each other, a cleaner has removed records, or records are lost. The rules, in this order::

    hole ends at or below the log's entry in cleaner-offset-checkpoint    compacted
    hole within a file that begins below that entry                       compacted: a cleaner takes files as a whole
    a batch after the hole or in its file lacks records,
    or has a delete horizon                                               compacted: only a cleaner writes such batches,
                                                                          and it works from the log's beginning
    anything else                                                         lost

The broker saves the checkpoint a moment after it has swapped files, so where a file was changed just now the checkpoint
is read again for a while. Apache Kafka saves it only at the end of a cleaner's round. A replica that was fetched
from a compacted leader has holes before its own cleaner has run. The third rule explains such holes only if batches
have several records: a batch of one record is usually removed as a whole. Without the checkpoint, or without
an entry in it, only the third rule explains a hole. A segment that is missing below the checkpoint's entry cannot be
distinguished from compaction.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE, read_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.pipeline.errors import CorruptBatchError, DataLossError
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.remote import is_remote
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.stamps import Stamp, stamp_of
from tidelog.pipeline.files.storage import files_at
from tidelog.pipeline.plan.rows import LostRange
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import DELETE_HORIZON_MASK, MAGIC_V2

logger = logging.getLogger(__name__)

#: How long a broker may take from swapping files to saving its checkpoint.
SAVE_PATIENCE_S = 1.0
#: A file that has not changed for so long was not swapped just now; clocks of file servers differ a little.
RECENT_S = 10.0
_POLL_S = 0.02
#: How often files are listed and searched for a cleaner's batches, if the cleaner or retention removes files meanwhile.
ATTEMPTS = 5
_NOWHERE = 1 << 63
#: The checkpoints that were read last, by path: a plan asks for each of its partitions.
_CHECKPOINTS: dict[str, tuple[Stamp | None, dict[TopicPartition, int]]] = {}
MAX_REMEMBERED = 100


class Hole(NamedTuple):
    """Offsets from ``start`` to below ``end`` that are in no batch. ``before`` and ``after`` are the files around it,
    the same one for a hole within a file.
    """

    start: int
    end: int
    before: SegmentFile
    after: SegmentFile

    @property
    def is_in_file(self) -> bool:
        return self.before == self.after

    def __str__(self) -> str:
        if self.is_in_file:
            return f"in {self.before.path}"
        return f"between {self.before.path} and {self.after.path}"


class Holes:
    """The decision which holes of one partition are lost records. ``cleaned_below`` is the offset up to which a cleaner
    is known to have worked. One thread."""

    def __init__(
        self,
        partition: TopicPartition,
        directory: str,
        *,
        fail_on_data_loss: bool,
        lost: list[LostRange],
        count: ReadCount | None = None,
    ) -> None:
        """``lost`` gets the lost ranges when they are not an error."""
        self._partition = partition
        self._directory = directory
        self._fails = fail_on_data_loss
        self._lost = lost
        self._count = count
        self._unmarked_from = _NOWHERE
        self.cleaned_below = 0

    def judge(self, hole: Hole) -> None:
        """Decide whether a hole is lost records. If it is, raise DataLossError, or log it and add it to ``lost`` where
        lost records are not an error. Raises PipelineError when a file cannot be read."""
        if self._is_compacted(hole):
            return
        topic, number = self._partition
        what = f"{topic}-{number}: offsets {hole.start} to {hole.end - 1} are missing {hole}: {self._explain()}"
        if self._fails:
            raise DataLossError(f"{what} (failOnDataLoss=false, an export's --accept-data-loss, would go on there)")
        logger.warning("data loss: %s", what)
        self._lost.append(LostRange(topic, number, hole.start, hole.end))

    def _is_compacted(self, hole: Hole) -> bool:
        if hole.end <= self.cleaned_below or self._checkpoint_explains(hole):
            return True
        marked = self._marked_below(hole.before.base_offset if hole.is_in_file else hole.end)
        if marked:
            self.cleaned_below = max(self.cleaned_below, marked, hole.end)
            return True
        return self._wait_for_checkpoint(hole)

    def _marked_below(self, start: int) -> int:
        """Return the result of ``marked_below``. A search to the log's end that found nothing is not repeated: a log
        may have a hole after each record, and each search reads all later headers."""
        if start >= self._unmarked_from:
            return 0
        marked = marked_below(self._directory, start, self._count)
        if not marked:
            self._unmarked_from = start
        return marked

    def _checkpoint_explains(self, hole: Hole) -> bool:
        try:
            below = checkpointed_below(self._partition, self._directory)
        except KafkaStorageError:
            return False
        self.cleaned_below = max(self.cleaned_below, below)
        return hole.end <= below or (hole.is_in_file and hole.before.base_offset < below)

    def _wait_for_checkpoint(self, hole: Hole) -> bool:
        """Wait for the checkpoint if a file was swapped just now; returns whether it then explains the hole."""
        deadline = time.monotonic() + SAVE_PATIENCE_S
        while any(_is_recent(file.path) for file in (hole.before, hole.after)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            if self._checkpoint_explains(hole):
                return True
        return False

    def _explain(self) -> str:
        path = os.path.join(os.path.dirname(self._directory), CLEANER_OFFSET_FILE)
        if not files_at(path).exists(path):
            return f"there is no {path}, so nothing says that they were compacted"
        try:
            below = checkpointed_below(self._partition, self._directory)
        except KafkaStorageError as error:
            return f"nothing says that they were compacted: {error}"
        return f"{path} says that the log was compacted below offset {below}" if below else (
            f"it was never compacted, {path} has no entry for it"
        )  # fmt: skip


def checkpointed_below(partition: TopicPartition, directory: str) -> int:
    """Return the offset up to which the cleaner has worked in the log of ``directory``; 0 when it has not worked there.

    Raises KafkaStorageError when the checkpoint cannot be read, RemoteError when an object store fails.
    """
    path = os.path.join(os.path.dirname(directory), CLEANER_OFFSET_FILE)
    stamp = stamp_of(path)
    known = _CHECKPOINTS.get(path)
    if known is None or known[0] != stamp:
        known = stamp, read_offset_checkpoint(files_at(path), path)
        if len(_CHECKPOINTS) >= MAX_REMEMBERED:
            _CHECKPOINTS.clear()
        _CHECKPOINTS[path] = known
    return known[1].get(partition, 0)


def marked_below(directory: str, start: int, count: ReadCount | None = None) -> int:
    """Find the offset after the first batch from ``start`` on that only a cleaner can have written; 0 without one.

    Also 0 if a file disappears in each of ATTEMPTS tries. Raises PipelineError when a file cannot be read.
    """
    for _ in range(ATTEMPTS):
        try:
            return _find_mark(list_segments(directory), start, count)
        except FileNotFoundError:
            continue  # a file was swapped or deleted since it was listed, or the directory is gone
    return 0


def _find_mark(segments: Sequence[SegmentFile], start: int, count: ReadCount | None) -> int:
    """Find the offset that ``marked_below`` returns in these files. Raises FileNotFoundError."""
    ends = [segment.base_offset for segment in segments[1:]]
    for segment, end in zip(segments, [*ends, None], strict=True):
        if end is not None and end <= start:
            continue
        for header in _headers_from(segment, start, count):
            if is_marked(header):
                return header.last_offset + 1
    return 0


def is_marked(header: BatchHeader) -> bool:
    """Return whether only a cleaner can have written the batch."""
    return header.magic == MAGIC_V2 and (
        header.record_count <= header.last_offset_delta or bool(header.attributes & DELETE_HORIZON_MASK)
    )


def _headers_from(segment: SegmentFile, start: int, count: ReadCount | None) -> Iterator[BatchHeader]:
    """Yield the headers of a segment's batches from ``start`` on, up to damage. Raises FileNotFoundError."""
    try:
        with OpenSegment(segment.path, count) as file:
            yield from (header for header in headers(file, 0, file.size) if header.base_offset >= start)
    except CorruptBatchError:
        return


def _is_recent(path: str) -> bool:
    """Return whether a file was changed or renamed just now. A copy in an object store has no broker beside it."""
    if is_remote(path):
        return False
    try:
        return abs(time.time() - os.stat(path).st_ctime) < RECENT_S
    except OSError:
        return True  # deleted or renamed this moment
