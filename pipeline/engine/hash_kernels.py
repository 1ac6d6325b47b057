"""The compiled hash of a record; :mod:`tidelog.pipeline.engine.reference` describes it and gives equal results.

Two chains of multiplications run side by side, 16 bytes in each step. Bytes are named by their address in memory, not
by array and position: numba counts the references of every array that a function is handed, with locked instructions,
which cost more than all else here (49 ns for a record of 100 bytes; 18 by addresses). Nothing checks bounds and
nothing keeps the bytes alive: callers do. No GIL; any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from tidelog.log.records.intrinsics import Integer, byte_at, kernel, word_at
from tidelog.pipeline.engine import reference as at

_OFFSET, _TIMESTAMP, _LENGTH = np.uint64(at.FACTOR_OFFSET), np.uint64(at.FACTOR_TIMESTAMP), np.uint64(at.FACTOR_LENGTH)
_CHAIN = np.uint64(at.FACTOR_CHAIN)
_FIRST, _SECOND, _MIDDLE, _LAST = (np.uint64(secret) for secret in at.SECRETS)
_MIX_FIRST, _MIX_SECOND = np.uint64(at.MIX_FIRST), np.uint64(at.MIX_SECOND)
_8, _27, _30, _31 = np.uint64(8), np.uint64(27), np.uint64(30), np.uint64(31)


def _type_fold(_typing_context: Any, _one: Any, _other: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word, wide = ir.IntType(64), ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        high = builder.trunc(builder.lshr(product, wide(64)), word)
        return builder.xor(builder.trunc(product, word), high)

    return types.uint64(types.uint64, types.uint64), generate


#: fold(a, b): the two halves of the product of two uint64, the one xor the other. One instruction and an xor.
fold: Any = intrinsic(_type_fold)


@kernel
def field_hash(start: Integer, size: Integer, seed: Integer) -> Integer:
    """``at.field_hash`` of the ``size`` bytes from address ``start`` on; a ``size`` of -1 is a null."""
    if size < 0:
        return np.uint64(seed)
    first = np.uint64(seed) ^ (np.uint64(size + 1) * _LENGTH)
    second = first ^ _CHAIN
    place, end = np.int64(start), np.int64(start + size)
    while place + 32 <= end:
        first = fold(word_at(place) ^ _FIRST, word_at(place + 8) ^ first)
        second = fold(word_at(place + 16) ^ _SECOND, word_at(place + 24) ^ second)
        place += 32
    if place + 16 < end:
        first = fold(word_at(place) ^ _MIDDLE, word_at(place + 8) ^ first)
    if place < end:
        low, high = _last_words(start, end)
        second = fold(low ^ _LAST, high ^ second)
    return first + second * _CHAIN


@kernel
def _last_words(start: Integer, end: Integer) -> Any:
    """The last 16 bytes as two words; of a shorter field its first 8 and last 8, or all of it and 0."""
    if end - start >= 16:
        return word_at(end - 16), word_at(end - 8)
    if end - start >= 8:
        return word_at(start), word_at(end - 8)
    word = np.uint64(0)
    for place in range(end - 1, start - 1, -1):
        word = (word << _8) | np.uint64(byte_at(place))
    return word, np.uint64(0)


@kernel
def record_hash(offset: Integer, timestamp: Integer, key: Integer, value: Integer) -> Integer:
    """``at.record_hash`` from the hashes of key and value."""
    x = (np.uint64(offset) * _OFFSET) ^ (np.uint64(timestamp) * _TIMESTAMP) ^ key ^ value
    x = (x ^ (x >> _30)) * _MIX_FIRST
    x = (x ^ (x >> _27)) * _MIX_SECOND
    return x ^ (x >> _31)
