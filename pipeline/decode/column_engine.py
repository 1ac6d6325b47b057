"""The choice of a decoder of records to columns: compiled kernels if there is much to read, else plain Python.

Loading takes half a second from numba's cache on disk (five to compile it, once per machine), in the calling thread:
it serves readers outside the broker, which have nothing else to do meanwhile. The plain version takes 6 µs a record,
so kernels pay from about ``KERNEL_BYTES`` on; once loaded they do everything. Results are equal.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

from tidelog.pipeline.decode import columns_reference

#: Total bytes to read from which loading the kernels pays.
KERNEL_BYTES = 8 * 1024 * 1024


class _Loaded:
    """State of the process: the kernels if they are loaded, and the bytes requested for decoding so far."""

    kernels: ModuleType | None = None
    asked_bytes = 0


def decoder_for(size_bytes: int) -> ModuleType:
    """Choose the decoder (``tidelog.pipeline.decode.columns_reference`` or its compiled twin) for so many bytes
    more."""
    _Loaded.asked_bytes += size_bytes
    if _Loaded.kernels is None and _Loaded.asked_bytes >= KERNEL_BYTES:
        _Loaded.kernels = load_kernels()
    return _Loaded.kernels or columns_reference


@functools.cache
def load_kernels() -> ModuleType | None:
    """Return the kernels, loading them if necessary; None if numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from tidelog.log.records.kernel_loader import ensure_cache_directory

    ensure_cache_directory(Path(__file__).resolve().parent)
    from tidelog.pipeline.decode import columns_kernels

    return columns_kernels
