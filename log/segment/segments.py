"""The segments of a log: an immutable snapshot in offset order.

A change makes a new :class:`LogSegments`, which the log publishes in one assignment; a reader that holds the old one
goes on with that. Segments in an old snapshot may be deleted meanwhile. Their files stay readable until
``file.delete.delay.ms`` has passed; a slice that is still to be sent keeps its descriptor open even longer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tidelog.log.index.abstract_index import close_until_lookup
from tidelog.log.segment.segment import LogSegment


class LogSegments:
    """Snapshot of a log's segments by base offset. Immutable; any thread."""

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments = tuple(sorted(segments, key=lambda segment: segment.base_offset))
        self._bases = [segment.base_offset for segment in self._segments]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __contains__(self, segment: LogSegment) -> bool:
        return self.get(segment.base_offset) is segment

    def __getitem__(self, index: int) -> LogSegment:
        return self._segments[index]

    @property
    def first(self) -> LogSegment:
        """The oldest segment. Raises IndexError when there is none."""
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to. Raises IndexError when there is none."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of records in all segments."""
        return sum(segment.size for segment in self._segments)

    def get(self, base_offset: int) -> LogSegment | None:
        """Return the segment with exactly this base offset; None when there is none."""
        bases = self._bases
        if bases and bases[-1] == base_offset:  # the active segment, which is needed most often
            return self._segments[-1]
        slot = bisect_left(bases, base_offset)
        return self._segments[slot] if slot < len(bases) and bases[slot] == base_offset else None

    def floor_index(self, offset: int) -> int:
        """Return the index of the last segment whose base offset is <= ``offset``; -1 when there is none."""
        return bisect_right(self._bases, offset) - 1

    def floor(self, offset: int) -> LogSegment | None:
        """Return the last segment whose base offset is <= ``offset``; None when there is none."""
        slot = bisect_right(self._bases, offset) - 1
        return self._segments[slot] if slot >= 0 else None

    def values(self, start: int, end: int) -> tuple[LogSegment, ...]:
        """Return the segments that may hold offsets in [``start``, ``end``): from ``floor(start)`` on."""
        if end <= start:
            return ()
        return self._segments[max(0, self.floor_index(start)) : bisect_left(self._bases, end)]

    def replace(self, *, removed: Iterable[LogSegment] = (), added: Iterable[LogSegment] = ()) -> LogSegments:
        """Build a new snapshot without ``removed`` and with ``added``; an added segment displaces one of the same base
        offset.
        """
        gone = {segment.base_offset for segment in removed}
        kept = {s.base_offset: s for s in self._segments if s.base_offset not in gone}
        kept.update((segment.base_offset, segment) for segment in added)
        return LogSegments(kept.values())


def close_indices_until_lookup(segments: LogSegments) -> None:
    """Close the offset and time index files until the next look-up, so that ten thousand idle logs do not hold their
    descriptors. Under the log's lock; readers go on."""
    for segment in segments:
        close_until_lookup(segment.offset_index)
        close_until_lookup(segment.time_index)
