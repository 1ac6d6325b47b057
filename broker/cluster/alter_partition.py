"""ISR proposals of a leader to the active controller: at most one AlterPartition request is in flight; it carries all
proposals that waited.

    submit -> waiting -> in flight -> answered with a code of DECIDED    returned by take_answer
                 ^                -> another error, or no answer        waits again, for RETRY_MS at least

A newer proposal for a partition replaces one that waits. Sans-io; loop thread only.
Source: AlterPartitionManager of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.broker.cluster.partition_state import OVERTAKEN, REFUSED, IsrAnswer, IsrProposal
from tidelog.protocol.errors import NONE
from tidelog.protocol.messages.alter_partition import (
    RECOVERED,
    RECOVERING,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)

RETRY_MS = 50.0
"""Wait in ms before proposals are sent again, as in Kafka."""
DECIDED = REFUSED | OVERTAKEN | {NONE}
"""Codes after which a proposal is not sent again; any other code leads to a retry."""


class PartitionKey(NamedTuple):
    """A partition by its topic's id."""

    topic_id: bytes
    partition: int


class AnsweredProposal(NamedTuple):
    """A proposal that is not sent again, with the controller's answer."""

    key: PartitionKey
    proposal: IsrProposal
    answer: IsrAnswer


class AlterPartitions:
    """Proposals of one broker that the controller has not decided on yet."""

    __slots__ = ("_broker_id", "_in_flight", "_not_before_ms", "_waiting")

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._waiting: dict[PartitionKey, IsrProposal] = {}
        self._in_flight: dict[PartitionKey, IsrProposal] = {}
        self._not_before_ms = 0.0

    def submit(self, key: PartitionKey, proposal: IsrProposal) -> None:
        """Add a proposal to the next request, in place of one that waits for the same partition."""
        self._waiting[key] = proposal

    @property
    def wake_ms(self) -> float | None:
        """The time from which there is a request to send; None while nothing waits or one is in flight."""
        return self._not_before_ms if self._waiting and not self._in_flight else None

    def next_request(self, broker_epoch: int, now_ms: float) -> AlterPartitionRequest | None:
        """Return a request with all waiting proposals, which is in flight from then on; None while none is due."""
        if self.wake_ms is None or now_ms < self._not_before_ms:
            return None
        self._in_flight, self._waiting = self._waiting, {}
        topics: dict[bytes, TopicData] = {}
        for key, proposal in self._in_flight.items():
            topic = topics.setdefault(key.topic_id, TopicData(topic_id=key.topic_id))
            topic.partitions.append(partition_data(key, proposal))
        return AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))

    def take_answer(self, response: AlterPartitionResponse, now_ms: float) -> list[AnsweredProposal]:
        """Return the proposals that the controller has decided on; the others wait to be sent again."""
        sent, self._in_flight = self._in_flight, {}
        answered = []
        for key, answer in () if response.error_code else answers_of(response):
            if key in sent and answer.error_code in DECIDED:
                answered.append(AnsweredProposal(key, sent.pop(key), answer))
        self._keep(sent, now_ms)
        return answered

    def take_failure(self, now_ms: float) -> None:
        """Keep all proposals in flight to be sent again, as no answer came. One that the controller has committed
        already is then answered with INVALID_UPDATE_VERSION.
        """
        sent, self._in_flight = self._in_flight, {}
        self._keep(sent, now_ms)

    def _keep(self, undecided: dict[PartitionKey, IsrProposal], now_ms: float) -> None:
        if undecided:
            self._waiting = {**undecided, **self._waiting}
            self._not_before_ms = now_ms + RETRY_MS


def partition_data(key: PartitionKey, proposal: IsrProposal) -> PartitionData:
    """Return the request's entry for a proposal."""
    members = [BrokerState(broker_id=one.broker_id, broker_epoch=one.broker_epoch) for one in proposal.isr]
    return PartitionData(
        partition_index=key.partition,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=members,
        new_isr=list(proposal.ids),
        leader_recovery_state=RECOVERED,
        partition_epoch=proposal.partition_epoch,
    )


def answers_of(response: AlterPartitionResponse) -> Iterator[tuple[PartitionKey, IsrAnswer]]:
    """Yield each partition's answer."""
    for topic in response.topics:
        for one in topic.partitions:
            key = PartitionKey(topic.topic_id, one.partition_index)
            is_recovering = one.leader_recovery_state == RECOVERING
            yield (
                key,
                IsrAnswer(
                    one.error_code, one.leader_id, one.leader_epoch, one.partition_epoch, tuple(one.isr), is_recovering
                ),
            )
