"""Calls of the kernels with the reference's signatures, from an image of their machine code or through numba.

Rows, index files and sections are passed without a copy, except read-only buffers.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.log.find.engine.reference import Put, Stop, Walk, Wanted

if TYPE_CHECKING:
    from tidelog.log.find.index_file import IndexFile
    from tidelog.log.find.rows import Rows
    from tidelog.protocol.record.record_batch import Buffer

CHAIN_OFFSETS = 1024
"""Offsets taken out of a chain at a time."""
HAS_KEY, HAS_TAG, APPEND_TIME = 1, 2, 4


class FindCalls:
    """See the module; ``kernels`` has those of ``tidelog.log.find.engine.kernel_group.FIND`` as attributes. Any
    thread."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self._pwrite = ctypes.cast(ctypes.CDLL(None).pwrite, ctypes.c_void_p).value

    def walk_chunk(self, rows: Rows, chunk: memoryview, wanted: Wanted, base_position: int) -> Walk:
        """See :func:`tidelog.log.find.engine.reference.walk_chunk`."""
        stop, position, next_offset, rows.count = self._kernels.walk_chunk(
            chunk, base_position, wanted.seed, wanted.tag_header or b"", rows.count, rows.offsets, rows.timestamps,
            rows.key_hashes, rows.tag_hashes, rows.positions, rows.sizes, rows.capacity,
        )  # fmt: skip
        return Walk(Stop(stop), position, next_offset)

    def put_entries(self, file: IndexFile, rows: Rows, start: int, end: int) -> Put:
        """See :func:`tidelog.log.find.engine.reference.put_entries`."""
        bounds = file.bounds
        state = (file.slots, file.capacity, bounds.next_entry, bounds.begin_timestamp)
        columns = (rows.offsets, rows.timestamps, rows.key_hashes)
        return Put(*self._kernels.put_entries(file.data, rows.entries, state, *columns, start, end))

    def put_tags(self, rows: Rows, start: int, end: int) -> None:
        """See :func:`tidelog.log.find.engine.reference.put_tags`."""
        columns = (rows.offsets, rows.positions, rows.sizes, rows.tag_hashes)
        self._kernels.put_tags(rows.entries, *columns, start, end)

    def write_pieces(self, descriptor: int, data: memoryview, position: int, piece: int) -> int:
        """Write as much of ``data`` as the system takes, ``piece`` bytes at a time; returns how much that is."""
        written: int = self._kernels.write_pieces(self._pwrite, descriptor, data, position, piece)
        return written

    def walk_chain(
        self, file: IndexFile, wanted: tuple[int, int, int, int, int], state: array[int]
    ) -> Iterator[array[int]]:
        """The rest of a chain in pieces; ``state`` says at the end where it stopped and what is damaged there.

        Both as ``tidelog.log.find.engine.kernels.walk_chain`` has them.
        """
        offsets = array("q", bytes(8 * CHAIN_OFFSETS))
        while state[0] and not state[3]:
            found = self._kernels.walk_chain(file.data, file.slots, wanted, state, offsets)
            yield offsets[:found]

    def match_records(
        self, section: Buffer, count: int, query: tuple[int, ...], texts: tuple[bytes, bytes, bytes]
    ) -> list[tuple[int, int]] | None:
        """Find the places of the records that match; None when the section is malformed.

        ``texts``: key, tag header, tag.
        """
        places = array("q", bytes(16 * count))
        found = self._kernels.match_records(section, count, query, *texts, places)
        return None if found < 0 else list(zip(places[0 : 2 * found : 2], places[1 : 2 * found : 2], strict=True))

    def nth_place(self, section: Buffer, index: int) -> tuple[int, int]:
        """As :func:`tidelog.log.find.lookup.nth_place`, (-1, -1) when the section is too short."""
        place: tuple[int, int] = self._kernels.nth_place(section, index)
        return place
