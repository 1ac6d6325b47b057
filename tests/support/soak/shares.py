"""A share group of the soak: each record is delivered, and never again after a confirmed accept or reject."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from tests.support.readers import Position
from tests.support.soak.party import Party, World
from tests.support.soak.patience import Patience
from tests.support.soak.writers import FAST_RECONNECT, PlainWriter

ACCEPT, RELEASE, REJECT = (confluent_kafka.AcknowledgeType[name] for name in ("ACCEPT", "RELEASE", "REJECT"))


class ShareGroup(Party):
    """Up to three share consumers of librdkafka, all driven by this thread."""

    max_members = 3
    redelivery_wait_s = 4.0
    """Seconds without a record at the end if all are confirmed: longer than a lock (3 s) delays a second delivery."""
    session_wait_s = 20.0
    """Seconds without a record at the end if some are not confirmed: longer than a lost member's session (6 s)."""

    def __init__(self, world: World, source: PlainWriter) -> None:
        super().__init__(world, f"share group of {source.ledger.topic}")
        self.source = source
        self.group = f"{source.ledger.topic}-share"
        self.members: list[Any] = []
        self.delivered: Counter[Position] = Counter()
        self.done: set[Position] = set()
        self._read_from_the_start()

    def _read_from_the_start(self) -> None:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, self.group, incremental_configs=[entry])
        client = AdminClient({"bootstrap.servers": self.world.bootstrap})
        client.incremental_alter_configs([resource])[resource].result()

    def _join(self) -> None:
        member = confluent_kafka.ShareConsumer(
            {
                **FAST_RECONNECT,
                "bootstrap.servers": self.world.bootstrap,
                "group.id": self.group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        member.subscribe([self.source.ledger.topic])
        self.members.append(member)
        self.counts["joined"] += 1

    def turn(self) -> None:
        if not self.members or (len(self.members) < self.max_members and self.chance.random() < 0.02):
            self._join()
        for member in list(self.members):
            self._take(member, [ACCEPT] * 17 + [RELEASE] * 2 + [REJECT])
        if len(self.members) > 1 and self.chance.random() < 0.02:
            self._leave(self.members[self.chance.randrange(len(self.members))])

    def _leave(self, member: Any) -> None:
        self.members.remove(member)
        self.counts["left"] += 1
        try:
            member.close()
        except KafkaException as error:
            self.counts[f"got {error.args[0].name()}"] += 1

    def _take(self, member: Any, choices: list[Any]) -> int:
        """Poll once, acknowledge each record by one of ``choices``; return the number of records, 1 after an error."""
        try:
            messages = [each for each in member.poll(timeout=0.1) if each.error() is None]
            ends: dict[int, dict[Position, Any]] = {}
            for message in messages:
                position = (message.partition(), message.offset())
                self._deliver(position)
                end = self.chance.choice(choices)
                member.acknowledge(message, end)
                ends.setdefault(position[0], {})[position] = end
            if messages:
                self._confirm(ends, member.commit_sync(timeout=60.0))
        except KafkaException as error:
            self.counts[f"got {error.args[0].name()}"] += 1
            self._leave(member)
            return 1
        return len(messages)

    def _deliver(self, position: Position) -> None:
        self.delivered[position] += 1
        self.counts["again"] += self.delivered[position] > 1
        if position in self.done:
            self.faults.append(
                f"{self.source.ledger.position_text(position)} was delivered again after a confirmed acknowledgement"
            )

    def _confirm(self, ends: dict[int, dict[Position, Any]], results: dict[Any, Any]) -> None:
        for part, error in results.items():
            if error is not None:
                self.counts["acknowledgements refused"] += 1
                continue
            confirmed = [position for position, end in ends.get(part.partition, {}).items() if end != RELEASE]
            self.done.update(confirmed)
            self.counts["confirmed"] += len(confirmed)

    def finish(self) -> None:
        self.source.thread.join()
        patience = Patience()
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < self._final_wait_s():
            if patience.is_over((len(self.delivered), len(self.done))):
                break
            if not self.members:
                self._join()
            if sum(self._take(member, [ACCEPT]) for member in list(self.members)):
                quiet_since = time.monotonic()
        for member in list(self.members):
            self._leave(member)

    def _final_wait_s(self) -> float:
        return self.redelivery_wait_s if len(self.done) >= len(self.source.ledger.acknowledged) else self.session_wait_s

    def check(self) -> None:
        for position, number in self.source.ledger.acknowledged.items():
            if position not in self.delivered:
                self.faults.append(f"{self.source.ledger.position_text(position)}: {number} was never delivered")
