"""The decoder of slices of segments (``plan.rows``) to Arrow record batches in the schema of Spark's Kafka source.

    open the file -> still the one that was planned?  yes -> its bytes are decoded
                                                      no  -> the slice's offsets are planned again, in the current files

The cleaner swaps segments and retention deletes them while queries run. An open file stays readable under renames and
deletion. If it was renamed or replaced before it was opened, its offsets are looked up again. Deleted records raise
DataLossError; with ``fail_on_data_loss=False`` reading goes on at the first existing record.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from tidelog.log.files.checkpoints import read_partition_metadata
from tidelog.pipeline.decode import layout
from tidelog.pipeline.decode.column_reader import ColumnReader
from tidelog.pipeline.errors import CorruptBatchError, DataLossError, ObjectGoneError, PipelineError, RemoteError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.remote import is_remote
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.storage import files_at
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, RowFilter, SegmentSlice, plan_range
from tidelog.pipeline.plan.rows import LostRange
from tidelog.pipeline.plan.selection import PartitionDirectory, recreated_error
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.pipeline.decode.column_reader import Block

logger = logging.getLogger(__name__)

#: How often a slice is read or planned at most: again if its files were renamed or deleted before they were opened.
ATTEMPTS = 5


class Isolation(Enum):
    """The isolation level of a read: ``read_committed`` leaves out records of aborted transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(slots=True)
class ReadOptions:
    """Options of reading slices: isolation, lost records, filter, and the count to which bytes read are added.

    Without ``fail_on_data_loss``, lost ranges are added to ``lost``. ``looks_for_holes`` is false when holes (missing
    offsets, ``plan.holes``) were checked before.
    """

    isolation: Isolation = Isolation.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    row_filter: RowFilter = field(default_factory=RowFilter)
    count: ReadCount = field(default_factory=ReadCount)
    lost: list[LostRange] = field(default_factory=list)
    looks_for_holes: bool = True


def read_slice(
    piece: SegmentSlice,
    wanted: Columns,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    options: ReadOptions | None = None,
) -> Iterator[Any]:
    """Yield the records of a slice as ``pyarrow.RecordBatch``es in offset order; none is empty.

    ``isolation`` is short for ``options`` with this isolation and defaults; beside ``options`` it has no effect.
    Raises CorruptBatchError, DataLossError, TopicRecreatedError, MalformedTimestampError, PipelineError.
    """
    from tidelog.pipeline.decode.arrow_rows import ArrowRows

    options = options or ReadOptions(isolation)
    rows = ArrowRows(piece, wanted)
    for block in read_blocks(piece, options):
        yield from rows.add(block)
    if rows.rows:
        yield rows.finish()


def read_blocks(piece: SegmentSlice, options: ReadOptions | None = None) -> Iterator[Block]:
    """Yield the records of a slice as positions in buffers, without Arrow; each block is valid until the next.

    Raises as :func:`read_slice`, but not MalformedTimestampError.
    """
    options = options or ReadOptions()
    start = piece.start_offset
    for _ in range(ATTEMPTS):
        try:
            for current, file in _open(replace(piece, start_offset=start), options):
                with file:
                    for block in _blocks_of(current, file, options):
                        yield block
                        start = int(block.table[layout.OFFSET, block.last - 1]) + 1
        except ObjectGoneError:
            continue  # only in an object store: plan the rest again, in the current files
        return
    raise PipelineError(f"{piece.path}: its segments were deleted faster than they could be read")


def _blocks_of(piece: SegmentSlice, file: OpenSegment, options: ReadOptions) -> Iterator[Block]:
    is_committed = options.isolation is Isolation.READ_COMMITTED
    file.expect(piece.start_position, piece.end_position)
    reader = ColumnReader(
        piece,
        file,
        options.row_filter,
        read_committed=is_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        looks_for_holes=options.looks_for_holes,
    )
    try:
        yield from reader.blocks()
        _note_lost(options.lost, reader.lost)
    except (CorruptBatchError, DataLossError):
        if not file.was_replaced():
            _note_lost(options.lost, reader.lost)  # reading may go on after the damage
            raise
    if file.was_replaced():
        raise RemoteError(f"{file.path} was replaced while it was read: read it again")


