"""The kernels with the reference's signatures: rows and index files shown to them as numpy arrays, nothing copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from log.find import kernels
from log.find.reference import Put, Stop, Walk, Wanted

if TYPE_CHECKING:
    from log.consume_queue import ConsumeQueueFile
    from log.find.rows import Rows
    from log.index_file import IndexFile


def walk_chunk(rows: Rows, chunk: memoryview, wanted: Wanted, base_position: int) -> Walk:
    """See :func:`log.find.reference.walk_chunk`."""
    stop, position, next_offset, rows.count = kernels.walk_chunk(
        np.frombuffer(chunk, np.uint8),
        base_position,
        wanted.seed,
        np.frombuffer(wanted.tag_header or b"", np.uint8),
        rows.count,
        _column(rows.offsets),
        _column(rows.timestamps),
        _column(rows.key_hashes),
        _column(rows.tag_hashes),
        _column(rows.positions),
        _column(rows.sizes),
        rows.capacity,
    )
    return Walk(Stop(stop), position, next_offset)


def put_entries(file: IndexFile, rows: Rows, start: int, end: int) -> Put:
    """See :func:`log.find.reference.put_entries`."""
    bounds = file.bounds
    state = (file.slots, file.capacity, bounds.next_entry, bounds.begin_timestamp)
    columns = (_column(rows.offsets), _column(rows.timestamps), _column(rows.key_hashes))
    return Put(*kernels.put_entries(np.frombuffer(file.data, np.uint8), state, *columns, start, end))


def put_tags(file: ConsumeQueueFile, rows: Rows, start: int, end: int) -> None:
    """See :func:`log.find.reference.put_tags`."""
    columns = (_column(rows.offsets), _column(rows.positions), _column(rows.sizes), _column(rows.tag_hashes))
    kernels.put_tags(np.frombuffer(file.data, np.uint8), file.base_offset, *columns, start, end)


def _column(column: Any) -> Any:
    return np.frombuffer(column, np.int64)
