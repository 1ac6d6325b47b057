"""The truth of a simulated cluster: which records are committed, and what must hold after every step.

A record is committed once some leader's high watermark has passed it. The names of the invariants are those of
``kip_966_properties.tla`` (J. Vanlightly). An unclean election may lose committed records if as many replicas as the
min ISR stopped uncleanly, or if the topic allows it. After it the committed records are those of the new leader's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from tests.simulation.broker import SimulatedBroker
from tests.simulation.replicas import Entry, Replica
from tests.simulation.settings import TOPIC_ID, Settings
from tests.support.model_controller import ModelController
from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState


class ViolationError(AssertionError):
    """An invariant that does not hold."""


class Acknowledged(NamedTuple):
    """A record that was acknowledged to a client with acks=all."""

    partition: int
    offset: int
    value: bytes


class Truth:
    """Committed records by partition, and the checks."""

    def __init__(
        self,
        settings: Settings,
        controller: ModelController,
        brokers: Mapping[int, SimulatedBroker],
        on_decision: Callable[[], object],
    ) -> None:
        """``on_decision`` is called when the controller has changed a partition: all brokers must be checked then."""
        self._on_decision = on_decision
        self.committed: list[list[Entry]] = [[] for _ in range(settings.partitions)]
        self.acknowledged: list[Acknowledged] = []
        self.acknowledged_again: set[int] = set()
        """Partitions of which a record was acknowledged since this set was cleared."""
        self.lost = 0
        """Number of committed records that unclean elections have lost."""
        self._settings = settings
        self._controller = controller
        self._brokers = brokers
        self._states: list[PartitionState] = []
        self._stopped: list[set[int]] = [set() for _ in range(settings.partitions)]
        self._rebased: list[int | None] = [None] * settings.partitions
        """Leader epoch of an unclean election whose leader has not taken its role yet."""
        self._floors: list[int] = [0] * settings.partitions
        """Leader epoch of the last unclean election: acknowledgements and high watermarks of older ones are ignored."""

    # ---- events

    def note_unclean_stop(self, node_id: int) -> None:
        """Note that a process ended without closing its logs."""
        for stopped in self._stopped:
            stopped.add(node_id)

    def may_have_lost(self, number: int) -> bool:
        """Return whether an unclean election may have lost acknowledged records of a partition."""
        return self._floors[number] > 0

    def may_lose_power(self, node_id: int) -> bool:
        """Return whether one more unclean stop leaves enough replicas that hold what is committed."""
        return all(len(stopped | {node_id}) < self._settings.min_isr for stopped in self._stopped)

    def note_decision(self) -> None:
        """Note the states of the partitions after a decision of the controller."""
        topic = self._controller.image.topics.get(TOPIC_ID)
        if topic is None:
            return
        before, self._states = self._states, list(topic.partitions)
        self._on_decision()
        for number, state in enumerate(self._states):
            old = before[number] if before else state
            if is_unclean_election(old, state):
                self._note_unclean_election(number, state)
            for node_id in state.isr:
                if self._is_current(node_id):
                    self._stopped[number].discard(node_id)

    def _note_unclean_election(self, number: int, state: PartitionState) -> None:
        stops = len(self._stopped[number])
        if not self._settings.allows_unclean and stops < self._settings.min_isr:
            raise ViolationError(
                f"NoCommittedRecordLostGlobally: unclean election of {state.leader} after {stops} stops"
            )
        self._rebased[number] = state.leader_epoch
        self._floors[number] = state.leader_epoch

    def _is_current(self, node_id: int) -> bool:
        """Return whether the running process of a broker is the registered one."""
        registered, broker = self._controller.brokers[node_id], self._brokers[node_id]
        return broker.is_alive and broker.broker_epoch == registered.broker_epoch

    def acknowledge(self, record: Acknowledged, leader_id: int) -> None:
        """Note that a leader has acknowledged a record; ignored if the leader is older than an unclean election."""
        number = record.partition
        replica = self._brokers[leader_id].replicas[number]
        self._check_replica(number, self._brokers[leader_id], replica)
        committed = self.committed[number]
        if self._rebased[number] is not None or replica.state.leader_epoch < self._floors[number]:
            return
        if record.offset >= len(committed) or committed[record.offset].value != record.value:
            raise ViolationError(f"acked => readable: {record} is not committed")
        self.acknowledged.append(record)
        self.acknowledged_again.add(record.partition)

    # ---- checks

    def replicas(self, number: int) -> Iterator[tuple[SimulatedBroker, Replica]]:
        """Yield the replicas of a partition in the processes that run."""
        for broker in self._brokers.values():
            if number in broker.replicas:
                yield broker, broker.replicas[number]

    def check(self, touched: Collection[int]) -> None:
        """Raise ViolationError if an invariant does not hold; only processes of the brokers ``touched`` have run."""
        for number in range(len(self._states)):
            before = len(self.committed[number])
            for node_id in touched:
                broker = self._brokers[node_id]
                replica = broker.replicas.get(number)
                if replica is not None:
                    self._check_replica(number, broker, replica)
            self._check_candidates(number, touched if len(self.committed[number]) == before else self._brokers)
        for node_id in touched:
            broker = self._brokers[node_id]
            misplaced = broker.find_misplaced_fetch() if broker.is_alive else ""
            if broker.failures:
                raise ViolationError(f"Defect: broker {node_id}") from broker.failures[0]
            if misplaced:
                raise ViolationError(f"ValidFetcherState: {misplaced}")

    def _check_replica(self, number: int, broker: SimulatedBroker, replica: Replica) -> None:
        has_news = replica.refresh()
        self._note_committed(number, broker, replica)
        if has_news:
            self._check_log_matching(number, broker, replica)
        if self._rebased[number] is None:
            self._check_reads(number, broker, replica)
        self._check_quorum(number, broker, replica)

    def _note_committed(self, number: int, broker: SimulatedBroker, replica: Replica) -> None:
        """Add the records below a leader's high watermark to the committed ones."""
        leader = replica.leader
        if leader is None or leader.leader_epoch < self._floors[number]:
            return
        committed = self.committed[number]
        if self._rebased[number] is not None:
            self._rebased[number] = None
            kept = common_length(committed, replica.entries)
            self.lost += len(committed) - kept
            del committed[kept:]
            self.acknowledged = [one for one in self.acknowledged if one.partition != number or one.offset < kept]
        watermark = replica.log.high_watermark
        if watermark > len(committed):
            committed += replica.entries[len(committed) : watermark]
        if leader.leader_epoch == self._states[number].leader_epoch and replica.entries[: len(committed)] != committed:
            at = common_length(committed, replica.entries)
            raise ViolationError(
                f"LeaderCompleteness: leader {broker.node_id} of epoch {leader.leader_epoch} lacks the committed "
                f"record {at} {committed[at]}; it ends at {len(replica.entries)}"
            )

    def _check_reads(self, number: int, broker: SimulatedBroker, replica: Replica) -> None:
        if replica.log.leader_epochs.latest_epoch < self._floors[number]:
            return  # the replica does not know yet which records an unclean election has lost
        watermark, committed = replica.log.high_watermark, self.committed[number]
        if replica.entries[:watermark] != committed[:watermark]:
            at = common_length(committed, replica.entries)
            raise ViolationError(
                f"ConsistentRead: broker {broker.node_id} shows up to {watermark}, which is not committed at {at}"
            )

    def _check_log_matching(self, number: int, broker: SimulatedBroker, replica: Replica) -> None:
        for other_broker, other in self.replicas(number):
            ours, theirs = replica.entries, other.entries
            shorter = min(len(ours), len(theirs))
            if ours[:shorter] == theirs[:shorter]:
                continue
            at = common_length(ours, theirs)
            for offset in range(at, shorter):
                if ours[offset].epoch == theirs[offset].epoch:
                    raise ViolationError(
                        f"LogMatching: brokers {broker.node_id} and {other_broker.node_id} both have epoch "
                        f"{ours[offset].epoch} at {offset}, but differ from {at} on"
                    )

    def _check_candidates(self, number: int, nodes: Collection[int]) -> None:
        """Check that each broker that the controller may elect has all committed records."""
        state, committed = self._states[number], self.committed[number]
        if self._rebased[number] is not None:
            return
        for node_id in (*state.isr, *state.elr):
            replica = self._brokers[node_id].replicas.get(number)
            if node_id not in nodes or replica is None or not self._is_current(node_id):
                continue
            if replica.entries[: len(committed)] != committed:
                at = common_length(committed, replica.entries)
                raise ViolationError(
                    f"LeaderCandidateCompleteness: broker {node_id} of ISR {state.isr}, ELR {state.elr} lacks the "
                    f"committed record {at} {committed[at]}; it ends at {len(replica.entries)}"
                )

    def _check_quorum(self, number: int, broker: SimulatedBroker, replica: Replica) -> None:
        state, leader = self._states[number], replica.leader
        if leader is None or leader.leader_epoch != state.leader_epoch or not self._is_current(broker.node_id):
            return
        wanted = {*state.isr, *(() if leader.is_under_min_isr else state.elr)}
        if not wanted <= leader.maximal_isr:
            raise ViolationError(
                f"ReplicationQuorumSuperset: leader {broker.node_id} counts on {sorted(leader.maximal_isr)}, the "
                f"controller on {sorted(wanted)}"
            )

    # ---- after the cluster has healed

    def explain_unhealed(self) -> str:
        """Describe the first partition that is not replicated on all brokers and in sync; empty if there is none."""
        for number, state in enumerate(self._states):
            if state.leader == NO_LEADER or set(state.isr) != set(state.replicas):
                return f"partition {number} has leader {state.leader}, ISR {state.isr}, ELR {state.elr}"
            for broker, replica in self.replicas(number):
                if replica.state.leader_epoch != state.leader_epoch:
                    return f"broker {broker.node_id} has not heard of epoch {state.leader_epoch} of partition {number}"
                if replica.entries != self.committed[number] or replica.log.high_watermark != len(replica.entries):
                    return (
                        f"broker {broker.node_id} ends at {len(replica.entries)}, shows {replica.log.high_watermark} "
                        f"of {len(self.committed[number])} committed records of partition {number}"
                    )
            if len(list(self.replicas(number))) < len(state.replicas):
                return "not all brokers have their roles"
        return ""

    def explain_unserved(self) -> str:
        """Describe the first partition with an in-sync replica whose log has failed, while another one could lead;
        empty if there is none.
        """
        for number, state in enumerate(self._states):
            working = {broker.node_id for broker, replica in self.replicas(number) if replica.log.is_serving}
            failed = {broker.node_id for broker, replica in self.replicas(number)} - working
            if failed.intersection(state.isr) and working.intersection((*state.isr, *state.elr)):
                return f"the log of partition {number} has failed on {sorted(failed)}, and ISR is {state.isr}"
        return ""

    def check_acknowledged(self) -> None:
        """Check that each acknowledged record is at its offset, and no record is in a log twice."""
        for number, entries in enumerate(self.committed):
            counts = Counter(entry.value for entry in entries)
            if doubled := [value for value, count in counts.items() if count > 1]:
                raise ViolationError(f"ExactlyOnce: partition {number} has {doubled} more than once")
        for record in self.acknowledged:
            if self.committed[record.partition][record.offset].value != record.value:
                raise ViolationError(f"acked => readable: {record} is lost")


def is_unclean_election(old: PartitionState, new: PartitionState) -> bool:
    """Return whether a new leader was neither in the ISR nor eligible.

    The recovery state does not tell: a leader that was elected uncleanly may return from the ELR before it has
    reported that it has recovered.
    """
    is_elected = new.leader_epoch != old.leader_epoch and new.leader != NO_LEADER
    return is_elected and new.leader not in (*old.isr, *old.elr)


def common_length(ours: list[Entry], theirs: list[Entry]) -> int:
    """Count the equal records at the beginning of two logs."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
