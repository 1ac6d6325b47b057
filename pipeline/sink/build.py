"""The choice of a builder of record sections from columns: kernels for many rows if numba is there, else plain Python.

After KERNEL_ROWS rows the kernels are imported (0.7 s, once per process, from numba's cache on disk; 5 s more where
nothing is cached yet), in the calling thread: this serves writers outside the broker, which have nothing else to do
meanwhile. In a process that has them they are used at once. Results are equal
(``tidelog.pipeline.sink.build_reference``).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tidelog.pipeline.sink import build_reference
from tidelog.pipeline.sink.build_reference import ByteColumn, RecordColumns, Taken
from tidelog.protocol.record.record_batch import Buffer

if TYPE_CHECKING:
    from tidelog.pipeline.sink.build_reference import IntegerArray

__all__ = ["ByteColumn", "RecordColumns", "SectionBuilder", "Taken", "byte_column", "read_only"]

#: Rows of one builder after which importing the kernels pays: the plain version takes 10 µs a row.
KERNEL_ROWS = 50_000
_KERNELS = "tidelog.pipeline.sink.build_kernels"


def read_only(array: IntegerArray) -> IntegerArray:
    """The array as int64, contiguous and closed for writing, as the kernels take it."""
    view = np.ascontiguousarray(array, np.int64).view()
    view.flags.writeable = False
    return view


def byte_column(data: Buffer, start: IntegerArray, length: IntegerArray) -> ByteColumn:
    """A column over any buffer; ``length`` -1 is null."""
    view = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
    view.flags.writeable = False
    return ByteColumn(view, read_only(start), read_only(length))


@functools.cache
def load_kernels() -> ModuleType | None:
    """The kernels, imported now if need be; None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from tidelog.log.records.kernel_loader import ensure_cache_directory

    ensure_cache_directory(Path(__file__).resolve().parent)
    from tidelog.pipeline.sink import build_kernels

    return build_kernels


class SectionBuilder:
    """Builds sections from columns; ``kernel_rows`` None never uses kernels. One thread at a time."""

    def __init__(self, kernel_rows: int | None = KERNEL_ROWS) -> None:
        self._kernel_rows = kernel_rows
        self._kernels: ModuleType | None = None
        self._rows = 0

    def expect_rows(self, count: int) -> None:
        """Announce the next rows: change over to the kernels, for good, when that is worth it."""
        if self._kernels is not None or self._kernel_rows is None:
            return
        self._rows += count
        if self._rows >= self._kernel_rows or _KERNELS in sys.modules:
            self._kernels = load_kernels()

    def key_hashes(self, keys: ByteColumn) -> IntegerArray:
        """See ``build_reference.key_hashes``; int64, shape (rows,)."""
        if self._kernels is None:
            return np.array(build_reference.key_hashes(keys), np.int64)
        hashes: IntegerArray = np.empty(keys.length.size, np.int64)
        self._kernels.key_hashes(keys, hashes)
        return hashes

    def take(self, columns: RecordColumns, rows: IntegerArray, first: int, limit_bytes: int) -> Taken:
        """See ``build_reference.take``."""
        if self._kernels is None:
            return build_reference.take(columns, rows.tolist(), first, limit_bytes)
        return Taken(*self._kernels.take(columns, rows, first, limit_bytes))

    def encode(self, columns: RecordColumns, rows: IntegerArray, first: int, taken: Taken) -> Buffer:
        """See ``build_reference.encode``."""
        if self._kernels is None:
            return build_reference.encode(columns, rows.tolist(), first, taken)
        section = np.empty(taken.section_bytes, np.uint8)
        self._kernels.encode(columns, rows, first, taken.rows, section)
        return section.data
