"""Integers at any address of a buffer, CRC-32C, masks and file calls: the Python versions, for uncompiled modules.

``load_be_*`` and ``store_be_*`` are big endian, the others little endian. The C versions check nothing: the caller must
know that the bytes exist.
"""

from __future__ import annotations

import os
from types import MemberDescriptorType
from typing import Any, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Bytes = Any
"""A buffer, or a numpy array, that can be indexed and sliced; in C an address."""

MASK_32 = 0xFFFFFFFF
MASK_64 = 0xFFFFFFFFFFFFFFFF
MIN_INT_64, MAX_INT_64 = -(1 << 63), (1 << 63) - 1


class Held:
    """A buffer whose bytes stay at their address until :func:`release`: as bytes, and as 64-bit integers."""

    __slots__ = ("bytes", "data", "size")

    def __init__(self, buffer: Any) -> None:
        self.data = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(bytearray())
        self.bytes = self.data
        self.size = self.data.nbytes

    @property
    def integers(self) -> memoryview[int]:
        """The buffer as signed integers of 64 bits."""
        return self.data.cast("q")

    @property
    def words(self) -> memoryview[int]:
        """The buffer as unsigned integers of 64 bits."""
        return self.data.cast("Q")


def hold(buffer: Any) -> Held:
    """Hold contiguous bytes until ``release``. Raises BufferError, TypeError."""
    return Held(buffer)


def hold_writable(buffer: Any) -> Held:
    """Hold contiguous writable bytes until ``release``. Raises BufferError, TypeError."""
    if memoryview(buffer).readonly:
        raise BufferError("Object is not writable.")
    return Held(buffer)


def release(held: Held) -> None:
    """Release a buffer that is held."""


def load_u16(data: Bytes, at: int) -> int:
    """Read the word of 16 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 2], "little")


def load_u32(data: Bytes, at: int) -> int:
    """Read the word of 32 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 4], "little")


def load_u64(data: Bytes, at: int) -> int:
    """Read the word of 64 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 8], "little")


def load_be_u16(data: Bytes, at: int) -> int:
    """Read the big-endian word of 16 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 2], "big")


def load_be_u32(data: Bytes, at: int) -> int:
    """Read the big-endian word of 32 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 4], "big")


def load_be_u64(data: Bytes, at: int) -> int:
    """Read the big-endian word of 64 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 8], "big")


def load_be_i16(data: Bytes, at: int) -> int:
    """Read the signed big-endian word of 16 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 2], "big", signed=True)


def load_be_i32(data: Bytes, at: int) -> int:
    """Read the signed big-endian word of 32 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def load_be_i64(data: Bytes, at: int) -> int:
    """Read the signed big-endian word of 64 bits at byte ``at``."""
    return int.from_bytes(data[at : at + 8], "big", signed=True)


def store_u16(data: Bytes, at: int, word: int) -> None:
    """Write a word of 16 bits at byte ``at``; higher bits are dropped, as by the other stores."""
    _store(data, at, word, 2, "little")


def store_u32(data: Bytes, at: int, word: int) -> None:
    """Write a word of 32 bits at byte ``at``."""
    _store(data, at, word, 4, "little")


def store_u64(data: Bytes, at: int, word: int) -> None:
    """Write a word of 64 bits at byte ``at``."""
    _store(data, at, word, 8, "little")


def store_be_u16(data: Bytes, at: int, word: int) -> None:
    """Write a big-endian word of 16 bits at byte ``at``."""
    _store(data, at, word, 2, "big")


def store_be_u32(data: Bytes, at: int, word: int) -> None:
    """Write a big-endian word of 32 bits at byte ``at``."""
    _store(data, at, word, 4, "big")


def store_be_u64(data: Bytes, at: int, word: int) -> None:
    """Write a big-endian word of 64 bits at byte ``at``."""
    _store(data, at, word, 8, "big")


