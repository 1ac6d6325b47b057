"""The state machine of one partition of ``__share_group_state``: the states of share partitions (KIP-932).

The full state is written (ShareSnapshot) when it is created or reset, and after ``UPDATES_PER_SNAPSHOT`` updates; other
changes are written without the rest of the state (ShareUpdate). So records below the oldest snapshot in use are not
needed: they are deleted every ``PRUNE_INTERVAL_MS``. A state that never changes would keep its old snapshot, and so all
records after it. So a state that has not changed for ``COLD_AFTER_MS`` gets a new snapshot, once enough records were
appended after its old one: as many as the shard has states. Records are deleted only when the new snapshots are
committed: otherwise the next coordinator might find neither the old nor the new ones.

Epochs: ``state_epoch`` is the group's epoch at the creation of the state, ``snapshot_epoch`` counts snapshots. In a
cluster, when a leader of the partition reads the state, its leader epoch is stored: from then on earlier leaders are
fenced. A leader that read the state before the group's offsets were reset is fenced by the state epoch.

Methods return records, ``replay`` applies them. Loop thread only. Source: KIP-932; ShareSnapshot, ShareUpdate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.coordinator.runtime.replay import ReplayContext
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, Parts, TimerResult
from tidelog.broker.coordinator.share_state.spans import RecordState, Span, merge
from tidelog.protocol.coordinator_records.share import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
)
from tidelog.protocol.errors import FencedLeaderEpochError, FencedStateEpochError, InvalidRequestError, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

UPDATES_PER_SNAPSHOT = 500
"""Default of ``share.coordinator.snapshot.update.records.per.snapshot``."""
PRUNE_INTERVAL_MS = 300_000
COLD_AFTER_MS = 300_000
MAX_SNAPSHOTS_PER_PRUNE = 1_000
UNCHANGED_OFFSET = -1
"""Start offset in a change that keeps the state's start offset."""
NO_EPOCH = -1
"""Epoch of a caller that has none, and so is not fenced."""
KEYS_PER_PART = 128
"""States that are checked in one part of a topic's deletion."""

_PRUNE_KEY = ("prune-share-state",)


class StateKey(NamedTuple):
    """Key of one share partition: a partition of a topic, as one share group reads it."""

    group_id: str
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class ShareState:
    """State of one share partition: start offset, batches of records with delivery counts, and epochs.

    No batch begins below the start offset. The start offset may be -1 until a leader of the partition first writes one:
    until then each leader chooses one by ``share.auto.offset.reset``. ``delivery_complete_count`` is the number of
    finished records after the start offset, -1 if it is not known.
    """

    start_offset: int
    batches: tuple[Span, ...] = ()
    delivery_complete_count: int = -1
    state_epoch: int = 0
    snapshot_epoch: int = 0
    leader_epoch: int = 0
    created_ms: int = 0


class StateUpdate(NamedTuple):
    """A change of a state: changed batches, the new start offset, and the number of finished records after that
    offset. The epochs are those of the leader that makes the change."""

    start_offset: int
    delivery_complete_count: int
    leader_epoch: int
    batches: Iterable[Span]
    state_epoch: int = NO_EPOCH


class _StoredState:
    """A state, the offset of its snapshot, the number of updates since, and the time at which its last record was
    replayed."""

    __slots__ = ("changed_ms", "snapshot_offset", "state", "updates")

    def __init__(self, state: ShareState, snapshot_offset: int, changed_ms: float) -> None:
        self.state = state
        self.snapshot_offset = snapshot_offset
        self.changed_ms = changed_ms
        self.updates = 0


