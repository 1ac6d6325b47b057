"""Rows of the indexer, one for each record, in columns.

Columns are ``array('q')``. The routines that fill them are in ``engine``: plain Python writes the columns by index, a
compiled routine writes into the same memory. The rows of a batch are added together or not at all.

Two more buffers are kept with them, because Python clears new memory under the interpreter lock: the bytes that are
indexed (``chunk``) and the entries before they are written (``entries``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from tidelog.log.find.hashing import NO_KEY

INITIAL_ROWS = 65_536
ENTRY_BYTES = 20
"""Size of an entry, in either kind of index file."""
_KEPT_BYTES = 8 * 1024 * 1024
"""Largest chunk that is kept; a larger one, for one huge batch, is not."""


class Rows:
    """Up to ``capacity`` rows; ``count`` are filled. One thread."""

    __slots__ = (
        "_chunk", "capacity", "count", "entries", "key_hashes", "offsets", "positions", "sizes", "tag_hashes",
        "timestamps",
    )  # fmt: skip

    def __init__(self, capacity: int = INITIAL_ROWS) -> None:
        empty = bytes(8 * capacity)
        self.count = 0
        self.capacity = capacity
        self.offsets = array("q", empty)
        self.timestamps = array("q", empty)
        self.key_hashes = array("q", empty)
        """The key hash; ``NO_KEY`` without a key."""
        self.tag_hashes = array("q", empty)
        """The tag hash; 0 without a tag."""
        self.positions = array("q", empty)
        """The byte in the segment at which the record's batch begins."""
        self.sizes = array("q", empty)
        """The size of the record's batch in bytes."""
        self.entries = bytearray(ENTRY_BYTES * capacity)
        """Buffer for one entry of each row."""
        self._chunk = bytearray()

    def chunk(self, size: int) -> memoryview:
        """Return a writable buffer of ``size`` bytes with any content, valid until the next call."""
        if size > _KEPT_BYTES:
            return memoryview(bytearray(size))
        if size > len(self._chunk):
            self._chunk = bytearray(size)
        return memoryview(self._chunk)[:size]

    def make_room(self, wanted: int) -> None:
        """Enlarge the columns for ``wanted`` rows after those that are filled."""
        missing = self.count + wanted - self.capacity
        if missing > 0:
            self.capacity += missing
            columns = (self.offsets, self.timestamps, self.key_hashes, self.tag_hashes, self.positions, self.sizes)
            for column in columns:
                column.frombytes(bytes(8 * missing))
            self.entries = bytearray(ENTRY_BYTES * self.capacity)

    def first_at(self, offset: int, start: int = 0) -> int:
        """Find the first row, from row ``start`` on, whose offset is at or above ``offset``; ``count`` if there is
        none."""
        return bisect_left(self.offsets, offset, start, self.count)

    def first_keyed(self, start: int, end: int) -> int:
        """Find the first row from ``start`` to below ``end`` that has a key; -1 if there is none."""
        hashes = self.key_hashes
        for row in range(start, end):
            if hashes[row] != NO_KEY:
                return row
        return -1
