"""Share partition: the state of one partition's records for one share group, and the group's position (KIP-932).

    start_offset   no record below it is delivered: each is finished (acknowledged or archived), deleted, or older than
                   the group's first start offset
    end_offset     the last offset that was acquired; with nothing in flight, the next offset to acquire
    spans          states of the offsets from start to end (``coordinator.share_state.spans``)

A member acquires records for the lock duration, and acknowledges each: accept, release, reject, or renew. Records that
it releases, or does not acknowledge in time, are available again until the delivery count limit is reached. Records are
first acquired in whole batches of the log, except in the acquire mode RECORD_LIMIT. A batch may have offsets without a
record: the member acknowledges them as a gap.

Acquisitions and renewals are soft state: a restart forgets them, and the records are available again. Records that were
compacted or deleted, or whose transaction was aborted, are archived or dropped in memory only, too: after a restart the
next fetches do so again. ``acknowledge``, ``release`` and ``expire`` return a :class:`Change` and alter nothing. The
caller passes the change to the share coordinator, and then to ``commit``, without waiting until the change is
committed. If the change is lost, the caller drops the share partition, and reads the stored state again. After a
restart, offsets within the stored range that have no stored state were in flight, and are available.

Loop thread only; deadlines on the monotonic clock. Source: KIP-932, KIP-1206 (acquire mode), KIP-1222 (renewal).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.broker.coordinator.share_state.spans import (
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    RecordState,
    Span,
    clip_between,
    join_terminal,
    overlay,
)
from tidelog.protocol.errors import InvalidRecordStateError, InvalidRequestError

UNINITIALIZED_OFFSET = -1
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
"""Acknowledge types of the protocol."""

_STATES = {
    GAP: RecordState.ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: RecordState.AVAILABLE,
    REJECT: RecordState.ARCHIVED,
}
"""Acknowledge type -> state of the record after it."""


class Limits(NamedTuple):
    """Limits from the group's configuration: time of a lock, deliveries of a record, offsets in flight, and whether
    locks may be renewed. The limits are read again for each request."""

    lock_duration_ms: int = 30_000
    delivery_count: int = 5
    record_locks: int = 2_000
    allows_renewal: bool = True

    @property
    def throttled_from(self) -> int:
        """The delivery count from which records are delivered in ever smaller parts, to isolate a record that breaks
        its consumers."""
        return max(2, -(-self.delivery_count // 2))


class BatchRange(NamedTuple):
    """The offsets of one batch of the log."""

    base_offset: int
    last_offset: int


class AcquiredRun(NamedTuple):
    """A run of offsets that a member acquired, all with the same delivery count."""

    first: int
    last: int
    delivery_count: int


class AcquireRequest(NamedTuple):
    """Request of a member for records, with the batches that were read for the request from ``fetch_offset`` on."""

    member_id: str
    fetch_offset: int
    batches: Sequence[BatchRange]
    max_records: int
    batch_size: int
    is_strict: bool
    """Whether ``max_records`` is exact (acquire mode RECORD_LIMIT). If not, the number of records is rounded up to the
    end of a batch."""


class AcknowledgementBatch(NamedTuple):
    """Acknowledgement of the offsets from ``first`` to ``last``: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Change(NamedTuple):
    """A change of a share partition: the state after it, and what must be stored before it is applied.

    ``batches`` are the changed spans from the start offset on, which the store needs. ``delivery_complete_count`` is
    the number of finished offsets after the start offset. ``needs_storing`` is False if there is nothing to store:
    renewed locks are not stored."""

    spans: list[Span]
    start_offset: int
    end_offset: int
    delivery_complete_count: int
    batches: list[Span]
    needs_storing: bool


