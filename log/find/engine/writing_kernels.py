"""Kernel that writes a run of entries to a file in pieces, without taking the interpreter lock between them.

The caller passes the address of the C library's ``pwrite``. The kernel does not read the error: it returns that fewer
bytes were written, and the caller meets the error when it writes the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from tidelog.log.records.intrinsics import address_of
from tidelog.log.records.kernel_cache import njit


def _type_pwrite(
    _typing_context: Any, _function: Any, _descriptor: Any, _address: Any, _size: Any, _position: Any
) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(word, [number, word, word, word])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(function, [builder.trunc(arguments[1], number), *arguments[2:]])

    return types.int64(*[types.int64] * 5), generate


_pwrite: Any = intrinsic(_type_pwrite)
"""(address of pwrite, descriptor, address of the bytes, size, position in the file): bytes written, or -1."""


@njit("int64(int64, int64, Array(uint8, 1, 'C', True), int64, int64)", nogil=True, cache=True)
def write_pieces(function: int, descriptor: int, data: Any, position: int, piece: int) -> Any:
    """Write ``data`` at ``position``, at most ``piece`` bytes at a time; returns the bytes that were written."""
    start, written = address_of(data), np.int64(0)
    while written < data.size:
        size = min(np.int64(piece), data.size - written)
        done = _pwrite(function, descriptor, start + written, size, position + written)
        if done <= 0:
            break
        written += done
    return written