def _store(data: Bytes, at: int, word: int, size: int, order: Any) -> None:
    memoryview(data)[at : at + size] = (word & ((1 << 8 * size) - 1)).to_bytes(size, order)


def copy_bytes(to: Bytes, at: int, origin: Bytes, start: int, size: int) -> None:
    """Copy ``size`` bytes of ``origin`` from byte ``start``; the two may overlap."""
    memoryview(to)[at : at + size] = bytes(origin[start : start + size])


def read_at(descriptor: int, data: Bytes, at: int, size: int, position: int) -> int:
    """Read ``size`` bytes at ``position`` of a file to byte ``at``; return how many were read, or -1."""
    try:
        return os.preadv(descriptor, [memoryview(data)[at : at + size]], position)
    except OSError:
        return -1


def read_in_memory(descriptor: int, data: Bytes, at: int, size: int, position: int) -> int:
    """Read as ``read_at`` does, but without waiting for the disk: -1 if the first byte is not in the page cache."""
    try:
        return os.preadv(descriptor, [memoryview(data)[at : at + size]], position, os.RWF_NOWAIT)
    except OSError:
        return -1


def write_at(descriptor: int, data: Bytes, at: int, size: int, position: int) -> int:
    """Write ``size`` bytes from byte ``at`` to ``position`` of a file; return how many were written, or -1."""
    try:
        return os.pwrite(descriptor, memoryview(data)[at : at + size], position)
    except OSError:
        return -1


def multiply_high(one: int, other: int) -> int:
    """Return the upper 64 bits of the product of two words of 64 bits."""
    return (one * other) >> 64


def prefetch(data: Any, at: int) -> None:
    """Let the processor prefetch the cache line of byte ``at``; uncompiled it does nothing."""


def crc32c(data: Bytes, at: int, size: int) -> int:
    """Compute the CRC-32C (Castagnoli) of ``size`` bytes from byte ``at``."""
    from crc32c import crc32c as checksum  # most importers of this module need no checksum

    return checksum(bytes(data[at : at + size]))


def at(data: Bytes, position: int) -> Bytes:
    """Return the bytes from ``position`` on."""
    return data[position:]


NO_PLACE: Any = None
"""In place of the result of :func:`place_of` if there is no attribute."""


def address_of(buffer: bytearray) -> Bytes:
    """Return the bytes of a bytearray; valid until its length changes."""
    return buffer


def copy_of(data: Bytes, at: int, size: int) -> bytes:
    """Return a copy of ``size`` bytes from byte ``at``."""
    return bytes(data[at : at + size])


def text_of(data: Bytes, at: int, size: int) -> str:
    """Decode the UTF-8 text of ``size`` bytes from byte ``at``. Raises UnicodeDecodeError."""
    return str(data[at : at + size], "utf-8")


def new_object(cls: type) -> Any:
    """Make an object of a class that has only ``__slots__``; its attributes are not set."""
    return object.__new__(cls)


def tuple_as(cls: type[T], values: tuple[Any, ...]) -> T:
    """Make a named tuple of these values without calling its Python constructor."""
    return tuple.__new__(cls, values)  # type: ignore[type-var]


def place_of(slot: Any) -> Any:
    """Return the place of an attribute in the objects of its class, for :func:`put_field` and :func:`get_field`.

    It is the byte offset in C, and here the descriptor itself. Raises TypeError if ``slot`` is not an attribute in
    ``__slots__``.
    """
    if type(slot) is not MemberDescriptorType:
        raise TypeError("not an attribute in __slots__")
    return slot


def put_field(target: Any, place: Any, value: Any) -> None:
    """Set the attribute at a place of the target's class, which :func:`place_of` gave."""
    place.__set__(target, value)


def get_field(target: Any, place: Any) -> Any:
    """Read the attribute at a place of the target's class, which :func:`place_of` gave. Raises AttributeError if it is
    not set."""
    return place.__get__(target)