def _note_lost(noted: list[LostRange], found: Iterable[LostRange]) -> None:
    """Note the ranges that are missing; reading around damage may find some of them again."""
    known = set(noted)
    noted += [one for one in found if one not in known]


def _open(piece: SegmentSlice, options: ReadOptions) -> Iterator[tuple[SegmentSlice, OpenSegment]]:
    """Open the file that a slice was planned for, or, if another file has its name now, the files that hold its
    offsets."""
    file = open_planned(piece, options.count)
    if file is not None:
        yield piece, file
        return
    start = piece.start_offset
    for _ in range(ATTEMPTS):
        for current in plan_again(replace(piece, start_offset=start), options):
            file = open_planned(current, options.count)
            if file is None:
                break
            yield current, file
            start = current.end_offset
        else:
            return
    raise PipelineError(f"{piece.path}: its segments were deleted faster than they could be read")


def open_planned(piece: SegmentSlice, count: ReadCount) -> OpenSegment | None:
    """Open the file of a slice; None when it is gone, or another file has its name. Raises PipelineError."""
    try:
        file = OpenSegment(piece.path, count)
    except FileNotFoundError:
        return None
    is_same = not piece.inode or file.is_same(piece.inode, piece.ctime_ns, piece.end_position)
    if is_same and not _is_of_another_topic(piece):
        return file
    file.close()
    return None


def _is_of_another_topic(piece: SegmentSlice) -> bool:
    """Return whether the active segment of a slice belongs to a topic that was created again: its file may have the
    inode of the deleted one, and no other value shows that. True also if the topic's id cannot be read. An object of a
    store has a version of its own."""
    if piece.topic_id is None or piece.ctime_ns or is_remote(piece.path):
        return False
    directory = os.path.dirname(piece.path)
    try:
        topic_id = read_partition_metadata(files_at(directory), directory)
    except KafkaStorageError:
        return True
    return topic_id is not None and topic_id != piece.topic_id


def plan_again(piece: SegmentSlice, options: ReadOptions) -> list[SegmentSlice]:
    """Plan the offsets of ``piece`` in the current files, where other files may have its segment's name. Raises
    DataLossError, TopicRecreatedError, other PipelineErrors."""
    directory = os.path.dirname(piece.path)
    name = f"{piece.topic}-{piece.partition}"
    try:
        topic_id = read_partition_metadata(files_at(directory), directory)
        segments = list_segments(directory)
    except FileNotFoundError:
        topic_id, segments = None, []
    except KafkaStorageError as error:
        raise PipelineError(f"{directory}: {error}") from error
    if piece.topic_id is not None and topic_id is not None and topic_id != piece.topic_id:
        raise recreated_error(piece.topic, piece.topic_id, topic_id)
    first = segments[0].base_offset if segments else piece.end_offset
    if first > piece.start_offset and options.fail_on_data_loss:
        what = f"the log begins at {first}" if segments else f"{directory} is gone"
        raise DataLossError(
            f"{name}: records from {piece.start_offset} to {min(first, piece.end_offset) - 1} were deleted while the "
            f"query ran: {what} (failOnDataLoss=false would go on with the existing records)"
        )
    if not segments:
        lost = LostRange(piece.topic, piece.partition, piece.start_offset, piece.end_offset)
        logger.warning("data loss: %s: records from %s to %s are gone", name, lost.start, lost.end - 1)
        options.lost.append(lost)
        return []
    partition = PartitionDirectory(piece.topic, piece.topic_id, piece.partition, directory)
    wanted = OffsetRange(partition, piece.start_offset, piece.end_offset)
    request = ReadRequest(
        ranges=(wanted,),
        bytes_per_task=1 << 62,
        fail_on_data_loss=options.fail_on_data_loss,
        count=options.count,
        looks_for_holes=options.looks_for_holes,
        lost=options.lost,
    )
    return plan_range(wanted, request)
