"""The choice of an audit's record engine: the kernels if numba is installed, else the plain reference.

Jobs run in processes of their own, so the kernels are loaded at once and without a background thread; their machine
code comes from the cache on disk after the first time. Results are equal. Any thread.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

from tidelog.pipeline.engine import reference
from tidelog.pipeline.engine.reference import ByteArray, IntegerArray, WordArray

KERNELS = "tidelog.pipeline.engine.kernels"


@functools.cache
def load_kernels() -> ModuleType | None:
    """Import the compiled module; None if numba is missing."""
    if importlib.util.find_spec("numba") is None:
        return None
    from tidelog.log.records.kernel_loader import ensure_cache_directory

    ensure_cache_directory(Path(__file__).resolve().parent)
    return importlib.import_module(KERNELS)


class AuditEngine:
    """Record-level work of an audit. ``kernels`` None means plain Python."""

    __slots__ = ("kernels",)

    def __init__(self, kernels: ModuleType | None) -> None:
        self.kernels = kernels

    def walk_batches(self, chunk: ByteArray, start: int, size: int, table: IntegerArray) -> tuple[int, int, int]:
        """See :func:`tidelog.pipeline.engine.reference.walk_batches`."""
        stop, rows, at = (self.kernels or reference).walk_batches(chunk, start, size, table)
        return int(stop), int(rows), int(at)

    def hash_section(self, section: ByteArray, bases: tuple[int, int, int], count: int, out: HashRoom) -> int:
        """See :func:`tidelog.pipeline.engine.reference.hash_section`."""
        out.make_room(count)
        return int((self.kernels or reference).hash_section(section, bases, count, out.columns))

    def hash_rows(self, chunk: ByteArray, table: IntegerArray, span: tuple[int, int], out: HashRoom) -> tuple[int, int]:
        """The uncompressed batches of rows ``span`` of ``table`` into ``out``: (rows done, records hashed).

        Stops before a batch that is compressed or malformed, or for which ``out`` has no room: a batch is hashed
        whole or not at all.
        """
        if self.kernels is not None:
            done, records = self.kernels.hash_rows(chunk, table, span[0], span[1], out.columns)
            return int(done), int(records)
        records = 0
        for number in range(*span):
            row = table[number].tolist()
            count = row[reference.RECORD_COUNT]
            if row[reference.ATTRIBUTES] & 7 or records + count > out.room:
                return number, records
            section = chunk[row[reference.POSITION] + 61 : row[reference.POSITION] + row[reference.SIZE]]
            if reference.hash_section(section, bases_of(row), count, out.rest(records)) < 0:
                return number, records
            records += count
        return span[1], records

    def hash_columns(
        self,
        places: tuple[IntegerArray, IntegerArray],
        key: tuple[ByteArray, IntegerArray, ByteArray],
        value: tuple[ByteArray, IntegerArray, ByteArray],
    ) -> WordArray:
        """See :func:`tidelog.pipeline.engine.reference.hash_columns`; returns the hashes."""
        hashes = np.zeros(len(places[0]), np.uint64)
        (self.kernels or reference).hash_columns(places, key, value, hashes)
        return hashes


class HashRoom:
    """Offsets, timestamps (int64) and hashes (uint64) of hashed records; grows, is used again."""

    __slots__ = ("columns",)

    def __init__(self, room: int = 65_536) -> None:
        self.columns = (np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint64))

    @property
    def room(self) -> int:
        """Number of records that fit."""
        return len(self.columns[0])

    def make_room(self, count: int) -> None:
        """Make room for ``count`` records; growing discards the contents."""
        if count > self.room:
            self.columns = HashRoom(count).columns

    def rest(self, start: int) -> tuple[IntegerArray, IntegerArray, WordArray]:
        """The columns from row ``start`` on."""
        return self.columns[0][start:], self.columns[1][start:], self.columns[2][start:]

    def first(self, count: int) -> tuple[IntegerArray, IntegerArray, WordArray]:
        """The first ``count`` rows; valid until the next use."""
        return self.columns[0][:count], self.columns[1][:count], self.columns[2][:count]


def bases_of(row: list[int]) -> tuple[int, int, int]:
    """Base offset, base timestamp, and the log append time or -1, of a batch row."""
    append_time = row[reference.MAX_TIMESTAMP] if row[reference.ATTRIBUTES] & 8 else -1
    return row[reference.BASE_OFFSET], row[reference.BASE_TIMESTAMP], append_time


@functools.cache
def engine() -> AuditEngine:
    """The process's engine."""
    return AuditEngine(load_kernels())
