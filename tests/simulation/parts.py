"""The stand-in for a ``Broker`` in one simulated process, which its real handlers, roles and fetch loops use."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from tests.simulation.clock import Clock, Process
from tests.simulation.disk import Disk
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.replicas import Replica
from tests.simulation.settings import TOPIC, TOPIC_ID
from tidelog.broker.broker import Broker
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.loop.turn_clock import TurnClock
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.metadata.metadata_image import NO_LEADER, MetadataImage, PartitionState
from tidelog.broker.replica.fetching.fetch_session import FetchSessionCache
from tidelog.broker.replica.index_proofs import IndexProofs
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.purgatory import Purgatory
from tidelog.log.environment import DirectoryState
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import UnknownTopicIdError

FETCH_MAX_BYTES = 57_671_680
NOT_SHOWN = PartitionState((), (), NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class Turns:
    """A ``TurnClock`` that measures nothing, because turns take no virtual time."""

    def run(self, _: str, turn: Callable[[], object]) -> None:
        """Call ``turn``."""
        turn()


class SimulatedDirectory(NamedTuple):
    """The log directory of a broker, which works; only logs in it fail."""

    directory_id: bytes
    state: DirectoryState
    path: str = "directory"
    is_online: bool = True


class Parts:
    """Attributes as of a ``Broker``. The object is its own configuration, metadata, nodes, log manager and services."""

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        process: Process,
        disk: Disk,
        chance: random.Random,
        lag_ms: float,
        directory_id: bytes,
    ) -> None:
        self.node_id = node_id
        self.time = clock
        self.loop = SimulatedLoop(clock, process, lambda: chance.choice(disk.THREAD_MS))
        self.executor = None
        self.authorizer = None
        self.timers = TimerQueue(clock.monotonic_ms, self.loop.call_later, cast("TurnClock", Turns()))
        self.purgatory = Purgatory(self.timers, self.loop.call_soon)
        self.fetch_sessions = FetchSessionCache(100, clock.monotonic_ms, random.Random(chance.randrange(1 << 30)))
        self.controller = RemoteController(MetadataImage(), node_id)
        self.roles = MemberRoles(self.controller, self.timers, int(lag_ms), self.in_thread)
        self.replicas: dict[int, Replica] = {}
        self.config = self.metadata = self.nodes = self.log_manager = self.replica_manager = self.services = self
        self.topics: dict[str, Any] = {}
        self.environment = disk.environment
        self.environment.service_changes.clear()
        self.directories = (SimulatedDirectory(directory_id, disk.state),)
        self.placed: deque[TopicPartition] = deque()
        self.cordoned: frozenset[str] = frozenset()
        self._disk = disk
        self._proofs = IndexProofs(self.in_thread)

    @property
    def broker(self) -> Broker:
        """This object, typed as a ``Broker``."""
        return cast("Broker", self)

    def in_thread(self, work: Callable[[], None]) -> Deferred[None]:
        """Run work in a thread."""
        return run_in_thread(self.loop.shown, cast("Any", None), work)

    def lower_checkpoints(self, _log: object) -> None:
        """Do nothing: no cleaner runs here."""

    # ---- the replica manager

    def partition_by_id(self, topic_id: bytes, number: int) -> Partition:
        """Return the partition of a replica on this broker. Raises UnknownTopicIdError."""
        replica = self.replicas.get(number)
        if replica is None or topic_id != TOPIC_ID:
            raise UnknownTopicIdError
        return replica.partition

    def open(self, number: int) -> Replica:
        """Return the replica of a partition; the first call opens its log."""
        replica = self.replicas.get(number)
        if replica is None:
            name = TopicPartition(TOPIC, number)
            partition = Partition(
                name,
                TOPIC_ID,
                NOT_SHOWN,
                node_id=self.node_id,
                is_internal=False,
                purgatory=self.purgatory,
                open_log=lambda: self._disk.open_log(name, TOPIC_ID),
                is_unopened=bool,
                in_thread=self.in_thread,
                proofs=self._proofs,
            )
            partition.join(self.roles, NOT_SHOWN)
            replica = self.replicas[number] = Replica(partition)
        return replica

    def take_roles(self, image: MetadataImage) -> None:
        """Give this broker's replicas their states in a new metadata image, as ``ReplicaManager.take_roles`` does."""
        self.controller.image = image
        topic = image.topics.get(TOPIC_ID)
        for number, state in enumerate(() if topic is None else topic.partitions):
            if self.node_id in state.replicas:
                replica = self.open(number)
                replica.state = state
                replica.partition.take_over(state)
                self.purgatory.touch(replica.partition)
        self.roles.take_brokers()

    # ---- configuration, metadata, nodes, log manager

    def get_int(self, key: str) -> int:
        """Return the value of the only key that the fetch handler reads."""
        assert key == "fetch.max.bytes"
        return FETCH_MAX_BYTES

    def topic_by_id(self, _: bytes) -> None:
        """Return None: followers ignore the new leader that an error of a fetch names."""

    def find(self, *_: object) -> None:
        """Return None: there are no endpoints."""

    def directory_id_of(self, partition: TopicPartition) -> bytes | None:
        """Return the id of the only directory, None if there is no log."""
        return self.directories[0].directory_id if partition.partition in self.replicas else None

    def is_out_of_service(self, partition: TopicPartition) -> bool:
        """Return whether a log has failed."""
        replica = self.replicas.get(partition.partition)
        return replica is not None and not replica.log.is_serving

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of the logs."""
        self._disk.write_recovery_points()

    def checkpoint_log_start_offsets(self) -> None:
        """Write nothing: no records are deleted."""

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks."""
        self._disk.checkpoint()
