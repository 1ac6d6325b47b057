"""Interface to the states of share partitions, whose coordinators are on this broker or on others. Loop thread only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.broker.coordinator.share_state.state import ShareState, StateKey, StateUpdate
    from tidelog.broker.loop.deferred import Deferred
    from tidelog.broker.loop.steps import Steps


class ShareStates(Protocol):
    """Store of the states of share partitions, on this broker or on others. Methods raise KafkaErrors."""

    def when_open(self, key: StateKey, leader_epoch: int) -> Deferred[None] | None:
        """Begin to load a state for the leader of its partition. Returns None if ``read`` needs no wait."""
        ...

    def read(self, key: StateKey, leader_epoch: int) -> ShareState | None:
        """Return a state for a leader in this epoch. If there is no state, returns None or raises a KafkaError."""
        ...

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        """Create a state with this start offset; -1 leaves the start offset to the leader of the partition. The
        Deferred completes when the state is committed."""
        ...

    def write(self, key: StateKey, written: StateUpdate) -> Deferred[None]:
        """Write a change. The Deferred completes when it is committed."""
        ...

    def delete(self, keys: Iterable[StateKey]) -> Steps[None]:
        """Delete states, and wait until the deletions are committed."""
        ...

    def summaries(self, keys: Sequence[StateKey]) -> Steps[dict[StateKey, ShareState | None]]:
        """Return committed states. For a state that does not exist, returns None, or ``calls.NO_STATE`` if its
        coordinator is another broker. The states' batches must not be used: other brokers do not send them."""
        ...
