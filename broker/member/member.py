"""One process as a member of a cluster: it joins, follows the metadata while it serves, and leaves in an orderly way.

    join    check directories -> follow the metadata up to the high watermark -> register
            -> wait until the image has this registration -> recover logs, take roles (leader, follower) of replicas
    serve   open listeners -> ask to be unfenced: then clients see this broker, and it can lead
    leave   controlled shutdown: leaders move to other brokers, then the listeners close

Each kind of request to the controllers has a connection and a task: fetches of the metadata, heartbeats, forwarded
requests and others. A task that cannot go on ends the broker. Loop thread only.

Source: BrokerServer of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, LifecycleError, Registration
from tidelog.broker.cluster.observing.metadata_tail import MetadataLostError
from tidelog.broker.cluster.observing.observer import Observer, ObserverConfig, ObserverError
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import AUTHORIZER_CLASS
from tidelog.broker.controller.activation import refusal
from tidelog.broker.controller.features import offered_levels
from tidelog.broker.errors import StartError
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.member.config import fetcher_config, member_config, replication_quotas
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.connections.controllers import ControllerChannels
from tidelog.broker.member.connections.directories import DirectoryReports
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.directories import (
    MemberDirectories,
    claim_member_directories,
    clean_stop_of,
    keep_position,
    move_strays,
    read_position,
    write_position,
)
from tidelog.broker.member.forwarding.dispatcher import MemberDispatcher
from tidelog.broker.member.forwarding.forwarder import Forwarder
from tidelog.broker.member.nodes import ClusterNodes
from tidelog.broker.member.peers import MemberPeers
from tidelog.broker.member.producer_ids import ProducerIdBlocks, fetch_blocks
from tidelog.broker.member.publisher import MetadataPublisher, make_own_logs
from tidelog.broker.member.replication import Replication
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.member.topics import MemberTopics, TopicCreation
from tidelog.broker.metadata.image_records import METADATA_VERSION
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.replay import PublishedImage
from tidelog.broker.replica.strays import StrayLogs
from tidelog.broker.startup import ClusterParts, assemble, build_foundation, recovery_of, set_creation_mode
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaError, KafkaStorageError
from tidelog.protocol.messages import fetch, fetch_snapshot
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from tidelog.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from tidelog.protocol.types import SystemRandom, random_uuid

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 300.0
"""Limit of a controlled shutdown in s, as in Kafka."""
NO_CONTROLLER_S = 10.0
"""Time in s without an answer of a controller after which a controlled shutdown is given up: only a controller moves
leaders.
"""


class Member:
    """Connections and state of one member. ``on_failure`` is called once, with the reason, when it cannot go on."""

    def __init__(
        self, config: BrokerConfig, time: Time, loop: asyncio.AbstractEventLoop, on_failure: Callable[[str], object]
    ) -> None:
        """Raises ConfigError, OSError."""
        self._config = config
        self._time = time
        self._loop = loop
        self._on_failure = on_failure
        self._settings = member_config(config)
        self._channels = ControllerChannels(self._settings.timeouts, self._settings.controller_security)
        self._failure: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._beat_now = asyncio.Event()
        """Set to end the wait for the next heartbeat, which may be due earlier now."""
        self._observer: Observer | None = None
        self._lifecycle: BrokerLifecycle | None = None
        self._publisher: MetadataPublisher | None = None
        self._replication: Replication | None = None
        self._publishing = asyncio.Lock()
        self._backlog: deque[PublishedImage] = deque()
        """Images that are not published to the parts of the broker yet."""
        self._last_answer_ms = time.monotonic_ms()
        """Time of the last answer to a registration or heartbeat."""

    @property
    def broker_epoch(self) -> int:
        """Epoch of this process's registration."""
        return self._life.broker_epoch

    @property
    def _life(self) -> BrokerLifecycle:
        assert self._lifecycle is not None, "not registered yet"
        return self._lifecycle

    @property
    def _view(self) -> Observer:
        assert self._observer is not None, "not joined yet"
        return self._observer

    # ---- join, serve, leave

    async def build(self) -> Broker:
        """Join the cluster; return the broker, with its logs recovered and its roles taken.

        Raises StartError if the directories are not this node's, or the cluster refuses this node or does not take it
        in time; ConfigError.
        """
        set_creation_mode(self._config.get_str("log.dirs.mode"))
        directories = claim_member_directories(OsFileSystem(), self._config)
        try:
            await self._register(directories)
            return await self._build(directories)
        except KafkaStorageError as error:
            raise StartError(str(error)) from error

    async def _register(self, directories: MemberDirectories) -> None:
        """Follow the metadata until they reach this broker's last position; then register, and wait until the image has
        the registration. Raises StartError, KafkaStorageError.
        """
        settings, node_id = self._settings, self._config.node_id
        cluster_id = directories.claimed.cluster_id
        last = read_position(OsFileSystem(), self._config.log_dirs[0])
        observed = ObserverConfig(settings.controllers, node_id, directories.ids[0], cluster_id, last_position=last)
        self._observer = Observer(observed)
        self._start(self._observe())
        limit_ms = self._time.monotonic_ms() + settings.registration_timeout_ms
        await self._wait_until(
            lambda: self._view.is_caught_up and self._view.is_checked and not last.shortfall(self._view.image),
            limit_ms,
            lambda: self._view.last_failure or last.shortfall(self._view.image),
        )
        check_image(self._view.image, self._config)
        registration = Registration(
            broker_id=node_id,
            cluster_id=cluster_id,
            incarnation_id=random_uuid(SystemRandom()),
            endpoints=settings.endpoints,
            features=offered_levels(),
            rack=settings.rack,
            directories=directories.ids,
            previous_epoch=clean_stop_of(directories, self._view.image.brokers.get(node_id)),
        )
        self._lifecycle = BrokerLifecycle(registration, settings.heartbeat_interval_ms)
        self._lifecycle.take_image(self._view.image)
        self._start(self._send_heartbeats())
        is_taken = partial(self._life.is_at_least, BrokerState.RECOVERY)
        await self._wait_until(is_taken, limit_ms, lambda: self._life.last_failure)
        logger.info("registered as broker %d with epoch %d", node_id, self.broker_epoch)

    async def _build(self, directories: MemberDirectories) -> Broker:
        """Recover the logs, and take the roles of the present image. Raises KafkaStorageError, ConfigError."""
        config, image = self._config, self._view.image
        self._backlog.clear()
        ground = build_foundation(config, self._time, self._loop, directories.claimed)
        found_ids = await self._loop.run_in_executor(None, move_strays, ground.log_manager, config.node_id, image)
        controller = RemoteController(image, config.node_id, self._channels.forwarded_versions)
        self._forwarder = Forwarder(self._view.quorum, self._channels.open(), self._time)
        creation = TopicCreation(config, self._channels.open(), self._view.quorum, self._start)
        producer_ids = ProducerIdBlocks(controller)
        nodes = ClusterNodes(controller, creation.ensure)
        self._peers = MemberPeers(lambda: broker, controller, self._settings.broker_security, self._start)
        cluster_parts = ClusterParts(controller, nodes, producer_ids, partial(MemberTopics, creation), self._peers)
        strays = StrayLogs(ground.log_manager)
        broker = assemble(ground, strays, cluster_parts)
        run_in_executor = partial(run_in_thread, self._loop, ground.executor)
        quotas = replication_quotas(config)
        quotas.measure(broker.metrics, self._time.monotonic_ms)
        lag_ms = self._settings.replica_lag_time_max_ms
        roles = MemberRoles(controller, ground.timers, lag_ms, run_in_executor, quotas.leader)
        broker.replica_manager.roles = roles
        roles.measure(broker.metrics)
        strays.note(await self._loop.run_in_executor(ground.executor, recovery_of(broker, found_ids)))
        fetching = fetcher_config(config, self.broker_epoch)
        replication = self._replication = Replication(broker, controller, fetching, self._settings, quotas.follower)
        replication.measure(broker.metrics)
        empty = await make_own_logs(broker, image, replication)
        self._publisher = MetadataPublisher(broker, controller, roles, replication)
        await self._publish_backlog()
        self._start(roles.check_isr())
        self._start(roles.alter_partitions(self._channels.open(), self._view.quorum, self.broker_epoch))
        self._start(self._forwarder.run())
        dirs = DirectoryReports(ground.log_manager, controller, self._life, self._time.monotonic_ms, self._beat_now.set)
        dirs.begin(empty)
        limit_ms = self._settings.directory_failure_timeout_ms
        self._start(dirs.report(self._channels.open(), self._view.quorum, limit_ms))
        self._start(keep_position(config.log_dirs[0], lambda: self._view.position_of(controller.image)))
        blocks = fetch_blocks(producer_ids, self._channels.open(), self._view.quorum, config.node_id, self.broker_epoch)
        self._start(blocks)
        return broker

    def dispatcher(self, broker: Broker) -> MemberDispatcher:
        """Return the dispatcher of the broker's requests, which forwards some to the active controller."""
        return MemberDispatcher(broker, self._forwarder, self._peers)

    async def serve(self) -> None:
        """Ask to be unfenced, and wait for it. Raises StartError."""
        if self._replication is not None:
            self._start(self._replication.retry_unopened(self._settings.replica_lag_time_max_ms / 2000))
        self._life.become_ready(self._time.monotonic_ms())
        self._beat_now.set()
        limit_ms = self._time.monotonic_ms() + self._settings.registration_timeout_ms
        is_running = partial(self._life.is_at_least, BrokerState.RUNNING)
        await self._wait_until(is_running, limit_ms, lambda: self._life.last_failure)

    def abandon(self) -> None:
        """Stop waiting for the controllers: ``build`` or ``serve`` raises StartError. A broker that is registered asks
        to be shut down, so that it is not unfenced while it stops.
        """
        self._failure = self._failure or "asked to stop before the cluster had taken this broker"
        if self._lifecycle is not None:
            self._lifecycle.begin_shutdown(self._time.monotonic_ms())
            self._beat_now.set()
        self._note_change()

    async def leave(self) -> None:
        """Move leaders to other brokers, then end replication, as the logs are closed next; write the position in the
        metadata.
        """
        await self._hand_over()
        if self._replication is not None:
            await self._replication.close()
            position = self._view.position_of(self._view.image)
            write = partial(write_position, OsFileSystem(), self._config.log_dirs[0], position, sync=True)
            with contextlib.suppress(KafkaStorageError):
                await self._loop.run_in_executor(None, write)

    async def _hand_over(self) -> None:
        """Move leaders to other brokers, as long as a controller answers. Before its registration this broker leads no
        partition.
        """
        if self._lifecycle is None or self._failure is not None:
            return
        self._lifecycle.begin_shutdown(self._time.monotonic_ms())
        self._last_answer_ms = self._time.monotonic_ms()
        self._beat_now.set()
        limit_ms = self._time.monotonic_ms() + 1000 * SHUTDOWN_TIMEOUT_S
        while not self._life.is_at_least(BrokerState.SHUTTING_DOWN) and self._failure is None:
            now_ms = self._time.monotonic_ms()
            if now_ms > min(limit_ms, self._last_answer_ms + 1000 * NO_CONTROLLER_S):
                logger.warning("the active controller did not end the controlled shutdown; stopping without it")
                return
            await wait_for_event(self._changed, NO_CONTROLLER_S / 10)

    async def close(self) -> None:
        """End the tasks; a request that is under way closes its connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- waiting

    async def _wait_until(self, condition: Callable[[], bool], limit_ms: float, reason: Callable[[], str]) -> None:
        """Wait until a condition holds. Raises StartError after ``limit_ms``, or once this member has failed."""
        while self._failure is not None or not condition():
            if self._failure is not None:
                raise StartError(self._failure)
            left_ms = limit_ms - self._time.monotonic_ms()
            if left_ms <= 0:
                raise StartError(
                    "the cluster did not take this broker within initial.broker.registration.timeout.ms="
                    f"{self._settings.registration_timeout_ms}: "
                    f"{reason() or 'this broker still waits for the controllers, which answer without errors'}"
                )
            await wait_for_event(self._changed, left_ms / 1000)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._supervise(work))
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        """Note the end of a task. After an unexpected error this member fails: it must not go on with old metadata."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a task of this member failed", exc_info=error)
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        """Note the first reason why this member cannot go on. Later ones, as it stops, are only logged."""
        if self._failure is None:
            self._failure = reason
            self._note_change()
            self._on_failure(reason)

    async def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (ObserverError, MetadataLostError, LifecycleError, KafkaError) as error:
            logger.error("this broker cannot stay in its cluster: %s", error)
            self._fail(str(error))

    async def _observe(self) -> None:
        """Follow the metadata log."""
        channel, observer = self._channels.for_metadata(), self._view
        while True:
            question = observer.next_question()
            await asyncio.sleep(max(0.0, question.not_before_ms - self._time.monotonic_ms()) / 1000)
            is_fetch = isinstance(question.request, fetch.FetchRequest)
            kind: type[Any] = fetch.FetchResponse if is_fetch else fetch_snapshot.FetchSnapshotResponse
            try:
                answer = await channel.ask(question.address, question.request, kind)
            except ChannelError as error:
                observer.take_failure(str(error), self._time.monotonic_ms())
            else:
                published = observer.take_answer(answer, self._time.monotonic_ms())
                self._channels.follow(observer.quorum)
                if published is not None:
                    await self._take(published)
            self._note_change()

    async def _take(self, published: PublishedImage) -> None:
        self._backlog.append(published)
        if self._publisher is not None:
            await self._publish_backlog()
        elif self._lifecycle is not None:
            self._lifecycle.take_image(published.image)

    async def _publish_backlog(self) -> None:
        """Publish the images that wait, in their order, one at a time."""
        assert self._publisher is not None
        async with self._publishing:
            while self._backlog:
                delta, image = self._backlog.popleft()
                await self._publisher.publish(delta, image)
                self._life.take_image(image)

    async def _send_heartbeats(self) -> None:
        """Register, then send heartbeats."""
        channel, lifecycle = self._channels.for_heartbeats(), self._life
        while lifecycle.state is not BrokerState.SHUTTING_DOWN:
            wait_ms = lifecycle.next_question().not_before_ms - self._time.monotonic_ms()
            if wait_ms > 0:
                self._beat_now.clear()
                await wait_for_event(self._beat_now, wait_ms / 1000)
                continue
            request = lifecycle.next_question().request
            is_registration = isinstance(request, BrokerRegistrationRequest)
            kind: type[Any] = BrokerRegistrationResponse if is_registration else BrokerHeartbeatResponse
            try:
                answer = await channel.ask(self._view.quorum.address, request, kind)
            except ChannelError as error:
                lifecycle.take_failure(str(error), self._time.monotonic_ms())
            else:
                self._last_answer_ms = self._time.monotonic_ms()
                before = lifecycle.is_fenced
                lifecycle.take_answer(answer, self._last_answer_ms)
                if lifecycle.is_fenced and not before and lifecycle.state is BrokerState.RUNNING:
                    logger.warning("the active controller has fenced this broker")
            self._note_change()


async def wait_for_event(event: asyncio.Event, limit_s: float) -> None:
    """Wait until an event is set, for ``limit_s`` at most."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return


def check_image(image: MetadataImage, config: BrokerConfig) -> None:
    """Raise StartError if the cluster's metadata have something that this broker cannot serve."""
    lowest, _ = offered_levels()[METADATA_VERSION]
    level = image.features.get(METADATA_VERSION, lowest)
    if level < lowest:
        reason: str | None = (
            f"{METADATA_VERSION} is at level {level}, and a member needs {lowest} and up: raise it by kafka-features.sh"
        )
    else:
        reason = refusal(image, enforces_acls=bool(config.get_str(AUTHORIZER_CLASS)))
    if reason is not None:
        raise StartError(f"this broker cannot join: {reason}")
