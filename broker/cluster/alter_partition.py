"""Proposals of in-sync replicas on their way to the active controller: all that wait in one request, one in flight.

    submitted -> waiting -> in flight -> answered with NONE or an error that decides    handed out
                    ^                 -> another error, or no answer                    waits again, after a moment

A newer proposal for a partition takes the place of one that waits. Sans-io; loop thread only.
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
"""Kafka's wait before a request is sent again."""
DECIDED = REFUSED | OVERTAKEN | {NONE}


class PartitionKey(NamedTuple):
    """A partition by its topic's id."""

    topic_id: bytes
    partition: int


class Answered(NamedTuple):
    """A proposal and its answer."""

    key: PartitionKey
    proposal: IsrProposal
    answer: IsrAnswer


class AlterPartitions:
    """Proposals of one broker."""

    __slots__ = ("_broker_id", "_flying", "_not_before_ms", "_waiting")

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._waiting: dict[PartitionKey, IsrProposal] = {}
        self._flying: dict[PartitionKey, IsrProposal] = {}
        self._not_before_ms = 0.0

    def submit(self, key: PartitionKey, proposal: IsrProposal) -> None:
        """Have a proposal sent with the next request."""
        self._waiting[key] = proposal

    @property
    def wake_ms(self) -> float | None:
        """The time from which there is a request to send; None while nothing waits or one is in flight."""
        return self._not_before_ms if self._waiting and not self._flying else None

    def next_request(self, broker_epoch: int, now_ms: float) -> AlterPartitionRequest | None:
        """Return a request with all waiting proposals, which is in flight from then on; None while none is due."""
        if self.wake_ms is None or now_ms < self._not_before_ms:
            return None
        self._flying, self._waiting = self._waiting, {}
        topics: dict[bytes, TopicData] = {}
        for key, proposal in self._flying.items():
            topic = topics.setdefault(key.topic_id, TopicData(topic_id=key.topic_id))
            topic.partitions.append(altered(key, proposal))
        return AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))

    def take_answer(self, response: AlterPartitionResponse, now_ms: float) -> list[Answered]:
        """Return the decided proposals; the others wait to be sent again."""
        sent, self._flying = self._flying, {}
        answered = []
        for key, answer in () if response.error_code else answers_of(response):
            if key in sent and answer.error_code in DECIDED:
                answered.append(Answered(key, sent.pop(key), answer))
        self._keep(sent, now_ms)
        return answered

    def take_failure(self, now_ms: float) -> None:
        """Send all proposals again, as no answer came. If the controller has committed one, it will answer so."""
        sent, self._flying = self._flying, {}
        self._keep(sent, now_ms)

    def _keep(self, undecided: dict[PartitionKey, IsrProposal], now_ms: float) -> None:
        if undecided:
            self._waiting = {**undecided, **self._waiting}
            self._not_before_ms = now_ms + RETRY_MS


def altered(key: PartitionKey, proposal: IsrProposal) -> PartitionData:
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
