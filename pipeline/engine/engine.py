"""The routines that walk over batches and hash records, compiled or in plain Python, and the arrays for their results.

The reference is used where the modules are not compiled. Results are equal. Any thread.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from tidelog.pipeline.engine import record_hash, reference
from tidelog.pipeline.engine.reference import ByteArray, IntegerArray, WordArray, bases_of

__all__ = ["AuditEngine", "HashRoom", "bases_of", "engine"]


class AuditEngine:
    """The routines of one module, for audits and for the search for transaction markers."""

    __slots__ = ("_routines",)

    def __init__(self, routines: ModuleType) -> None:
        self._routines = routines

    def walk_batches(self, chunk: ByteArray, start: int, size: int, table: IntegerArray) -> tuple[int, int, int]:
        """See :func:`tidelog.pipeline.engine.reference.walk_batches`."""
        found: tuple[int, int, int] = self._routines.walk_batches(chunk, start, size, table)
        return found

    def hash_section(self, section: ByteArray, bases: tuple[int, int, int], count: int, out: HashRoom) -> int:
        """See :func:`tidelog.pipeline.engine.reference.hash_section`."""
        out.make_room(count)
        done: int = self._routines.hash_section(section, bases, count, out.columns)
        return done

    def hash_rows(self, chunk: ByteArray, table: IntegerArray, span: tuple[int, int], out: HashRoom) -> tuple[int, int]:
        """See :func:`tidelog.pipeline.engine.reference.hash_rows`."""
        found: tuple[int, int] = self._routines.hash_rows(chunk, table, *span, out.columns)
        return found

    def hash_columns(
        self,
        offsets_and_times: tuple[IntegerArray, IntegerArray],
        key: tuple[ByteArray, IntegerArray, ByteArray],
        value: tuple[ByteArray, IntegerArray, ByteArray],
    ) -> WordArray:
        """See :func:`tidelog.pipeline.engine.reference.hash_columns`; returns the hashes."""
        hashes = np.zeros(len(offsets_and_times[0]), np.uint64)
        self._routines.hash_columns(offsets_and_times, key, value, hashes)
        return hashes


class HashRoom:
    """Offsets, timestamps (int64) and hashes (uint64) of hashed records; grows as needed and is reused."""

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

    def first(self, count: int) -> tuple[IntegerArray, IntegerArray, WordArray]:
        """Return the first ``count`` rows; valid until the next use."""
        return self.columns[0][:count], self.columns[1][:count], self.columns[2][:count]


_ENGINE = AuditEngine(record_hash if record_hash.IS_COMPILED else reference)


def engine() -> AuditEngine:
    """Return the process's engine."""
    return _ENGINE
