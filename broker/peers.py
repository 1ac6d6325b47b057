"""Other brokers of the cluster, as this one asks them about transactions and share groups; a lone node has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.schema.fields import Message

if TYPE_CHECKING:
    from tidelog.broker.cluster.txn_markers import Marker
    from tidelog.broker.coordinator.share_state.coordinator import ShareStates
    from tidelog.protocol.messages.fetch import FetchRequest
    from tidelog.protocol.messages.list_offsets import ListOffsetsRequest

LeaderRequest: TypeAlias = "FetchRequest | ListOffsetsRequest"
"""What a consumer asks of a partition's leader."""
Response = TypeVar("Response", bound=Message)


class Peers(Protocol):
    """Coordinators and leaders on other brokers. Loop thread only."""

    @property
    def share_states(self) -> ShareStates:
        """States of share partitions, by whichever broker keeps them."""
        ...

    def write_marker(self, marker: Marker) -> Deferred[None]:
        """Have a partition's leader end a transaction; settles when it did, or when that is not needed any more."""
        ...

    def note_marker(self, partition: tuple[str, int], producer_id: int) -> None:
        """Note that a marker was written into a partition that this broker leads."""
        ...

    def asked(
        self, transactional_id: str, partition: tuple[str, int], producer: tuple[int, int], *, is_adding: bool
    ) -> Deferred[None] | None:
        """Ask the coordinator whether the producer may write into the partition, where that is another broker, or to
        add it; settles with its answer, which ``check_batch`` tells. None where there is nothing to ask."""
        ...

    def check_batch(self, partition: tuple[str, int], producer: tuple[int, int]) -> None:
        """Raise the KafkaError of the producer's coordinator unless it may write into the partition; a retriable one
        while that is not known, NotLeaderOrFollowerError where another broker leads.
        """
        ...

    def latest_offsets(self, asked: Iterable[tuple[str, int]]) -> Steps[dict[tuple[str, int], int | KafkaError]]:
        """Return the high watermarks of partitions that others lead, or the errors for which they are not known."""
        ...

    def ask_leader(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Deferred[Response]:
        """Ask another broker under this one's name, in a version up to ``highest``; the caller has authorized
        its own client before. Fails with LeaderNotAvailableError where it does not answer."""
        ...
