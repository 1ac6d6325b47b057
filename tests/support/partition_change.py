"""A model of the change that a controller makes to one partition: elections, ISR, ELR, last known leader.

It shares no code with the broker. ``model_controller.py`` uses it, and tests/simulation/test_model_controller.py
compares its records with those of a real controller. Source: PartitionChangeBuilder of Kafka 4.3; KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState
from tidelog.protocol.metadata_records.records import PartitionChangeRecord

RECOVERING, RECOVERED = 1, 0
RECOVERY_UNCHANGED = -1


class Election(Enum):
    """Kinds of election: with ``UNCLEAN`` any live replica may lead if no in-sync one can."""

    ONLINE = 0
    PREFERRED = 1
    UNCLEAN = 2


class Rules(NamedTuple):
    """Conditions of a change: brokers that may lead, the effective min ISR, the ELR feature, the kind of election.

    ``unclean_shutdown`` is the broker that stopped uncleanly, if the change is due to that.
    """

    is_acceptable: Callable[[int], bool]
    min_isr: int
    has_elr: bool = True
    election: Election = Election.ONLINE
    unclean_shutdown: int = NO_LEADER


class Elected(NamedTuple):
    """The result of an election."""

    leader: int
    is_unclean: bool


class PartitionChange:
    """The builder of one change. ``target_isr`` is the wanted ISR, ``recovery`` the wanted recovery state."""

    def __init__(self, state: PartitionState, rules: Rules, target_isr: list[int], recovery: int | None = None) -> None:
        self.state = state
        self.rules = rules
        self.isr = target_isr
        self.elr = list(state.elr)
        self.recovery = int(state.is_recovering) if recovery is None else recovery

    def build(
        self, topic_id: bytes, number: int, directories: list[bytes] | None = None
    ) -> PartitionChangeRecord | None:
        """Return the record of the change, None if nothing changes. ``directories`` are those of the replicas, if they
        change.
        """
        record = PartitionChangeRecord(partition_id=number, topic_id=topic_id)
        self._fill_elr()
        self._elect(record)
        if record.isr is not None or not self.rules.has_elr:
            self.elr = []
        if self.elr != list(self.state.elr):
            record.eligible_leader_replicas = self.elr
        if record.isr is None and (self.isr or self.rules.has_elr) and self.isr != list(self.state.isr):
            record.isr = self.isr
        self._note_last_leader(record)
        if self.recovery != int(self.state.is_recovering):
            record.leader_recovery_state = self.recovery
        if directories not in (None, list(self.state.directories)):
            record.directories = directories
        empty = PartitionChangeRecord(partition_id=number, topic_id=topic_id)
        return None if record == empty else record

    def _fill_elr(self) -> None:
        """Fill the ELR: members that leave an ISR below the min ISR stay eligible, unless they stopped uncleanly."""
        if not self.rules.has_elr:
            return
        if len(self.isr) >= self.rules.min_isr:
            self.elr = []
            return
        candidates = sorted({*self.elr, *self.state.isr})
        self.elr = [one for one in candidates if one not in self.isr and one != self.rules.unclean_shutdown]

    def _elect(self, record: PartitionChangeRecord) -> None:
        elected = self._choose()
        if elected.leader == self.state.leader:
            return
        if elected.leader in self.elr:
            self.isr = [elected.leader]
            self.elr = [one for one in self.elr if one != elected.leader]
        record.leader = elected.leader
        if elected.is_unclean:
            record.isr = [elected.leader]
            if not self.state.is_recovering:
                record.leader_recovery_state = RECOVERING
                self.recovery = RECOVERING

    def _choose(self) -> Elected:
        candidates = [self.state.leader, *self.state.replicas]
        if self.rules.election is Election.PREFERRED:
            candidates = [self.state.replicas[0], *candidates]
        for one in candidates:
            if self._is_valid(one):
                return Elected(one, False)
        if self._may_elect_last_leader():
            return Elected(self.state.last_known_elr[0], True)
        if self.rules.election is Election.UNCLEAN:
            for one in self.state.replicas:
                if self.rules.is_acceptable(one):
                    return Elected(one, True)
        return Elected(NO_LEADER, False)

    def _is_valid(self, broker_id: int) -> bool:
        eligible = self.isr or self.elr
        return broker_id in eligible and self.rules.is_acceptable(broker_id)

    def _may_elect_last_leader(self) -> bool:
        last = self.state.last_known_elr
        if not self.rules.has_elr or self.isr or self.elr or len(last) != 1:
            return False
        return self.rules.is_acceptable(last[0])

    def _note_last_leader(self, record: PartitionChangeRecord) -> None:
        if not self.rules.has_elr:
            return
        last = self.state.last_known_elr
        if record.leader == NO_LEADER and not last:
            record.last_known_elr = [self.state.leader]
        elif record.leader >= 0 and last:
            record.last_known_elr = []
