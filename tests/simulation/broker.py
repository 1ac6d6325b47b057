"""One simulated broker: the real observer, lifecycle, leader, AlterPartition and fetcher cores, on a real log."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulation.clock import Clock, Process
from tests.simulation.disk import Disk
from tests.simulation.fetch_service import FetchService
from tests.simulation.network import Network, Reply
from tests.simulation.quorum import ADDRESS, CONTROLLER, Question, Quorum
from tests.simulation.replicas import Replica
from tests.simulation.settings import TOPIC, TOPIC_ID, Settings
from tests.support.model_controller import CLUSTER_ID
from tidelog.broker.cluster.alter_partition import AlterPartitions, PartitionKey
from tidelog.broker.cluster.fetching.fetcher import LeaderFetcher, Stage
from tidelog.broker.cluster.fetching.fetchers import FetcherId, Fetchers
from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.cluster.fetching.work import FetcherConfig, Followed, Work
from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, LifecycleError, Registration
from tidelog.broker.cluster.observer import Observer, ObserverConfig
from tidelog.broker.metadata.metadata_image import Endpoint, MetadataImage
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.fetch import FetchRequest

DISK_MS = (0.0, 0.0, 0.0, 1.0, 1.0, 30.0)
"""Times that the work of an answer may take."""


class Place(NamedTuple):
    """The world that all brokers share."""

    clock: Clock
    network: Network
    quorum: Quorum
    settings: Settings
    chance: random.Random
    peers: dict[int, SimulatedBroker]
    note: Callable[[str], object]
    """Takes a line of the listing."""
    on_unclean_stop: Callable[[int], object]


class SimulatedBroker:
    """A node: its disk, and one process after the other."""

    def __init__(self, node_id: int, place: Place, disk: Disk) -> None:
        self.node_id = node_id
        self.disk = disk
        self.process = Process(place.clock, node_id)
        self.process.end()
        self.replicas: dict[int, Replica] = {}
        self.incarnation = 0
        self._place = place

    # ---- lives

    @property
    def is_alive(self) -> bool:
        """Return whether a process runs, or is frozen."""
        return self.process.is_alive

    @property
    def broker_epoch(self) -> int:
        """Epoch of this process's registration, -1 before it."""
        return -1 if self._lifecycle is None else self._lifecycle.broker_epoch

    @property
    def image(self) -> MetadataImage:
        """The newest image of this process."""
        return self._observer.image

    def start(self) -> None:
        """Begin a process."""
        place = self._place
        self.process = Process(place.clock, self.node_id)
        self.incarnation += 1
        self._previous_epoch = self.disk.start()
        self._observer = Observer(ObserverConfig((ADDRESS,), self.node_id, self._directory, CLUSTER_ID))
        self._lifecycle: BrokerLifecycle | None = None
        self._is_asking = False
        self._has_roles = False
        self._is_open = False
        self._proposals = AlterPartitions(self.node_id)
        self._assignment = Fetchers(self.node_id, 1)
        self._fetchers: dict[FetcherId, LeaderFetcher] = {}
        self._service = FetchService(place.clock, self.process, self.replicas, place.chance.randrange(1 << 30))
        self._ask_metadata()
        self._keep_house()

    def kill(self, *, power: bool) -> None:
        """End the process, with or without the power of its machine."""
        self._place.on_unclean_stop(self.node_id)
        self.process.end()
        self.replicas.clear()
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()

    def begin_stop(self) -> None:
        """Ask for a controlled shutdown."""
        if self._lifecycle is not None:
            self._lifecycle.begin_shutdown(self._place.clock.now_ms)
            self._beat()
        if self._lifecycle is None or self._lifecycle.state is BrokerState.SHUTTING_DOWN:
            self._stop()

    def _stop(self) -> None:
        if not self._is_open:  # the logs of the life before were not recovered
            self.kill(power=False)
            return
        self.process.end()
        self.replicas.clear()
        self.disk.stop(self.broker_epoch)
        self._place.note(f"broker {self.node_id} stopped cleanly, epoch {self.broker_epoch}")

    @property
    def _directory(self) -> bytes:
        return b"directory" + bytes(6) + bytes([self.node_id])

    # ---- metadata

    def _ask(self, request: Question, take: Callable[[Any], object]) -> None:
        """Ask the controller."""
        place = self._place

        def serve(reply: Reply) -> None:
            place.quorum.serve(request, reply)

        place.network.ask(self.process, (self.node_id, CONTROLLER), serve, take, place.settings.timeout_ms + 500)

    def _ask_metadata(self) -> None:
        question = self._observer.next_question()
        request = question.request
        assert isinstance(request, FetchRequest)
        wait_ms = question.not_before_ms - self._place.clock.now_ms
        self.process.after(wait_ms, lambda: self._ask(request, self._take_metadata))

    def _take_metadata(self, answer: Any) -> None:
        now_ms, observer = self._place.clock.now_ms, self._observer
        if answer is None:
            observer.take_failure("no answer", now_ms)
        else:
            published = observer.take_answer(answer, now_ms)
            if published is not None and self._lifecycle is not None:
                self._apply(published.image)
                self._lifecycle.take_image(published.image)
            if self._lifecycle is None and observer.is_caught_up:
                self._register()
        self._ask_metadata()

    def _register(self) -> None:
        registration = Registration(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=b"incarnation" + bytes([self.node_id]) + self.incarnation.to_bytes(4, "big"),
            endpoints=(Endpoint("PLAINTEXT", f"broker-{self.node_id}", 9092, 0),),
            features={"metadata.version": (25, 30)},
            rack=None,
            directories=(self._directory,),
            previous_epoch=self._previous_epoch,
        )
        self._lifecycle = BrokerLifecycle(registration, self._place.settings.heartbeat_ms)
        self._lifecycle.take_image(self._observer.image)
        self._beat()

    # ---- heartbeats

    def _beat(self) -> None:
        """Ask the controller when it is time, unless it is being asked."""
        assert self._lifecycle is not None
        if self._is_asking:
            return
        question = self._lifecycle.next_question()
        wait_ms = question.not_before_ms - self._place.clock.now_ms
        if wait_ms > 0:
            self.process.after(wait_ms, self._beat)
            return
        self._is_asking = True
        self._ask(question.request, self._take_beat)

    def _take_beat(self, answer: Any) -> None:
        lifecycle, now_ms = self._lifecycle, self._place.clock.now_ms
        assert lifecycle is not None
        self._is_asking = False
        if answer is None:
            lifecycle.take_failure("no answer", now_ms)
        else:
            try:
                lifecycle.take_answer(answer, now_ms)
            except LifecycleError as error:
                self._place.note(f"broker {self.node_id} ends: {error}")
                self.kill(power=False)
                return
        if lifecycle.state is BrokerState.SHUTTING_DOWN:
            self._stop()
            return
        if self.is_ready_for_roles and not self._has_roles:
            self._has_roles = True
            self.process.after(self._place.chance.uniform(0, 20), self._take_roles)
        self._beat()

    @property
    def is_ready_for_roles(self) -> bool:
        """Return whether the image holds this process's own registration."""
        return self._lifecycle is not None and self._lifecycle.is_at_least(BrokerState.RECOVERY)

    def _take_roles(self) -> None:
        """Recover the logs, take the roles of the newest image, and ask to be unfenced."""
        assert self._lifecycle is not None
        topic = self.image.topics.get(TOPIC_ID)
        for number in range(0 if topic is None else len(topic.partitions)):
            self._open(number)
        self._is_open = True
        self._apply(self.image)
        self._lifecycle.become_ready(self._place.clock.now_ms)
        self._beat()

    def _open(self, number: int) -> Replica:
        replica = self.replicas.get(number)
        if replica is None:
            log = self.disk.open_log(TopicPartition(TOPIC, number), TOPIC_ID)
            replica = self.replicas[number] = Replica(
                self.node_id, log, self._place.settings, self.disk.write_recovery_points
            )
        return replica

    # ---- roles

    def _apply(self, image: MetadataImage) -> None:
        """Take over an image: leaders first, then followers."""
        topic = image.topics.get(TOPIC_ID)
        if topic is None or not self._is_open:
            return
        now_ms = self._place.clock.now_ms
        order = sorted(enumerate(topic.partitions), key=lambda one: one[1].leader != self.node_id)
        for number, state in order:
            if self.node_id in state.replicas:
                self._open(number).take(state, image.brokers, now_ms)
        for fetcher in self._assignment.take_topic(TOPIC, TOPIC_ID, topic.partitions):
            self._assign(fetcher)
        self._service.touch_all()
        self._propose()

    def _assign(self, fetcher: FetcherId) -> None:
        config = FetcherConfig(
            self.node_id,
            self.broker_epoch,
            max_wait_ms=self._place.settings.fetch_wait_ms,
            backoff_ms=self._place.settings.backoff_ms,
        )
        loop = self._fetchers.setdefault(fetcher, LeaderFetcher(config))
        loop.set_partitions(
            {
                key: Followed(followed.topic, followed.leader_epoch, self.replicas[key.partition].position())
                for key, followed in self._assignment.of(fetcher).items()
            }
        )
        self._fetch(fetcher)

    # ---- following

    def _fetch(self, fetcher: FetcherId) -> None:
        """Send the loop's next request when there is one."""
        place, loop = self._place, self._fetchers[fetcher]
        request = loop.next_request(place.clock.now_ms)
        if request is None:
            wake_ms = loop.wake_ms
            if wake_ms is not None and wake_ms > place.clock.now_ms:
                self.process.after(wake_ms - place.clock.now_ms, lambda: self._fetch(fetcher))
            return

        def serve(reply: Reply) -> None:
            peer = place.peers[fetcher.leader]
            peer.process.run(lambda: peer.serve(request, reply))

        timeout_ms = place.settings.timeout_ms + place.settings.fetch_wait_ms
        way = (self.node_id, fetcher.leader)
        place.network.ask(self.process, way, serve, lambda answer: self._take_fetched(fetcher, answer), timeout_ms)

    def _take_fetched(self, fetcher: FetcherId, answer: Any) -> None:
        loop, now_ms = self._fetchers[fetcher], self._place.clock.now_ms
        if answer is None:
            loop.take_failure(now_ms)
        else:
            for work in loop.take_answer(answer, now_ms):
                self.process.after(self._place.chance.choice(DISK_MS), lambda work=work: self._do(fetcher, work))  # type: ignore[misc]
        self._fetch(fetcher)

    def _do(self, fetcher: FetcherId, work: Work) -> None:
        replica, loop = self.replicas[work.key.partition], self._fetchers[fetcher]
        replica.follow(work)
        loop.moved(work.key, work.leader_epoch, replica.position())
        self._fetch(fetcher)

    # ---- leading

    def serve(self, request: Any, reply: Reply) -> None:
        """Answer a follower."""
        if self._is_open:
            self._service.serve(request, reply)
            self._propose()

    def produce(self, number: int, value: bytes, acks: int, reply: Reply) -> None:
        """Answer a client with the offset, or an error."""
        replica = self.replicas.get(number)
        if replica is None:
            return
        try:
            offset = replica.append(value, self._place.clock.now_ms)
        except KafkaError as error:
            reply(error)
            return
        self._service.touch(number)
        if acks == 1:
            reply(offset)
        else:
            replica.when_committed(offset, lambda error: reply(offset if error is None else error))

    def _propose(self) -> None:
        now_ms = self._place.clock.now_ms
        for number, replica in self.replicas.items():
            if replica.leader is not None:
                proposal = replica.leader.proposal(now_ms)
                if proposal is not None:
                    self._proposals.submit(PartitionKey(TOPIC_ID, number), proposal)
        self._send_proposals()

    def _send_proposals(self) -> None:
        now_ms = self._place.clock.now_ms
        request = self._proposals.next_request(self.broker_epoch, now_ms)
        if request is not None:
            self._ask(request, self._take_proposals)
        elif (wake_ms := self._proposals.wake_ms) is not None:
            self.process.after(max(wake_ms - now_ms, 1.0), self._send_proposals)

    def _take_proposals(self, answer: Any) -> None:
        now_ms = self._place.clock.now_ms
        if answer is None:
            self._proposals.take_failure(now_ms)
        else:
            for key, proposal, one in self._proposals.take_answer(answer, now_ms):
                replica = self.replicas.get(key.partition)
                if replica is not None and replica.leader is not None:
                    replica.leader.take_answer(proposal, one, now_ms)
                    replica.advance()
            self._service.touch_all()
        self._send_proposals()

    def misplaced_fetch(self) -> str:
        """Return the partition that a fetch loop follows wrongly; empty where there is none."""
        for fetcher, loop in self._fetchers.items():
            followed = self._assignment.of(fetcher)
            if loop._partitions.keys() != followed.keys():
                return f"broker {self.node_id} follows {list(loop._partitions)} at {fetcher}, not {list(followed)}"
            for key, one in loop._partitions.items():
                replica = self.replicas[key.partition]
                if replica.leader is not None or one.leader_epoch != replica.state.leader_epoch:
                    return f"broker {self.node_id} follows {key.partition} in epoch {one.leader_epoch}: {replica.state}"
                if one.stage is Stage.FETCHING and one.position != replica.position():
                    return f"broker {self.node_id} asks from {one.position}, its log is at {replica.position()}"
        return ""

    # ---- what comes round

    def _keep_house(self) -> None:
        """Shrink ISRs and write the high watermarks, now and then."""
        if self._is_open:
            self._propose()
            self.disk.checkpoint()
        self.process.after(self._place.settings.lag_ms / 2, self._keep_house)


def key_of(number: int) -> FetchKey:
    """Return the key of a partition in fetches."""
    return FetchKey(TOPIC_ID, number)
