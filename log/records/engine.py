"""Choice of the engine for record-level work: plain Python reference, or the numba kernels once they are loaded.

    reference only --(a megabyte of sections with several records)--> loading in the background --> kernels for large
    ones

Results never depend on the engine: a kernel that meets malformed input hands the section to the reference, which
raises. Sections of few records stay with the reference for good: calling a kernel costs as much as walking
``KERNEL_MIN_RECORDS`` records in Python. A process that only ever sees small batches never loads numba (and its 90 MB).

The counter and the switch are plain attributes: a lost update delays loading by one batch, nothing else. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidelog.log.records import reference
from tidelog.log.records.reference import SectionCheck, TimestampPosition
from tidelog.log.records.work_budget import NO_LIMIT
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.record_batch import Buffer

if TYPE_CHECKING:
    from tidelog.log.records.native_kernels import NativeKernels

__all__ = ["ENGINE", "RecordEngine", "SectionCheck", "TimestampPosition", "check_section"]

#: Fewer records than this are walked faster in Python than a kernel is called (measured: 1.9 µs a call, 0.8 µs the
#: usual single record, 2.0 µs two).
KERNEL_MIN_RECORDS = 2
#: From this size on a record may have so many headers that a kernel is faster.
KERNEL_MIN_BYTES = 8 * 1024
#: With more records than this, a malformed section is not walked over in Python to say where.
EXPLAINED_RECORDS = 2_000
#: Record-level work, in bytes, before kernels are worth loading.
LOAD_AFTER_BYTES = 1024 * 1024


# Makes a named tuple without the Python function in front of it: 0.25 µs of the 2 that a check of 16 records takes.
_new_tuple = tuple.__new__


class RecordEngine:
    """Record-level work with the engine that fits. One per process, ``ENGINE``; tests make their own."""

    __slots__ = ("_kernels", "_view", "_work_bytes", "load_after_bytes")

    def __init__(self, load_after_bytes: int = LOAD_AFTER_BYTES) -> None:
        self.load_after_bytes = load_after_bytes
        self._work_bytes = 0
        self._kernels: ModuleType | NativeKernels | None = None
        self._view: Callable[[Buffer], Any] | None = None

    @property
    def has_kernels(self) -> bool:
        """Whether large sections go to the kernels by now."""
        return self._kernels is not None

    def use_kernels(self, kernels: ModuleType | NativeKernels) -> None:
        """Switch to loaded kernels, of numba (which take arrays) or as machine code; called by the loader's thread."""
        if isinstance(kernels, ModuleType):
            import numpy

            self._view = partial(numpy.frombuffer, dtype=numpy.uint8)
        self._kernels = kernels

    def _count_work(self, size: int) -> None:
        before = self._work_bytes
        self._work_bytes = before + size
        if before < self.load_after_bytes <= before + size:
            from tidelog.log.records.kernel_loader import (
                load_record_kernels,
            )  # subprocess and threading are not cheap to import

            load_record_kernels(self.use_kernels)

    def check_section(self, section: Buffer, count: int, max_header_bytes: int = NO_LIMIT) -> SectionCheck:
        """See :func:`tidelog.log.records.reference.check_section`: same result, same errors, but that of a large
        malformed section nothing more is said than that it is malformed. The limit is for plain Python alone."""
        if count < KERNEL_MIN_RECORDS and len(section) < KERNEL_MIN_BYTES:
            return reference.check_section(section, count, max_header_bytes)
        kernels = self._kernels
        if kernels is None:
            if count >= KERNEL_MIN_RECORDS:
                self._count_work(len(section))
            return reference.check_section(section, count, max_header_bytes)
        view = self._view
        status, low, high, keyless, consecutive = kernels.check_section(view(section) if view else section, count)
        if status:
            if count > EXPLAINED_RECORDS:
                reference.ensure_plausible_count(count, len(section))
                raise InvalidRecordError(f"Found invalid record structure in a batch of {count} records")
            return reference.check_section(section, count, max_header_bytes)
        return _new_tuple(SectionCheck, (low, high, keyless, consecutive == 1))

    def first_at_or_after(
        self, section: Buffer, count: int, timestamp_delta: int, min_offset_delta: int
    ) -> TimestampPosition | None:
        """See :func:`tidelog.log.records.reference.first_at_or_after`: same result, same errors."""
        kernels = self._kernels
        if count < KERNEL_MIN_RECORDS or kernels is None:
            return reference.first_at_or_after(section, count, timestamp_delta, min_offset_delta)
        viewed = self._view(section) if self._view else section
        status, offset_delta, found = kernels.first_at_or_after(viewed, count, timestamp_delta, min_offset_delta)
        if status:
            return reference.first_at_or_after(section, count, timestamp_delta, min_offset_delta)
        return None if offset_delta < 0 else TimestampPosition(offset_delta, found)


#: The process's engine.
ENGINE = RecordEngine()
check_section = ENGINE.check_section
first_at_or_after = ENGINE.first_at_or_after
