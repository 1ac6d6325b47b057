"""A simulated cluster that a test drives step by step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.simulation.replicas import Entry, Replica
from tests.simulation.schedule import MEMORY, Schedule, Simulation, let_go
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
    """One partition on three brokers; broker 1 is preferred."""

    def begin(self) -> None:
        """Start the cluster, and wait until all replicas are in the ISR and know each other."""
        self._start_all()
        self.until(lambda: len(self._live()) == self.settings.brokers)
        self._create_topic()
        self.until(lambda: len(list(self.truth.replicas(0))) == self.settings.brokers)
        self.settle()

    def until(self, condition: Callable[[], bool]) -> None:
        """Go on until a state is reached."""
        self._run_until(condition, "a state of the scenario")

    def pause(self, duration_ms: float) -> None:
        """Let time pass."""
        end_ms = self.clock.now_ms + duration_ms
        while self.clock.next_ms <= end_ms:
            self._step()
        self.clock.now_ms = end_ms

    def settle(self) -> None:
        """Wait until all replicas are equal, in the ISR and committed."""
        self.until(lambda: not self.truth.unhealed())

    def heal(self) -> None:
        """Mend everything, and see that the cluster becomes whole and takes writes."""
        self._heal()
        self.settle()
        write = self.write(self.state.leader)
        self.until(lambda: write.is_acknowledged)
        self.settle()
        self.truth.check_acknowledged()

    @property
    def state(self) -> PartitionState:
        """The partition as the controller has it."""
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
        """Cut a broker from all others and the controller."""
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
        let_go()