class ShareStateShard:
    """State machine of the share partitions' states in one partition of ``__share_group_state``."""

    def __init__(
        self,
        timer: CoordinatorTimer,
        *,
        time: Time,
        updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
        delete_before: Callable[[int], object] = lambda offset: None,
    ) -> None:
        """``delete_before(offset)`` deletes the records below an offset, once all records appended so far are
        committed."""
        self.timer = timer
        self._time = time
        self._updates_per_snapshot = updates_per_snapshot
        self._delete_before = delete_before
        self._held: dict[StateKey, _StoredState] = {}
        self._next_offset = 0

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, key: StateKey) -> ShareState | None:
        """Return a share partition's state, None if it does not exist."""
        held = self._held.get(key)
        return None if held is None else held.state

    # -- deciding -----------------------------------------------------------------------------------------------

    def read_as_leader(self, key: StateKey, leader_epoch: int) -> CoordinatorResult[ShareState]:
        """Return a state, and store the epoch of the leader that reads it. Raises FencedLeaderEpochError, and
        InvalidRequestError if there is no state."""
        held = self._held.get(key)
        if held is None:
            raise InvalidRequestError("Read operation on uninitialized share partition not allowed.")
        state = held.state
        check_epoch(leader_epoch, state.leader_epoch, FencedLeaderEpochError)
        if leader_epoch in (NO_EPOCH, state.leader_epoch):
            return CoordinatorResult(state, [])
        change = StateUpdate(UNCHANGED_OFFSET, state.delivery_complete_count, leader_epoch, ())
        return CoordinatorResult(replace(state, leader_epoch=leader_epoch), self.write(key, change).records)

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> CoordinatorResult[None]:
        """Create the state, or replace it when the group's offsets are reset. Raises FencedStateEpochError.

        Members' heartbeats ask for a state without a start offset. If the share partition has a state already, that is
        kept: another heartbeat asked for it, or a repeated call arrives late, and records may have been finished since.
        """
        held = self._held.get(key)
        if held is not None:
            check_epoch(state_epoch, held.state.state_epoch, FencedStateEpochError)
            if start_offset < 0:
                return CoordinatorResult(None)
        state = ShareState(
            start_offset,
            delivery_complete_count=-1 if start_offset < 0 else 0,
            state_epoch=state_epoch,
            snapshot_epoch=0 if held is None else held.state.snapshot_epoch + 1,
            created_ms=self._time.milliseconds(),
        )
        return CoordinatorResult(None, [self._snapshot(key, state)])

    def write(self, key: StateKey, written: StateUpdate) -> CoordinatorResult[None]:
        """Change a state. Raises FencedLeaderEpochError, FencedStateEpochError, and InvalidRequestError if there is no
        state."""
        held = self._held.get(key)
        if held is None:
            raise InvalidRequestError("Write operation on uninitialized share partition not allowed.")
        check_epoch(written.leader_epoch, held.state.leader_epoch, FencedLeaderEpochError)
        check_epoch(written.state_epoch, held.state.state_epoch, FencedStateEpochError)
        if held.updates < self._updates_per_snapshot:
            value = ShareUpdateValue(
                snapshot_epoch=held.state.snapshot_epoch,
                leader_epoch=written.leader_epoch,
                start_offset=written.start_offset,
                delivery_complete_count=written.delivery_complete_count,
                state_batches=encode_spans(join_equal(written.batches)),
            )
            return CoordinatorResult(None, [CoordinatorRecord(ShareUpdateKey(**key._asdict()), value)])
        state = replace(apply_update(held.state, written), snapshot_epoch=held.state.snapshot_epoch + 1)
        return CoordinatorResult(None, [self._snapshot(key, state)])

    def delete(self, keys: Iterable[StateKey]) -> CoordinatorResult[None]:
        """Delete these states."""
        return CoordinatorResult(
            None,
            [CoordinatorRecord(ShareSnapshotKey(**key._asdict()), None) for key in keys if key in self._held],
        )

    def delete_topic(self, topic_id: bytes) -> Parts:
        """Delete the states of all groups for a topic, in parts: the shard may have a million states."""
        keys = iter(list(self._held))
        while part := list(islice(keys, KEYS_PER_PART)):
            yield self.delete([key for key in part if key.topic_id == topic_id])

    def _snapshot(self, key: StateKey, state: ShareState) -> CoordinatorRecord:
        value = ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            create_timestamp=state.created_ms,
            write_timestamp=self._time.milliseconds(),
            state_batches=encode_spans(state.batches),
        )
        return CoordinatorRecord(ShareSnapshotKey(**key._asdict()), value)

    # -- pruning ------------------------------------------------------------------------------------------------

    def prune(self) -> TimerResult:
        """Return a result that writes new snapshots of states whose old ones keep many records in use, and then deletes
        the records that are not needed. Runs again after PRUNE_INTERVAL_MS.
        """
        self._schedule_pruning()
        quiet_since = self._time.monotonic_ms() - COLD_AFTER_MS
        cold = [
            (key, held)
            for key, held in self._held.items()
            if held.changed_ms <= quiet_since and self._next_offset - held.snapshot_offset > len(self._held)
        ]
        records = [
            self._snapshot(key, replace(held.state, snapshot_epoch=held.state.snapshot_epoch + 1))
            for key, held in cold[:MAX_SNAPSHOTS_PER_PRUNE]
        ]
        return CoordinatorResult(None, records, self._delete_unneeded)

    def _delete_unneeded(self, error: KafkaError | None) -> None:
        """Delete the records below the oldest snapshot in use, unless the new snapshots could not be appended."""
        if error is None:
            self._delete_before(min((held.snapshot_offset for held in self._held.values()), default=self._next_offset))

    def _schedule_pruning(self) -> None:
        self.timer.schedule(_PRUNE_KEY, PRUNE_INTERVAL_MS, self.prune)

    # -- replay -------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, context: ReplayContext) -> None:
        """Apply one record, when serving and when loading."""
        key = StateKey(record.key.group_id, bytes(record.key.topic_id), record.key.partition)
        self._next_offset = context.offset + 1
        if record.value is None:
            self._held.pop(key, None)
        elif record.key.__class__ is ShareSnapshotKey:
            self._held[key] = _StoredState(snapshot_state(record.value), context.offset, self._time.monotonic_ms())
        else:
            self._replay_update(key, record.value)

    def _replay_update(self, key: StateKey, value: ShareUpdateValue) -> None:
        held = self._held.get(key)
        if held is None or value.snapshot_epoch != held.state.snapshot_epoch:
            return  # an update of a state that was deleted or replaced
        written = StateUpdate(
            value.start_offset, value.delivery_complete_count, value.leader_epoch, decode_spans(value.state_batches)
        )
        held.state = apply_update(held.state, written)
        held.updates += 1
        held.changed_ms = self._time.monotonic_ms()

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Do nothing: this topic has no transactional records."""

    def on_loaded(self) -> list[CoordinatorResult[None]]:
        """Start the timer of ``prune``."""
        self._schedule_pruning()
        return []


def check_epoch(epoch: int, known: int, error: type[KafkaError]) -> None:
    """Raise ``error`` for an epoch that is older than the state's, which is ``known``; NO_EPOCH is never refused."""
    if epoch != NO_EPOCH and epoch < known:
        raise error


