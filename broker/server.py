"""A broker as a whole: builds the parts, listens, and stops without losing what it acknowledged.

    start   parts are built (logs that were closed well are only looked at) -> listeners open -> background jobs begin
    stop    listeners close -> parked requests are answered with what there is -> each connection answers what it has in
            flight and closes -> logs are flushed, checkpoints and the clean-shutdown marker written -> store closes

Stopping is bounded: a client that does not take its answer within DRAIN_MS is cut off, so that the whole fits in
the ten seconds an orchestrator gives (F23). The clean marker is written only when all is flushed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable
from functools import partial

from tidelog.broker.admin.listener import AdminListener
from tidelog.broker.broker import Broker
from tidelog.broker.config.broker_config import BrokerConfig, Endpoint
from tidelog.broker.controller.client_quotas import QUOTAS_PREFIX
from tidelog.broker.loop.background_jobs import BackgroundJobs, Job
from tidelog.broker.loop.garbage import GarbageCollector
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage
from tidelog.broker.metrics.log_metrics import register_log_metrics
from tidelog.broker.metrics.registry import Sample
from tidelog.broker.network.acceptor import (
    Acceptor,
    ConnectionRate,
    DescriptorReserve,
    highest_client_descriptor,
    raise_descriptor_limit,
)
from tidelog.broker.network.connection import Connection
from tidelog.broker.network.shell import STALL_MS, Limits, Shell
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.startup import build_broker
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.time import SystemTime, Time

logger = logging.getLogger(__name__)

DRAIN_MS = 3_000
"""How long clients may take to receive the answers in flight when the broker stops."""
FLUSH_MS = 1_000
"""Rolled segments are synced this soon, whatever the scheduler's interval: recovery begins after them."""
DELETIONS_MS = 1_000
"""Files go at most this much later than ``file.delete.delay.ms`` says. With the rounds of retention, five minutes
apart, they kept their room on the disk and a descriptor each."""
ROOM_MS = 1_000
"""How soon a disk that is full, or has room again, is noticed."""
_NEVER_MS = 2**31
START_DELAY_S = 1.0
"""Between the opening of the listeners and the cleaner's first look."""


