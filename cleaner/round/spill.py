"""Spill file of the key map: digests sorted into hash ranges in a temporary file, and the superseded bits.

The *superseded bits* have one bit for each record, by its ordinal (``tidelog.cleaner.engine.batch_table``): whether a
later record has the same key.

When the map is full, its entries are written to the file and it is emptied. A *piece* has the entries of one part of
the map, sorted by the top bits of the digest's second word into 256 partitions::

    piece = partition 0 | partition 1 | ... | partition 255          rows of 24 bytes: first word, second word, ordinal

After the index pass the map is filled from all pieces, with as many partitions at a time as fit. Of two rows with the
same digest the one with the smaller ordinal is superseded, in whatever order they come. So the bits are the same as
with a map that is large enough. The file has no name, so it is gone when the process ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

import numpy as np

from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray, WordArray
from tidelog.cleaner.engine.engine import Engine, KeyMap
from tidelog.log.system.file_system import LogStorageError

PARTITIONS = 256
_ROW_BYTES = 24
#: Largest number of further bits by which a partition that does not fit the map is split: with 48, hardly two digests
#: share a part.
_MAX_SPLIT_BITS = 48
#: Largest array of bits that is kept in memory, for 128 M records; larger ones are in an unnamed file.
MEMORY_BITS_BYTES = 16 * 1024 * 1024


def _temporary_file(directory: str) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=directory)
    except OSError as error:
        raise LogStorageError("create", directory, error.errno or errno.EIO) from error


class Bits:
    """Array with one bit for each record ordinal, all 0 at first. A large one is in an unnamed, mapped file in
    ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self.array: ByteArray = np.zeros(1024, np.uint8)

    def reserve(self, count: int) -> None:
        """Enlarge the array for bits 0 to ``count`` - 1. Raises KafkaStorageError."""
        needed = count // 8 + 1
        if needed <= len(self.array):
            return
        size = max(needed, 2 * len(self.array))
        if size <= MEMORY_BITS_BYTES:
            larger: ByteArray = np.zeros(size, np.uint8)
        else:
            larger = self._map_file(size)
        larger[: len(self.array)] = self.array
        self.array = larger

    def _map_file(self, size: int) -> ByteArray:
        if self._file is None:
            self._file = _temporary_file(self._directory)
        try:
            # The file is allocated, not only extended: with a hole, a full disk would cause a SIGBUS.
            os.posix_fallocate(self._file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(self._file.fileno(), size), np.uint8)
        except OSError as error:
            raise LogStorageError("extend", self._directory, error.errno or errno.EIO) from error

    def close(self) -> None:
        """Free memory and file."""
        self.array = np.zeros(1024, np.uint8)
        if self._file is not None:
            self._file.close()
            self._file = None


class Piece(NamedTuple):
    """Position of a piece in the file in bytes, and the row of the piece at which each partition begins."""

    position: int
    starts: IntegerArray


class Spill:
    """Spill file of one round. One thread."""

    def __init__(self, engine: Engine, directory: str) -> None:
        self._engine = engine
        self._directory = directory
        self._file = _temporary_file(directory)
        self._pieces: list[Piece] = []
        self._size = 0

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return self._size

    def add(self, key_map: KeyMap) -> None:
        """Move the map's entries to the file; the map is empty then. Raises KafkaStorageError."""
        for digests in key_map.drain():
            rows, starts = self._engine.partition(digests, PARTITIONS)
            self._write(rows)
            self._pieces.append(Piece(self._size, starts))
            self._size += rows.nbytes

    def _write(self, rows: WordArray) -> None:
        view = rows.data.cast("B")
        done = 0
        while done < len(view):
            try:
                done += os.pwrite(self._file.fileno(), view[done:], self._size + done)
            except OSError as error:
                raise LogStorageError("write", self._directory, error.errno or errno.EIO) from error

    def resolve(self, key_map: KeyMap, bits: tuple[ByteArray, ByteArray], check: Callable[[], None]) -> None:
        """Set the superseded bits for all rows in the file. ``check`` is called for each piece that is read. Raises
        KafkaStorageError and what ``check`` raises."""
        counts = sum((np.diff(piece.starts) for piece in self._pieces), np.zeros(PARTITIONS, np.int64))
        first = 0
        while first < PARTITIONS:
            end = first + 1
            while end < PARTITIONS and int(counts[first : end + 1].sum()) <= key_map.limit:
                end += 1
            bits_to_split = 0
            while not self._resolve_range((first, end), bits_to_split, key_map, bits, check):
                bits_to_split += 1
                assert bits_to_split <= _MAX_SPLIT_BITS, "a map that holds not even one digest"
            first = end

    def _resolve_range(
        self,
        partitions: tuple[int, int],
        split_bits: int,
        key_map: KeyMap,
        bits: tuple[ByteArray, ByteArray],
        check: Callable[[], None],
    ) -> bool:
        """Set the bits for a range of partitions, in 2**split_bits parts; return False if a part does not fit the map.

        A part that is processed twice sets the same bits, so the caller can try again with more parts.
        """
        for part in range(1 << split_bits):
            key_map.clear()
            for rows in self._rows(partitions):
                check()
                if split_bits:
                    # A part is chosen by the bits below those of the partition.
                    share = (rows[:, 1] << np.uint64(8)) >> np.uint64(64 - split_bits)
                    rows = np.ascontiguousarray(rows[share == part])
                if key_map.put_digests(rows, bits) < len(rows):
                    return False
        return True

    def _rows(self, partitions: tuple[int, int]) -> Iterator[WordArray]:
        for piece in self._pieces:
            first, end = int(piece.starts[partitions[0]]), int(piece.starts[partitions[1]])
            if end > first:
                rows: WordArray = np.empty((end - first, 3), np.uint64)
                self._read(rows.data.cast("B"), piece.position + first * _ROW_BYTES)
                yield rows

    def _read(self, view: memoryview, position: int) -> None:
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._file.fileno(), [view[done:]], position + done)
            except OSError as error:
                raise LogStorageError("read", self._directory, error.errno or errno.EIO) from error
            if not got:
                raise LogStorageError("read", self._directory, errno.EIO)
            done += got

    def close(self) -> None:
        """Close the file."""
        self._file.close()