def apply_update(state: ShareState, written: StateUpdate) -> ShareState:
    """Return the state after a change. If the change's start offset or leader epoch is -1, the state keeps its own.

    A change that its leader sent again, because it got no answer, may arrive late: the start offset never moves back,
    and no finished record becomes available again (``merge``).
    """
    start_offset = max(state.start_offset, written.start_offset)
    spans = merge(list(state.batches), written.batches)
    return replace(
        state,
        start_offset=start_offset,
        leader_epoch=state.leader_epoch if written.leader_epoch == -1 else written.leader_epoch,
        delivery_complete_count=written.delivery_complete_count,
        batches=tuple(join_equal(span.clip(start_offset, span.last) for span in spans if span.last >= start_offset)),
    )


def join_equal(spans: Iterable[Span]) -> list[Span]:
    """Join neighbouring spans with the same state and delivery count."""
    result: list[Span] = []
    for span in spans:
        before = result[-1] if result else None
        if before is not None and before.last + 1 == span.first and before[2:4] == span[2:4]:
            result[-1] = before._replace(last=span.last)
        else:
            result.append(span)
    return result


def snapshot_state(value: ShareSnapshotValue) -> ShareState:
    """Return the state in a snapshot record."""
    return ShareState(
        value.start_offset,
        tuple(decode_spans(value.state_batches)),
        value.delivery_complete_count,
        value.state_epoch,
        value.snapshot_epoch,
        value.leader_epoch,
        value.create_timestamp,
    )


def encode_spans(spans: Iterable[Span]) -> list[StateBatch]:
    """Convert spans to the batches of a record."""
    return [
        StateBatch(
            first_offset=span.first,
            last_offset=span.last,
            delivery_state=int(span.state),
            delivery_count=span.delivery_count,
        )
        for span in spans
    ]


def decode_spans(batches: Iterable[Any]) -> list[Span]:
    """Convert the batches of a record or message to spans, in order. An unknown state becomes AVAILABLE."""
    known = {int(state): state for state in RecordState}
    return sorted(
        Span(
            batch.first_offset,
            batch.last_offset,
            known.get(batch.delivery_state, RecordState.AVAILABLE),
            batch.delivery_count,
        )
        for batch in batches
    )