class Server:
    """One broker in this process and loop. ``endpoints`` are the addresses bound, with the ports that were chosen."""

    def __init__(self, config: BrokerConfig, *, time: Time | None = None) -> None:
        self.config = config
        self.endpoints: list[Endpoint] = []
        self.time = time or SystemTime()
        self._broker: Broker | None = None
        self._shell: Shell | None = None
        self._acceptors: list[Acceptor] = []
        self._jobs: BackgroundJobs | None = None
        self._admin: AdminListener | None = None
        self._per_ip: Counter[str] = Counter()
        self._descriptor_limit = 0

    @property
    def is_running(self) -> bool:
        """Between start and stop."""
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        """The parts; there once started."""
        assert self._broker is not None, "the server was not started"
        return self._broker

    async def start(self) -> list[Endpoint]:
        """Build the parts, open the listeners. Returns the addresses bound.

        Raises StartError when the data directory is in use or another cluster's, OSError when a port is taken.
        """
        self._descriptor_limit = raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        broker = self._broker = await build_broker(self.config, self.time, loop)
        if broker.store.list(QUOTAS_PREFIX):
            from tidelog.broker.quota.quotas import load_quotas  # only where a client has a quota

            load_quotas(broker)
        idle_ms = self.config.get_int("connections.max.idle.ms")
        limits = Limits(
            max_frame_bytes=self.config.get_int("socket.request.max.bytes"),
            max_idle_ms=idle_ms if idle_ms >= 0 else _NEVER_MS,
            stall_ms=min(idle_ms, STALL_MS) if idle_ms > 0 else STALL_MS,
            awake_ms=self.config.get_int("socket.busy.poll.us") / 1000,
            queued_bytes=queued_request_bytes(self.config),
        )
        dispatcher = Dispatcher(broker)
        self._shell = Shell(loop, dispatcher, broker.timers, broker.executor, limits, broker.metrics)
        self._shell.on_closed = self._on_closed
        self._open_listeners(loop)
        self._admin = AdminListener(broker)
        self._admin.open()
        loop.call_later(START_DELAY_S, start_cleaner, self)
        broker.replica_manager.on_log_deleted = partial(forget_cleaned, broker)
        broker.replica_manager.on_index_configs = partial(index_topic, broker)
        broker.replica_manager.virtual_partition = partial(virtual_partition, broker)
        if any(map(wants_index, broker.metadata.topics.values())):
            loop.call_later(START_DELAY_S, start_indexing, self)
        register_metrics(broker, self._shell, dispatcher)
        self._jobs = BackgroundJobs(loop, broker.executor, broker.timers)
        self._jobs.start([*self._background_jobs(broker), GarbageCollector(dispatcher.runner.is_busy).job()])
        if not INTERNAL_TOPICS.isdisjoint(broker.metadata.topics):
            # Sessions and open transactions have clocks that run though no client asks: load them now.
            loop.call_soon(start_coordinators, broker)
        return self.endpoints

    async def stop(self) -> None:
        """Stop as described at the top of this module. Harmless when not started."""
        for acceptor in self._acceptors:
            acceptor.close()
        broker, shell = self._broker, self._shell
        if broker is None:
            return
        if shell is not None:
            await self._drain(broker, shell)
        if self._admin is not None:
            await self._admin.close()
        if self._jobs is not None:
            await self._jobs.stop()
        if broker.indexing is not None:
            await asyncio.get_running_loop().run_in_executor(broker.executor, broker.indexing.stop)
        if broker.cleaner is not None:
            await asyncio.get_running_loop().run_in_executor(broker.executor, broker.cleaner.shutdown)
        await asyncio.get_running_loop().run_in_executor(broker.executor, broker.log_manager.shutdown)
        broker.timers.close()
        broker.store.close()
        broker.executor.shutdown(wait=False)
        broker.record_executor.shutdown(wait=False, cancel_futures=True)
        self._broker = None

    async def _drain(self, broker: Broker, shell: Shell) -> None:
        broker.purgatory.expire_all()
        if broker.coordinators is not None:
            broker.coordinators.close()
        for connection in list(shell.connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(shell.wait_until_empty(), DRAIN_MS / 1000)
        for connection in list(shell.connections):
            connection.close()

    def _open_listeners(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._shell is not None
        shell = self._shell
        reserve = DescriptorReserve(
            highest_client_descriptor(self._descriptor_limit),
            lambda: len(shell.connections),
            self.broker.timers.monotonic_ms,
        )
        rate = ConnectionRate(
            lambda: self.config.get_int("max.connection.creation.rate"), self.broker.timers.monotonic_ms
        )
        for endpoint in self.config.listeners:
            listener = open_listener(endpoint, self.config)
            bound = endpoint._replace(port=listener.getsockname()[1])
            self.endpoints.append(bound)
            acceptor = Acceptor(
                loop,
                self.broker.timers,
                listener,
                on_accept=partial(self._on_accept, bound),
                has_room=self._has_room,
                make_room=self._shell.make_room,
                reserve=reserve,
                rate=rate,
            )
            self._acceptors.append(acceptor)
        for acceptor in self._acceptors:
            acceptor.resume()

    def _has_room(self) -> bool:
        assert self._shell is not None
        return len(self._shell.connections) < self.config.get_int("max.connections")

    def _on_accept(self, endpoint: Endpoint, client: socket.socket, host: str) -> None:
        """Take over a new connection, unless its address has too many already, or opens too many."""
        assert self._shell is not None
        if self._per_ip[host] >= self._limit_for(host):
            logger.info("refusing a connection of %s: it has %d", host, self._per_ip[host])
            client.close()
            return
        if self.broker.quotas is not None and (hold_ms := self.broker.quotas.record_connection(host)):
            logger.info("holding a connection of %s for %d ms: it opens too many", host, hold_ms)
            self.broker.timers.schedule(hold_ms, client.close)  # closed at once, it would come again at once
            return
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local = client.getsockname()
        except OSError:
            client.close()
            return
        set_buffers(client, self.config)
        self._per_ip[host] += 1
        context = RequestContext(
            client_host=host, local_host=local[0], local_port=local[1], listener_name=endpoint.listener_name
        )
        Connection(self._shell, client, context)

    def _on_closed(self, connection: Connection) -> None:
        host = connection.context.client_host
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        for acceptor in self._acceptors:
            acceptor.resume()

    def _limit_for(self, host: str) -> int:
        overrides = self.config.get_str("max.connections.per.ip.overrides")
        for entry in filter(None, overrides.split(",")):
            address, _, count = entry.strip().rpartition(":")
            if address == host:
                return int(count)
        return self.config.get_int("max.connections.per.ip")

    def _background_jobs(self, broker: Broker) -> list[Job]:
        config, logs = self.config, broker.log_manager
        return [
            Job(
                "retention",
                config.get_int("log.retention.check.interval.ms"),
                lambda: logs.run_retention(self.time.milliseconds()),
            ),
            Job("room", ROOM_MS, logs.room.run),
            Job("deletions", DELETIONS_MS, logs.environment.deletions.run),
            Job("flush", min(config.get_int("log.flush.scheduler.interval.ms"), FLUSH_MS), logs.flush_dirty_logs),
            Job(
                "recovery-point-checkpoint",
                config.get_int("log.flush.offset.checkpoint.interval.ms"),
                logs.checkpoint_recovery_points,
            ),
            Job(
                "log-start-offset-checkpoint",
                config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
                logs.checkpoint_log_start_offsets,
            ),
            Job(
                "high-watermark-checkpoint",
                config.get_int("replica.high.watermark.checkpoint.interval.ms"),
                logs.checkpoint_high_watermarks,
            ),
        ]


def start_cleaner(server: Server) -> None:
    """Imported and started only now: compaction can wait until the broker answers."""
    if server.is_running and server.config.get_bool("log.cleaner.enable"):
        from tidelog.broker.cleaning import cleaner_of

        cleaner_of(server.broker)


def wants_index(image: TopicImage) -> bool:
    """Whether a topic may have an index: the keys that ask for one are a topic's own, they have no server default."""
    return "index.keys" in image.configs or "index.tag.header" in image.configs


def index_topic(broker: Broker, image: TopicImage) -> None:
    """A topic came or changed; without any index so far there is nothing to do, nor to import."""
    if broker.indexing is not None:
        broker.indexing.topic_changed(image)
    elif wants_index(image):
        from tidelog.broker.find.indexing import indexing_of

        indexing_of(broker)


def virtual_partition(broker: Broker, image: TopicImage, index: int) -> Partition:
    """A partition of a virtual topic; imported with the first one."""
    if broker.virtual_partitions is None:
        from tidelog.broker.find.virtual_topics import VirtualPartitions

        broker.virtual_partitions = VirtualPartitions(broker)
    partition: Partition = broker.virtual_partitions.partition(image, index)
    return partition


def start_indexing(server: Server) -> None:
    """Imported and started only where a topic has an index, once the broker answers."""
    if server.is_running:
        from tidelog.broker.find.indexing import indexing_of

        indexing_of(server.broker)


def register_metrics(broker: Broker, shell: Shell, dispatcher: Dispatcher) -> None:
    """The gauges of what the server's own parts hold; names after Kafka's MBeans."""
    metrics = broker.metrics
    metrics.source(partial(count_requests, dispatcher))
    metrics.source(partial(count_throttled, broker))
    metrics.source(broker.timers.turns.samples)
    metrics.gauge("kafka_server_socket_connection_count", lambda: len(shell.connections))
    metrics.gauge("kafka_network_socketserver_memorypoolused", lambda: shell.memory.held_bytes)
    metrics.gauge("kafka_server_delayedoperationpurgatory_purgatorysize", lambda: len(broker.purgatory))
    metrics.gauge("kafka_server_delayedoperationpurgatory_expired", lambda: broker.purgatory.expired_total)
    metrics.gauge("kafka_server_fetchsessioncache_sessions", lambda: len(broker.fetch_sessions.sessions))
    metrics.gauge("kafka_server_fetchsessioncache_partitions", broker.fetch_sessions.partition_count)
    metrics.gauge("kafka_server_fetchsessioncache_evictions", lambda: broker.fetch_sessions.evictions_total)
    metrics.gauge("kafka_server_replicamanager_partitioncount", lambda: len(broker.log_manager.partitions()))
    metrics.gauge("kafka_controller_globaltopiccount", lambda: len(broker.metadata.topics))
    register_log_metrics(metrics, broker.log_manager)


def count_requests(dispatcher: Dispatcher) -> Iterable[Sample]:
    """Requests by API; the module comes with the admin interface, which is who asks."""
    from tidelog.broker.admin.prometheus import request_samples

    return request_samples(dispatcher.routes())


def count_throttled(broker: Broker) -> Iterable[Sample]:
    """Requests made to wait; without client quotas there are none, nor anything to import."""
    if broker.quotas is None:
        return ()
    from tidelog.broker.quota.quotas import throttled_samples

    return throttled_samples(broker.quotas)


def forget_cleaned(broker: Broker, partition: TopicPartition) -> None:
    """A deleted partition's cleaner checkpoint goes too; without one there is nothing to do, nor to import."""
    directories = broker.config.log_dirs
    if broker.cleaner is None and not any(os.path.exists(os.path.join(d, CLEANER_OFFSET_FILE)) for d in directories):
        return
    from tidelog.broker.cleaning import forget_deleted

    forget_deleted(broker, partition)


def start_coordinators(broker: Broker) -> None:
    """Load what the internal topics hold; imported only where they exist."""
    from tidelog.broker.coordinator.coordinators import coordinators_of

    coordinators_of(broker).start()


def open_listener(endpoint: Endpoint, config: BrokerConfig) -> socket.socket:
    """A listening, non-blocking socket for an endpoint. Raises OSError."""
    any_host = not endpoint.host
    host = endpoint.host or ("::" if socket.has_ipv6 else "0.0.0.0")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OSError(f"cannot listen on {endpoint}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if any_host else 1)
        set_buffers(listener, config)
        listener.bind(address)
        listener.listen(backlog_size(config))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {endpoint}: {error.strerror}") from error
    return listener


def queued_request_bytes(config: BrokerConfig) -> int:
    """``queued.max.request.bytes``, with room for one request of the largest size; 0: no limit."""
    queued = config.get_int("queued.max.request.bytes")
    return max(queued, config.get_int("socket.request.max.bytes")) if queued > 0 else 0


def backlog_size(config: BrokerConfig) -> int:
    """As configured; else the system's most: in Kafka's 50 a burst of clients overflows, and each waits a second."""
    key = "socket.listen.backlog.size"
    return config.get_int(key) if key in config.static_texts else socket.SOMAXCONN


def set_buffers(sock: socket.socket, config: BrokerConfig) -> None:
    """Socket buffer sizes where someone set them: the system's own grow with the connection, Kafka's 100 KiB do not."""
    for key, option in (
        ("socket.send.buffer.bytes", socket.SO_SNDBUF),
        ("socket.receive.buffer.bytes", socket.SO_RCVBUF),
    ):
        if key in config.static_texts and config.get_int(key) > 0:
            sock.setsockopt(socket.SOL_SOCKET, option, config.get_int(key))
