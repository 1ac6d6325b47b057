"""A simulated cluster that a test drives step by step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.simulation.replicas import Entry, Replica
from tests.simulation.schedule import MEMORY, Schedule, Simulation, collect_garbage
from tests.simulation.settings import TOPIC_ID, Settings
from tests.simulation.truth import Acknowledged
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.protocol.errors import KafkaError

ACK_ALL, ACK_LEADER = -1, 1


class Write:
    """A record that was sent to a broker, and the answer."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.answer: int | KafkaError | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Return whether the broker answered with an offset."""
        return isinstance(self.answer, int)


class Scenario(Simulation):
    """A cluster with one partition on three brokers; broker 1 is the preferred leader."""

    def begin(self) -> None:
        """Start the cluster, and wait until all replicas are in the ISR and know each other."""
        self._start_all()
        self.until(lambda: len(self._live()) == self.settings.brokers)
        self._create_topic()
        self.until(lambda: len(list(self.truth.replicas(0))) == self.settings.brokers)
        self.settle()

    def until(self, condition: Callable[[], bool]) -> None:
        """Run events until a condition holds. Raises ViolationError if it does not in time."""
        self._run_until(condition, "a state of the scenario")

    def pause(self, duration_ms: float) -> None:
        """Run the events of the next ``duration_ms``."""
        end_ms = self.clock.now_ms + duration_ms
        while self.clock.next_ms <= end_ms:
            self._step()
        self.clock.now_ms = end_ms

    def settle(self) -> None:
        """Run events until all replicas are equal, in the ISR, and all their records committed."""
        self.until(lambda: not self.truth.explain_unhealed())

    def heal(self) -> None:
        """End all faults; check that all replicas become equal and in sync, and that a write is acknowledged."""
        self._heal()
        self._restart_failed()
        self.settle()
        write = self.write(self.state.leader)
        self.until(lambda: write.is_acknowledged)
        self.settle()
        self.truth.check_acknowledged()

    @property
    def state(self) -> PartitionState:
        """The partition's state at the controller."""
        return self.controller.image.topics[TOPIC_ID].partitions[0]

    def replica(self, node_id: int) -> Replica:
        """Return a broker's replica."""
        return self.brokers[node_id].replicas[0]

    def values(self, node_id: int) -> list[bytes]:
        """Return the values in a broker's log."""
        return [entry.value for entry in self.entries(node_id)]

    def entries(self, node_id: int) -> list[Entry]:
        """Return the records in a broker's log."""
        replica = self.replica(node_id)
        replica.refresh()
        return replica.entries

    def write(self, node_id: int, acks: int = ACK_ALL) -> Write:
        """Send a record to a broker."""
        self.written += 1
        write = Write(b"%d" % self.written)

        def take(answer: int | KafkaError) -> None:
            write.answer = answer
            if acks == ACK_ALL and isinstance(answer, int):
                self.truth.acknowledge(Acknowledged(0, answer, write.value), node_id)

        broker = self.brokers[node_id]
        broker.process.run(lambda: broker.produce(0, write.value, acks, take))
        return write

    def isolate(self, node_id: int) -> None:
        """Cut a broker off from all other brokers and the controller."""
        for other in (0, *self.brokers):
            if other != node_id:
                self.network.cuts |= {(node_id, other), (other, node_id)}


@contextmanager
def scenario(**settings: float) -> Iterator[Scenario]:
    """A started cluster."""
    root = tempfile.mkdtemp(dir=MEMORY, prefix="tidelog-scenario-")
    made = Scenario(Schedule(7, Settings()._replace(**settings), ()), root)  # type: ignore[arg-type]
    try:
        made.begin()
        yield made
    finally:
        for broker in made.brokers.values():
            broker.end_with_the_simulation()
        shutil.rmtree(root)
        collect_garbage()
