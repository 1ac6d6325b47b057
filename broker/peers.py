"""Interface to the other brokers of the cluster: transactions, share groups, partitions that they lead. A lone node has
none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.schema.fields import Message

if TYPE_CHECKING:
    from tidelog.broker.cluster.txn_markers import Marker
    from tidelog.broker.coordinator.share_state.states import ShareStates
    from tidelog.protocol.messages.fetch import FetchRequest
    from tidelog.protocol.messages.list_offsets import ListOffsetsRequest

LeaderRequest: TypeAlias = "FetchRequest | ListOffsetsRequest"
"""Requests that a consumer sends to a partition's leader."""
Response = TypeVar("Response", bound=Message)


class Peers(Protocol):
    """Coordinators and leaders on other brokers. Loop thread only."""

    @property
    def share_states(self) -> ShareStates:
        """States of share partitions, at their coordinators here and on other brokers."""
        ...

    def write_marker(self, marker: Marker) -> Deferred[None]:
        """Send a marker to a partition's leader; settles when it is written, or not needed any more."""
        ...

    def note_marker(self, partition: tuple[str, int], producer_id: int) -> None:
        """Note that a marker was written into a partition that this broker leads."""
        ...

    def ask_coordinator(
        self, transactional_id: str, partition: tuple[str, int], producer: tuple[int, int], *, is_adding: bool
    ) -> Deferred[None] | None:
        """Ask the coordinator to add the partition (``is_adding``), or ask one on another broker whether the producer
        may write into it. Settles when the coordinator has answered: if with an error, ``check_batch`` raises this
        error. None if there is nothing to wait for.
        """
        ...

    def check_batch(self, partition: tuple[str, int], producer: tuple[int, int]) -> None:
        """Raise the coordinator's KafkaError unless the producer may write into the partition. Raise a retriable error
        while the coordinator's answer is not known, NotLeaderOrFollowerError if another broker leads the partition.
        """
        ...

    def latest_offsets(self, asked: Iterable[tuple[str, int]]) -> Steps[dict[tuple[str, int], int | KafkaError]]:
        """Return the high watermarks of partitions that other brokers lead; for one that is not known the error."""
        ...

    def ask_leader(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Deferred[Response]:
        """Send a request to another broker, in a version up to ``highest``. The other broker checks this broker's
        permissions alone, so the caller has to check its user's first. Fails with LeaderNotAvailableError if no answer
        comes."""
        ...
