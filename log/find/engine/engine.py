"""Choice of the engine that takes rows out of records and puts them into files: reference or loaded kernels.

As ``tidelog.log.records.engine``: results never depend on it, and a broker that indexes loads no numba but an image of
what it compiled (``tidelog.log.records.array_kernels``).
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidelog.log.find.engine import reference
from tidelog.log.find.engine.reference import Put, Restored, Stop, Walk, Wanted

if TYPE_CHECKING:
    from tidelog.log.find.engine.calls import FindCalls
    from tidelog.log.find.index_file import IndexFile
    from tidelog.log.find.rows import Rows

__all__ = ["ENGINE", "FindEngine", "Stop", "Walk", "Wanted"]

#: Record-level work, in bytes, before kernels are worth loading.
LOAD_AFTER_BYTES = 1024 * 1024


class FindEngine:
    """Record-level work of indexing with the engine that fits. One per process, ``ENGINE``; tests make their own."""

    __slots__ = ("_work_bytes", "kernels", "load_after_bytes")

    def __init__(self, load_after_bytes: int = LOAD_AFTER_BYTES) -> None:
        self.load_after_bytes = load_after_bytes
        self._work_bytes = 0
        self.kernels: FindCalls | ModuleType | None = None

    def use_kernels(self, kernels: FindCalls | ModuleType) -> None:
        """Switch to loaded kernels (``tidelog.log.find.engine.calls``, or the module
        ``tidelog.log.find.engine.kernel_calls``)."""
        self.kernels = kernels

    def _use_image(self, kernels: Any) -> None:
        from tidelog.log.find.engine.calls import FindCalls

        self.use_kernels(FindCalls(kernels))

    def _count_work(self, size: int) -> None:
        before = self._work_bytes
        self._work_bytes = before + size
        if before < self.load_after_bytes <= before + size:
            from tidelog.log.find.engine.kernel_group import FIND
            from tidelog.log.records.kernel_loader import (
                load_array_kernels,  # subprocess and threading are not cheap to import
            )

            load_array_kernels(FIND, self._use_image, self.use_kernels)

    def walk_chunk(self, rows: Rows, chunk: memoryview, wanted: Wanted, base_position: int) -> Walk:
        """See :func:`tidelog.log.find.engine.reference.walk_chunk`."""
        if self.kernels is None:
            self._count_work(len(chunk))
            return reference.walk_chunk(rows, chunk, wanted, base_position)
        walk: Walk = self.kernels.walk_chunk(rows, chunk, wanted, base_position)
        return walk

    def put_entries(self, file: IndexFile, rows: Rows, start: int, end: int) -> Put:
        """See :func:`tidelog.log.find.engine.reference.put_entries`."""
        if self.kernels is None:
            return reference.put_entries(file, rows, start, end)
        put: Put = self.kernels.put_entries(file, rows, start, end)
        return put

    def restore_slots(self, file: IndexFile, count: int) -> Restored:
        """See :func:`tidelog.log.find.engine.reference.restore_slots`. numpy does it without a kernel; small files need
        neither."""
        if count < RESTORE_WITH_NUMPY:
            return reference.restore_slots(file, count)
        from tidelog.log.find import rebuild as restoring

        return restoring.restore_slots(file, count)

    def put_tags(self, rows: Rows, start: int, end: int) -> None:
        """See :func:`tidelog.log.find.engine.reference.put_tags`."""
        if self.kernels is None:
            reference.put_tags(rows, start, end)
        else:
            self.kernels.put_tags(rows, start, end)

    def write_pieces(self, descriptor: int, data: memoryview, position: int, piece: int) -> int:
        """Write ``data`` without the interpreter lock between its pieces; returns the bytes that are written: none
        without kernels, fewer than all after an error. The caller writes the rest, and meets that error."""
        return 0 if self.kernels is None else self.kernels.write_pieces(descriptor, data, position, piece)


#: From so many entries on numpy is worth its import.
RESTORE_WITH_NUMPY = 50_000
#: The process's engine.
ENGINE = FindEngine()