class SharePartition:
    """The state of one share partition."""

    __slots__ = ("_may_have_available", "end_offset", "spans", "start_offset")

    def __init__(self, start_offset: int, stored: Iterable[Span] = ()) -> None:
        """Build the state from the group's start offset and the spans that were stored from there on."""
        self.start_offset = start_offset
        self.spans = fill_gaps(start_offset, stored)
        self.end_offset = self.spans[-1].last if self.spans else start_offset
        self._may_have_available = bool(self.spans)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """Offset from which the log is read for the next request."""
        if self._may_have_available:
            for span in self.spans:
                if span.state is AVAILABLE:
                    return span.first
            self._may_have_available = False
        return self.end_offset + 1 if self.spans else self.end_offset

    @property
    def in_flight(self) -> int:
        """Number of offsets from start to end, in any state."""
        return self.end_offset - self.start_offset + 1 if self.spans else 0

    def can_acquire(self, limits: Limits) -> bool:
        """Return whether there may be records that a member can acquire."""
        return self.next_fetch_offset != self.end_offset + 1 or self.in_flight < limits.record_locks

    @property
    def next_deadline_ms(self) -> float | None:
        """Time at which the first lock expires; None without locks."""
        return min((span.deadline_ms for span in self.spans if span.state is ACQUIRED), default=None)

    # -- acquiring ----------------------------------------------------------------------------------------------

    def acquire(self, request: AcquireRequest, limits: Limits, now_ms: float) -> list[AcquiredRun]:
        """Acquire for the member the available records of the batches. There is nothing to store: locks are in memory
        only."""
        batches = request.batches
        if not batches or batches[-1].last_offset < self.start_offset:
            return []
        left, last = self._find_limits(request, limits)
        if left <= 0:
            return []
        self._archive_vanished(request.fetch_offset, batches[0].base_offset)
        deadline_ms = now_ms + limits.lock_duration_ms
        first = max(batches[0].base_offset, self.start_offset)
        taken, isolated = choose_redelivered(clip_between(self.spans, first, last), request, left, limits)
        spans = [span._replace(member_id=request.member_id, deadline_ms=deadline_ms) for span in taken]
        left -= sum(span.size for span in spans)
        first = max(first, self.end_offset + 1 if self.spans else self.end_offset)
        if left > 0 and first <= last and not isolated:
            spans += [
                Span(begin, end, ACQUIRED, 1, request.member_id, deadline_ms)
                for begin, end in list_fresh(request, first, last, left)
            ]
        if spans:
            if not self.spans:
                self.start_offset = spans[0].first
            self.spans = overlay(self.spans, spans)
            self.end_offset = max(self.end_offset, spans[-1].last)
        return join_runs(spans)

    def _find_limits(self, request: AcquireRequest, limits: Limits) -> tuple[int, int]:
        """Return how many records may be acquired, and up to which offset."""
        last = request.batches[-1].last_offset
        left = min(request.max_records, limits.record_locks - self.in_flight)
        if left <= 0 and request.fetch_offset <= self.end_offset:  # full, but released records can be acquired
            return min(request.max_records, self.end_offset - request.fetch_offset + 1), min(last, self.end_offset)
        return left, last

    def _archive_vanished(self, fetch_offset: int, base_offset: int) -> None:
        """Archive available records below the first batch that was read: compaction has removed them."""
        gone = [
            span.settle(ARCHIVED)
            for span in clip_between(self.spans, fetch_offset, base_offset - 1)
            if span.state is AVAILABLE
        ]
        if gone:
            self._set(self._apply_changes(gone))

    def drop_aborted(self, aborted: Iterable[BatchRange], acquired: list[AcquiredRun]) -> list[AcquiredRun]:
        """Archive records of aborted transactions, which no consumer of a group with ``read_committed`` may see.
        Returns ``acquired`` without them."""
        hidden, left = divide_runs(acquired, aborted)
        gone = [span.settle(ARCHIVED) for bounds in hidden for span in clip_between(self.spans, *bounds)]
        self._set(self._apply_changes(gone))
        return left

    def take_back(self, member_id: str, acquired: Iterable[AcquiredRun]) -> None:
        """Undo acquisitions whose response was not sent: the records were not delivered."""
        given = [
            Span(part.first, part.last, AVAILABLE, part.delivery_count - 1)
            for run in acquired
            for part in clip_between(self.spans, run.first, run.last)
            if part.state is ACQUIRED and (part.member_id, part.delivery_count) == (member_id, run.delivery_count)
        ]
        self.spans = overlay(self.spans, given)
        self._set(self._apply_changes([]))

    # -- acknowledgement and release ----------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Iterable[AcknowledgementBatch], limits: Limits, now_ms: float
    ) -> Change:
        """Return the change by a member's acknowledgements, all or none.

        Raises InvalidRecordStateError for records that the member has not acquired or acknowledges twice, and for
        renewals if the group does not allow them. Raises InvalidRequestError for offsets after all that were acquired.
        """
        spans: list[Span] = []
        for batch in batches:
            if batch.last < self.start_offset:
                continue
            if spans and batch.first <= spans[-1].last:
                raise InvalidRecordStateError("The record state is invalid. A record is acknowledged twice.")
            self._check_known(batch)
            spans += self._acknowledge_batch(member_id, batch, limits, now_ms)
        return self._apply_changes(spans)

    def _check_known(self, batch: AcknowledgementBatch) -> None:
        """Check that the acknowledged offsets overlap with the spans, and end within them."""
        if not self.spans or batch.last < self.spans[0].first:
            raise InvalidRecordStateError(
                "Batch record not found. The request batch offsets are not found in the cache."
            )
        if batch.last > self.spans[-1].last:
            raise InvalidRequestError("Batch record not found. The last offset in request is past acquired records.")

    def _acknowledge_batch(
        self, member_id: str, batch: AcknowledgementBatch, limits: Limits, now_ms: float
    ) -> Iterable[Span]:
        for span in clip_between(self.spans, max(batch.first, self.start_offset), batch.last):
            if span.state is not ACQUIRED:
                raise InvalidRecordStateError(
                    "The batch cannot be acknowledged. The batch is not in the acquired state."
                )
            if span.member_id != member_id:
                raise InvalidRecordStateError("Member is not the owner of batch record")
            for first, last, kind in split_by_type(batch, span):
                part = span.clip(first, last)
                if kind == RENEW:
                    if not limits.allows_renewal:
                        raise InvalidRecordStateError("Renewing acquisition locks is not enabled for the group.")
                    yield part._replace(deadline_ms=now_ms + limits.lock_duration_ms)
                else:
                    yield part.settle(self._state_after_return(part, _STATES[kind], limits))

    @staticmethod
    def _state_after_return(span: Span, state: RecordState, limits: Limits) -> RecordState:
        if state is AVAILABLE and span.delivery_count >= limits.delivery_count:
            return ARCHIVED
        return state

    def release(self, member_id: str, limits: Limits) -> Change:
        """Return the change that releases all records of a member."""
        return self._give_back((span for span in self.spans if span.member_id == member_id), limits)

    def expire(self, limits: Limits, now_ms: float) -> Change:
        """Return the change that releases all records whose locks have expired."""
        due = (span for span in self.spans if span.state is ACQUIRED and span.deadline_ms <= now_ms)
        return self._give_back(due, limits)

    def _give_back(self, held: Iterable[Span], limits: Limits) -> Change:
        """Return the change that makes acquired spans available, or archives them at the delivery count limit."""
        spans = [
            span.settle(self._state_after_return(span, AVAILABLE, limits)) for span in held if span.state is ACQUIRED
        ]
        return self._apply_changes(spans)

    def _apply_changes(self, changed: list[Span]) -> Change:
        """Return the change by these spans; the start offset moves past finished records at the beginning."""
        spans = overlay(self.spans, changed) if changed else self.spans
        begin = 0
        while begin < len(spans) and spans[begin].is_terminal:
            begin += 1
        start_offset, end_offset = self.start_offset, self.end_offset
        if begin:
            start_offset = spans[begin].first if begin < len(spans) else spans[-1].last + 1
            spans = spans[begin:]
        if not spans:
            end_offset = start_offset
        stored = [span for span in changed if span.state is not ACQUIRED]
        batches = [span.clip(start_offset, span.last) for span in stored if span.last >= start_offset]
        spans = join_terminal(spans)
        complete = sum(span.size for span in spans if span.is_terminal)
        return Change(spans, start_offset, end_offset, complete, batches, bool(stored))

    def commit(self, change: Change) -> None:
        """Apply a change after it was written. Nothing else may have changed the share partition since it was
        computed."""
        self._set(change)

    def _set(self, change: Change) -> None:
        self.spans = change.spans
        self.start_offset = change.start_offset
        self.end_offset = change.end_offset
        self._may_have_available = True

    def log_start_moved(self, log_start_offset: int) -> None:
        """Drop the states of records below the log's start: these records are not delivered again, and acknowledging
        them does nothing."""
        if log_start_offset <= self.start_offset:
            return
        kept = [span.clip(log_start_offset, span.last) for span in self.spans if span.last >= log_start_offset]
        self.spans = kept
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._set(self._apply_changes([]))


