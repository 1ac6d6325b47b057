"""A broker as a whole: builds the parts, listens, and stops without losing what it acknowledged.

    start   parts are built (logs that were closed well are only looked at) -> listeners open -> background jobs begin
    stop    listeners close -> parked requests are answered with what there is -> each connection answers what it has in
            flight and closes -> logs are flushed, checkpoints and the clean-shutdown marker written -> the metadata
            log closes

Stopping is bounded: a client that does not take its answer within DRAIN_MS is cut off, so that the whole fits in
the ten seconds an orchestrator gives (F23). The clean marker is written only when all is flushed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.config.broker_config import BrokerConfig, Endpoint
from tidelog.broker.loop.background_jobs import BackgroundJobs
from tidelog.broker.loop.garbage import GarbageCollector
from tidelog.broker.loop.lazy import Begin, LateService
from tidelog.broker.maintenance import maintenance_jobs
from tidelog.broker.network.acceptor import (
    Acceptor,
    ConnectionRate,
    DescriptorReserve,
    highest_client_descriptor,
    raise_descriptor_limit,
)
from tidelog.broker.network.connection import Connection
from tidelog.broker.network.listening import open_listener, set_buffers
from tidelog.broker.network.shell import STALL_MS, Limits, Shell
from tidelog.broker.network.transport import PlainSocket
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.server_metrics import register_metrics
from tidelog.broker.startup import build_broker
from tidelog.log.system.time import SystemTime, Time

logger = logging.getLogger(__name__)

DRAIN_MS = 3_000
"""How long clients may take to receive the answers in flight when the broker stops."""
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
        dispatcher = Dispatcher(broker)
        limits = connection_limits(self.config)
        self._shell = Shell(
            loop, dispatcher, broker.timers, broker.executor, limits, broker.metrics, on_closed=self._on_closed
        )
        self._begin_services(broker, Begin.BEFORE_CLIENTS)
        self._open_listeners(loop)
        loop.call_soon(self._begin_services, broker, Begin.NEXT_TURN)
        loop.call_later(START_DELAY_S, self._begin_services, broker, Begin.LATER)
        register_metrics(broker, self._shell, dispatcher)
        self._jobs = BackgroundJobs(loop, broker.executor, broker.timers)
        self._jobs.start([*maintenance_jobs(broker), GarbageCollector(dispatcher.runner.is_busy).job()])
        return self.endpoints

    def _begin_services(self, broker: Broker, when: Begin) -> None:
        """Begin the late services whose time it is, unless the broker was stopped meanwhile."""
        if self._broker is broker:
            for service in broker.services.table():
                if service.begins is when and service.is_wanted():
                    broker.imports.then(service.module, partial(self._begin_service, broker, service))

    def _begin_service(self, broker: Broker, service: LateService) -> None:
        """Begin a late service whose module is imported."""
        if self._broker is broker:
            service.begin_if_wanted()

    async def stop(self) -> None:
        """Stop as described at the top of this module. Harmless when not started."""
        for acceptor in self._acceptors:
            acceptor.close()
        broker, shell = self._broker, self._shell
        if broker is None:
            return
        if shell is not None:
            await self._drain(broker, shell)
        if self._jobs is not None:
            await self._jobs.stop()
        for service in broker.services.table():
            await service.stop()
        await asyncio.get_running_loop().run_in_executor(broker.executor, broker.log_manager.shutdown)
        broker.timers.close()
        broker.controller.close()
        broker.executor.shutdown(wait=False)
        broker.record_executor.shutdown(wait=False, cancel_futures=True)
        self._broker = None

    async def _drain(self, broker: Broker, shell: Shell) -> None:
        broker.purgatory.expire_all()
        for service in broker.services.table():
            service.close()
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
        quotas = self.broker.services.quotas.made
        if quotas is not None and (hold_ms := quotas.record_connection(host)):
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
        Connection(self._shell, PlainSocket(client), context)

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


def connection_limits(config: BrokerConfig) -> Limits:
    """Return the limits of each connection."""
    idle_ms = config.get_int("connections.max.idle.ms")
    return Limits(
        max_frame_bytes=config.get_int("socket.request.max.bytes"),
        max_idle_ms=idle_ms if idle_ms >= 0 else _NEVER_MS,
        stall_ms=min(idle_ms, STALL_MS) if idle_ms > 0 else STALL_MS,
        awake_ms=config.get_int("socket.busy.poll.us") / 1000,
        queued_bytes=queued_request_bytes(config),
    )


def queued_request_bytes(config: BrokerConfig) -> int:
    """``queued.max.request.bytes``, with room for one request of the largest size; 0: no limit."""
    queued = config.get_int("queued.max.request.bytes")
    return max(queued, config.get_int("socket.request.max.bytes")) if queued > 0 else 0
