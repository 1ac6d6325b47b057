"""One simulated broker: the real observer, lifecycle, leader, AlterPartition and fetcher cores, on a real log."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tests.simulation.clock import Clock, Process
from tests.simulation.disk import Disk
from tests.simulation.network import Network, Reply
from tests.simulation.parts import Parts
from tests.simulation.quorum import ADDRESS, CONTROLLER, Question, Quorum
from tests.simulation.replicas import Replica
from tests.simulation.serving import serve
from tests.simulation.settings import TOPIC_ID, Settings
from tests.support.model_controller import CLUSTER_ID
from tidelog.broker.cluster.fetching.fetcher import Stage
from tidelog.broker.cluster.fetching.work import FetcherConfig
from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, LifecycleError, Registration
from tidelog.broker.cluster.observing.observer import Observer, ObserverConfig
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member.config import MemberConfig
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.directories import DirectoryReports
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.replication import Replication
from tidelog.broker.metadata.image import topic_image
from tidelog.broker.metadata.metadata_image import Endpoint, MetadataImage
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.record.record_batch import BatchOptions

HOST = "broker-"
NOT_IDEMPOTENT = BatchOptions()
SETTINGS = SimpleNamespace(
    replica_fetchers=1, replica_socket_timeout_ms=1000, broker_security=PeerSecurity("PLAINTEXT")
)


class Environment(NamedTuple):
    """Clock, network, controllers and settings that all brokers of a simulation share."""

    clock: Clock
    network: Network
    quorum: Quorum
    settings: Settings
    chance: random.Random
    peers: dict[int, SimulatedBroker]
    note: Callable[[str], object]
    """Adds a line to the listing of events."""
    on_unclean_stop: Callable[[int], object]


class SimulatedBroker:
    """A broker: its disk, and one process after the other. An incarnation is the number of a process."""

    def __init__(self, node_id: int, environment: Environment, disk: Disk) -> None:
        self.node_id = node_id
        self.disk = disk
        self.process = Process(environment.clock, node_id)
        self.process.end()
        self.incarnation = 0
        self._environment = environment

    # ---- lives

    @property
    def is_alive(self) -> bool:
        """Return whether a process runs, or is frozen."""
        return self.process.is_alive

    @property
    def broker_epoch(self) -> int:
        """Broker epoch of this process's registration, -1 before the process is registered."""
        return -1 if self._lifecycle is None else self._lifecycle.broker_epoch

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image of this process."""
        return self._observer.image

    def start(self) -> None:
        """Start a process."""
        environment = self._environment
        self.process = Process(environment.clock, self.node_id)
        self.incarnation += 1
        self._previous_epoch = self.disk.start()
        self._observer = Observer(ObserverConfig((ADDRESS,), self.node_id, self._directory, CLUSTER_ID))
        self._lifecycle: BrokerLifecycle | None = None
        self._is_asking = False
        self._has_roles = False
        self._is_open = False
        self._backlog: deque[MetadataImage] = deque()
        self._publishing = asyncio.Lock()
        self.parts = Parts(
            self.node_id, environment.clock, self.process, self.disk, environment.chance, environment.settings.lag_ms,
            self._directory,
        )  # fmt: skip
        self._ask_metadata()
        self._keep_house()

    def kill(self, *, power: bool) -> None:
        """Kill the process; with ``power`` its machine loses power, and the disk what was not synced."""
        self._environment.on_unclean_stop(self.node_id)
        self.process.end()
        self.parts.loop.forget()
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()

    def lose_disk(self) -> None:
        """Replace the disk by an empty one; a running process is killed."""
        if self.is_alive:
            self.kill(power=True)
        self._environment.on_unclean_stop(self.node_id)
        self.disk.replace()

    def end_with_the_simulation(self) -> None:
        """Release files and tasks, because no more events follow."""
        self.parts.loop.forget()
        self.disk.kill()

    def begin_stop(self) -> None:
        """Begin a controlled shutdown."""
        if self._lifecycle is not None:
            self._lifecycle.begin_shutdown(self._environment.clock.now_ms)
            self._beat()
        if self._lifecycle is None or self._lifecycle.state is BrokerState.SHUTTING_DOWN:
            self._stop()

    def _stop(self) -> None:
        if not self._is_open:  # the logs of the process before were not recovered
            self.kill(power=False)
            return
        if self.has_failed_logs:  # the next process finds no marker of a clean stop
            self._environment.on_unclean_stop(self.node_id)
        self.process.end()
        self.parts.loop.forget()
        self.disk.stop(self.broker_epoch)
        self._environment.note(f"broker {self.node_id} stopped cleanly, epoch {self.broker_epoch}")

    @property
    def _directory(self) -> bytes:
        return b"directory" + bytes(6) + bytes([self.node_id])

    # ---- metadata

    def _ask(self, request: Question, take: Callable[[Any], object]) -> None:
        """Send a request to the controller; ``take`` gets the response, or None."""
        environment = self._environment

        def serve(reply: Reply) -> None:
            environment.quorum.serve(request, reply)

        environment.network.ask(
            self.process, (self.node_id, CONTROLLER), serve, take, environment.settings.timeout_ms + 500
        )

    def _ask_metadata(self) -> None:
        question = self._observer.next_question()
        request = question.request
        assert isinstance(request, FetchRequest)
        wait_ms = question.not_before_ms - self._environment.clock.now_ms
        self.process.after(wait_ms, lambda: self._ask(request, self._take_metadata))

    def _take_metadata(self, answer: Any) -> None:
        now_ms, observer = self._environment.clock.now_ms, self._observer
        if answer is None:
            observer.take_failure("no answer", now_ms)
        else:
            published = observer.take_answer(answer, now_ms)
            if published is not None:
                self._take_image(published.image)
            if self._lifecycle is None and observer.is_caught_up:
                self._register()
        if self._is_open:
            self.parts.loop.create_task(self._publish_and_go_on())
        else:
            self._ask_metadata()

    def _take_image(self, image: MetadataImage) -> None:
        if self._is_open:
            self._backlog.append(image)
        elif self._lifecycle is not None:
            self._lifecycle.take_image(image)

    async def _publish_and_go_on(self) -> None:
        """Publish the waiting images, then fetch metadata again."""
        await self._publish()
        self._ask_metadata()

    def _register(self) -> None:
        registration = Registration(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=b"incarnation" + bytes([self.node_id]) + self.incarnation.to_bytes(4, "big"),
            endpoints=(Endpoint("PLAINTEXT", f"{HOST}{self.node_id}", 9092, 0),),
            features={"metadata.version": (25, 30)},
            rack=None,
            directories=(self._directory,),
            previous_epoch=self._previous_epoch,
        )
        self._lifecycle = BrokerLifecycle(registration, self._environment.settings.heartbeat_ms)
        self._lifecycle.take_image(self._observer.image)
        self._beat()

    # ---- heartbeats

    def _beat(self) -> None:
        """Send a heartbeat or the registration when it is due, unless a request is in flight."""
        assert self._lifecycle is not None
        if self._is_asking:
            return
        question = self._lifecycle.next_question()
        wait_ms = question.not_before_ms - self._environment.clock.now_ms
        if wait_ms > 0:
            self.process.after(wait_ms, self._beat)
            return
        self._is_asking = True
        self._ask(question.request, self._take_beat)

    def _take_beat(self, answer: Any) -> None:
        lifecycle, now_ms = self._lifecycle, self._environment.clock.now_ms
        assert lifecycle is not None
        self._is_asking = False
        if answer is None:
            lifecycle.take_failure("no answer", now_ms)
        else:
            try:
                lifecycle.take_answer(answer, now_ms)
            except LifecycleError as error:
                self._environment.note(f"broker {self.node_id} ends: {error}")
                self.kill(power=False)
                return
        if lifecycle.state is BrokerState.SHUTTING_DOWN:
            self._stop()
            return
        if self.is_ready_for_roles and not self._has_roles:
            self._has_roles = True
            self.process.after(self._environment.chance.uniform(0, 20), self._take_roles)
        self._beat()

    @property
    def is_ready_for_roles(self) -> bool:
        """Return whether the metadata image has this process's own registration."""
        return self._lifecycle is not None and self._lifecycle.is_at_least(BrokerState.RECOVERY)

    def _take_roles(self) -> None:
        """Recover the logs, take the roles of the newest image, and ask to be unfenced."""
        assert self._lifecycle is not None
        self._open_up()
        self._backlog.append(self.image)
        self.parts.loop.create_task(self._become_ready())

    async def _become_ready(self) -> None:
        assert self._lifecycle is not None
        await self._publish()
        self._report_directories(self._lifecycle)
        self._lifecycle.become_ready(self._environment.clock.now_ms)
        self._beat()

    def _report_directories(self, lifecycle: BrokerLifecycle) -> None:
        """Begin to report logs that have failed, and the directories of all logs."""
        clock, parts = self._environment.clock, self.parts
        reports = DirectoryReports(cast("Any", parts), parts.controller, lifecycle, clock.monotonic_ms, self._beat)
        reports.begin()
        parts.loop.create_task(reports.report(cast("Channel", self._channel()), self._observer.quorum, float("inf")))

    def fail_log(self, number: int) -> None:
        """Take the log of a partition out of service, as an unreadable file does. The file is whole after a restart."""
        replica = self.replicas.get(number)
        if replica is not None and replica.log.is_serving:
            replica.refresh()
            replica.log.take_out_of_service(KafkaStorageError("an unreadable file"))

    @property
    def has_failed_logs(self) -> bool:
        """Return whether a log of the running process has failed."""
        return any(not replica.log.is_serving for replica in self.replicas.values())

    # ---- roles

    async def _publish(self) -> None:
        """Publish the waiting images to roles and fetch loops, one after the other, as ``MetadataPublisher`` does."""
        assert self._lifecycle is not None
        async with self._publishing:
            while self._backlog:
                image = self._backlog.popleft()
                self.parts.take_roles(image)
                topic = image.topics.get(TOPIC_ID)
                if topic is not None:
                    self.replication.take_topic(topic_image(image, topic))
                    await self.replication.share_out()
                self._lifecycle.take_image(image)

    def _open_up(self) -> None:
        """Begin to fetch from leaders, to serve followers, and to maintain the ISRs."""
        assert self._lifecycle is not None
        environment = self._environment
        config = FetcherConfig(
            self.node_id,
            self.broker_epoch,
            max_wait_ms=environment.settings.fetch_wait_ms,
            backoff_ms=environment.settings.backoff_ms,
        )
        self.replication = SimulatedReplication(self.parts, config, self._channel)
        self._is_open = True
        loop, roles = self.parts.loop, self.parts.roles
        loop.create_task(roles.check_isr())
        loop.create_task(
            roles.alter_partitions(cast("Channel", self._channel()), self._observer.quorum, self.broker_epoch)
        )

    def _channel(self) -> SimulatedChannel:
        return SimulatedChannel(self)

    # ---- requests

    def ask(self, node_id: int, request: Any, take: Callable[[Any], object]) -> None:
        """Send a request to the controller or another broker; ``take`` gets the response, or None."""
        if node_id == CONTROLLER:
            self._ask(request, take)
            return
        environment = self._environment
        peer = environment.peers[node_id]
        timeout_ms = environment.settings.timeout_ms + environment.settings.fetch_wait_ms
        way = (self.node_id, node_id)
        environment.network.ask(
            self.process, way, lambda reply: peer.process.run(lambda: peer.serve(request, reply)), take, timeout_ms
        )

    def serve(self, request: Any, reply: Reply) -> None:
        """Answer a follower's request; without roles the request stays unanswered."""
        if self._is_open:
            serve(self.parts, request, reply)

    def produce(
        self, number: int, value: bytes, acks: int, settled: Reply, options: BatchOptions = NOT_IDEMPOTENT
    ) -> None:
        """Append a client's record; ``settled`` gets its offset once it is acknowledged, or an error."""
        replica = self.replicas.get(number)
        if replica is not None:
            replica.append(value, acks, settled, options)

    # ---- state for the checks

    @property
    def replicas(self) -> dict[int, Replica]:
        """The replicas of the running process, by partition number."""
        return self.parts.replicas if self.is_alive else {}

    @property
    def failures(self) -> list[BaseException]:
        """Exceptions that tasks of the event loop did not handle."""
        return self.parts.loop.failures if self.is_alive else []

    def find_misplaced_fetch(self) -> str:
        """Describe a partition that a fetch loop does not follow as the newest image says; empty if there is none."""
        if not self._is_open or self._backlog or self._publishing.locked():
            return ""
        for fetcher_id, (fetcher, _) in self.replication._tasks.items():
            followed = self.replication._fetchers.partitions_of(fetcher_id)
            if fetcher._applying.locked():
                continue
            failed = {key for key in followed if not self.replicas[key.partition].log.is_serving}
            if fetcher.state_machine._partitions.keys() - failed != followed.keys() - failed:
                return f"broker {self.node_id} follows {list(fetcher.state_machine._partitions)}, not {list(followed)}"
            for key, one in fetcher.state_machine._partitions.items():
                if key in failed:
                    continue  # it is dropped before the next request
                replica = self.replicas[key.partition]
                if replica.leader is not None or one.leader_epoch != replica.state.leader_epoch:
                    return f"broker {self.node_id} follows {key.partition} in epoch {one.leader_epoch}: {replica.state}"
                if one.stage is Stage.FETCHING and one.position != replica.position():
                    return f"broker {self.node_id} asks from {one.position}, its log is at {replica.position()}"
        return ""

    # ---- periodic work

    def _keep_house(self) -> None:
        """Write the high watermarks every ``checkpoint_ms``."""
        if self._is_open:
            self.disk.checkpoint()
        self.process.after(self._environment.settings.checkpoint_ms, self._keep_house)


class SimulatedChannel:
    """A connection of one process, over the simulated network."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker

    async def ask(self, address: Address, request: Any, _: type[Any]) -> Any:
        """Send one request and return the response. Raises ChannelError if none arrives."""
        arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        node_id = CONTROLLER if address == ADDRESS else int(address.host.removeprefix(HOST))

        def take(answer: Any) -> None:
            if not arrived.done():
                arrived.set_result(answer)

        self._broker.ask(node_id, request, take)
        answer = await arrived
        if answer is None:
            raise ChannelError("no answer")
        return answer

    def close(self) -> None:
        """Do nothing: there is no connection."""


class SimulatedReplication(Replication):
    """The real fetch loops, over simulated connections."""

    def __init__(self, parts: Parts, config: FetcherConfig, connect: Callable[[], SimulatedChannel]) -> None:
        super().__init__(parts.broker, parts.controller, config, cast("MemberConfig", SETTINGS))
        self._connect = connect

    def _channel(self) -> Channel:
        return cast("Channel", self._connect())