def fill_gaps(start_offset: int, stored: Iterable[Span]) -> list[Span]:
    """Return the stored spans from the start offset on. Offsets between them were in flight, and are available."""
    spans: list[Span] = []
    offset = start_offset
    for span in stored:
        if span.last < offset:
            continue
        if span.first > offset:
            spans.append(Span(offset, span.first - 1, AVAILABLE, 0))
        spans.append(span.clip(offset, span.last))
        offset = span.last + 1
    return spans


def choose_redelivered(
    parts: Iterable[Span], request: AcquireRequest, left: int, limits: Limits
) -> tuple[list[Span], bool]:
    """Choose the parts that are delivered again. The flag says that the member gets no other records with them.

    Records that were released often are delivered in ever smaller parts (a half, a quarter), and the last time one by
    one: if one of them breaks its consumers, the others do not reach the delivery limit with it.
    """
    taken: list[Span] = []
    for part in parts:
        if part.state is not AVAILABLE:
            continue
        if left <= 0:
            break
        size = min(part.size, cut_at(request, part.first, left) - part.first + 1)
        isolated = part.delivery_count >= limits.throttled_from
        if isolated and taken:
            return taken, True
        if isolated:
            size = min(size, isolated_size(part, limits))
        taken.append(Span(part.first, part.first + size - 1, ACQUIRED, part.delivery_count + 1))
        left -= size
        if isolated:
            return taken, True
    return taken, False


