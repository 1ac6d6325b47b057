"""States of a share partition's records, as spans of offsets in the same state.

    AVAILABLE      can be acquired; with a delivery count above 0 it was delivered and released
    ACQUIRED       acquired by a member, until the member acknowledges or its lock expires
    ACKNOWLEDGED   processed: terminal
    ARCHIVED       rejected, delivered too often, of an aborted transaction, or without a record: terminal

        AVAILABLE --acquire, count + 1--> ACQUIRED --accept--> ACKNOWLEDGED
         |  ^                               |  |
         |  +--release, lock timed out------+  +--reject, gap, aborted, or returned at the delivery count limit--+
         +--no record in the log-----------------------------------------------------------------> ARCHIVED <----+

Spans are immutable, in order, and do not overlap. Holes between them are offsets at which the log has no records, or,
in stored lists, records that were acquired when their neighbours were stored. The functions are pure: they return new
lists. The record lock limit bounds the length of a list, so iterating is cheap. Source: KIP-932.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple


class RecordState(IntEnum):
    """State of a record; the values are those in the log."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED

NO_MEMBER = ""
NO_DEADLINE = 0.0


class Span(NamedTuple):
    """Offsets ``first`` to ``last``, both included, in one state. An acquired span has its member, and the deadline of
    its lock by the monotonic clock."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    member_id: str = NO_MEMBER
    deadline_ms: float = NO_DEADLINE

    @property
    def is_terminal(self) -> bool:
        return self.state >= ACKNOWLEDGED

    def settle(self, state: RecordState) -> Span:
        """Return the span in this state, without a member."""
        return Span(self.first, self.last, state, self.delivery_count)

    def clip(self, first: int, last: int) -> Span:
        """Return the part of the span between these offsets, with which it must overlap."""
        if first <= self.first and self.last <= last:
            return self
        return self._replace(first=max(self.first, first), last=min(self.last, last))

    @property
    def size(self) -> int:
        """Number of offsets, with or without a record."""
        return self.last - self.first + 1


def find_touching(spans: list[Span], offset: int) -> int:
    """Find the index of the first span that ends at or after ``offset``."""
    return bisect_left(spans, offset, key=lambda span: span.last)


def clip_between(spans: list[Span], first: int, last: int) -> Iterator[Span]:
    """Yield the parts of spans between two offsets, both included; holes are left out."""
    if first > last:
        return
    for index in range(find_touching(spans, first), len(spans)):
        span = spans[index]
        if span.first > last:
            return
        yield span.clip(first, last)


def overlay(spans: list[Span], changes: Iterable[Span]) -> list[Span]:
    """Return the spans with the changes in place of what they cover. The changes must be in order and not overlap."""
    result: list[Span] = []
    pending = spans[::-1]
    for change in changes:
        while pending and pending[-1].first <= change.last:
            span = pending.pop()
            if span.first < change.first:
                result.append(span.clip(span.first, change.first - 1))
            if span.last > change.last:
                pending.append(span.clip(change.last + 1, span.last))
        result.append(change)
    result += reversed(pending)
    return result


def merge(spans: list[Span], changes: Iterable[Span]) -> list[Span]:
    """Return the spans with the changes in place of what they cover. A record keeps its state if its delivery count is
    higher than the change's, or equal and its state has the higher value. So a change that arrives twice, or late,
    undoes none that was made after it. The changes may overlap, in any order. Source: Kafka's
    PersisterStateBatchCombiner."""
    changes = remove_overlaps(changes)
    newer = [
        part
        for change in changes
        for part in clip_between(spans, change.first, change.last)
        if precedence(part) > precedence(change)
    ]
    return overlay(overlay(spans, changes), newer)


def precedence(span: Span) -> tuple[int, RecordState]:
    """Return the rank of a span's state. Of several states of one record, that with the highest rank is kept."""
    return span.delivery_count, span.state


def remove_overlaps(spans: Iterable[Span]) -> list[Span]:
    """Remove overlaps, and return the spans in order: where several overlap, the one of the highest precedence counts.
    Spans that end before they begin are dropped. Takes n log n steps."""
    spans = list(spans)
    if all(span.first <= span.last for span in spans) and all(one.last < other.first for one, other in pairwise(spans)):
        return spans
    waiting = sorted((span for span in spans if span.first <= span.last), key=lambda span: span.first, reverse=True)
    bounds = sorted({bound for span in waiting for bound in (span.first, span.last + 1)})
    begun: list[tuple[int, int, int, int]] = []  # a heap: precedence, the highest first, then number and last offset
    result: list[Span] = []
    for first, end in pairwise(bounds):
        while waiting and waiting[-1].first == first:
            span = waiting.pop()
            heappush(begun, (-span.delivery_count, -span.state, len(waiting), span.last))
        while begun and begun[0][3] < first:
            heappop(begun)
        if begun:
            count, state = -begun[0][0], RecordState(-begun[0][1])
            result.append(Span(first, end - 1, state, count))
    return result


def join_terminal(spans: Iterable[Span]) -> list[Span]:
    """Join neighbours in the same terminal state, with the same delivery count, to one span. Without that, each
    acknowledgement could make a list longer."""
    result: list[Span] = []
    for span in spans:
        before = result[-1] if result else None
        if before is not None and span.is_terminal and before.last + 1 == span.first and before[2:4] == span[2:4]:
            result[-1] = before._replace(last=span.last)
        else:
            result.append(span)
    return result