def isolated_size(part: Span, limits: Limits) -> int:
    """Return how many records of a part that was released often are delivered together."""
    if limits.delivery_count > 2 and part.delivery_count >= limits.delivery_count - 1:
        return 1
    return max(1, part.size >> (part.delivery_count - limits.throttled_from + 1))


def cut_at(request: AcquireRequest, first: int, left: int) -> int:
    """Return the last of ``left`` offsets from ``first`` on. Unless the request is strict, that is rounded up to the
    last offset of a batch."""
    last = first + left - 1
    if request.is_strict:
        return last
    number = bisect_left(request.batches, last, key=lambda batch: batch.last_offset)
    return request.batches[number].last_offset if number < len(request.batches) else last


def list_fresh(request: AcquireRequest, first: int, last: int, left: int) -> list[tuple[int, int]]:
    """List runs of offsets from ``first`` on that no member has acquired yet: whole batches, joined until a run has
    ``batch_size`` records."""
    last = min(last, cut_at(request, first, left))
    batch_size = max(1, request.batch_size)
    if request.is_strict or last - first + 1 <= batch_size:
        return [(first, last)]
    found = []
    for batch in request.batches:
        if batch.base_offset > last:
            break
        if batch.base_offset - first >= batch_size:
            found.append((first, batch.base_offset - 1))
            first = batch.base_offset
    found.append((first, last))
    return found


def join_runs(spans: Iterable[Span]) -> list[AcquiredRun]:
    """Join spans to the runs of the answer: neighbouring spans that are delivered again become one run."""
    found: list[AcquiredRun] = []
    for span in spans:
        before = found[-1] if found else None
        if before is not None and before.last + 1 == span.first and before.delivery_count == span.delivery_count > 1:
            found[-1] = before._replace(last=span.last)
        else:
            found.append(AcquiredRun(span.first, span.last, span.delivery_count))
    return found


def split_by_type(batch: AcknowledgementBatch, span: Span) -> Iterable[tuple[int, int, int]]:
    """Yield first offset, last offset and type of each run of one type in the span."""
    types = batch.types
    if len(types) == 1:
        yield span.first, span.last, types[0]
        return
    first = span.first
    for offset in range(span.first, span.last + 1):
        kind = types[offset - batch.first]
        if offset == span.last or types[offset + 1 - batch.first] != kind:
            yield first, offset, kind
            first = offset + 1


def divide_runs(
    runs: Iterable[AcquiredRun], ranges: Iterable[BatchRange]
) -> tuple[list[tuple[int, int]], list[AcquiredRun]]:
    """Return first and last offset of each part of the runs that is in one of the ranges, and the other parts of the
    runs. Runs and ranges must be in order and not overlap."""
    inside: list[tuple[int, int]] = []
    outside: list[AcquiredRun] = []
    pending = deque(ranges)
    for run in runs:
        first = run.first
        while pending and pending[0].base_offset <= run.last:
            begin, end = max(pending[0].base_offset, first), min(pending[0].last_offset, run.last)
            if begin <= end:
                inside.append((begin, end))
                if first < begin:
                    outside.append(run._replace(first=first, last=begin - 1))
                first = end + 1
            if pending[0].last_offset > run.last:
                break
            pending.popleft()
        if first <= run.last:
            outside.append(run._replace(first=first))
    return inside, outside
