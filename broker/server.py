"""One broker as a whole: it builds the parts, listens, and stops without losing acknowledged records.

    start   parts are built (cleanly closed logs are not opened) -> listeners open -> background jobs begin
    stop    listeners close -> parked requests are answered with their results so far -> each connection answers its
            requests in flight and closes -> audit lines that are left are written -> logs are flushed, checkpoints and
            the clean-shutdown marker written -> the metadata log closes

Stopping is bounded: a client that does not read its answers within DRAIN_MS is disconnected, so that the stop fits into
the ten seconds that an orchestrator gives. A member first moves its leaders to other brokers (``Role.leave``), while
clients are still served; that may take minutes (``broker/member/member.py``). A data directory gets the clean-shutdown
marker only if all its logs are flushed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidelog.broker.admin.listener import check_addresses
from tidelog.broker.broker import Broker
from tidelog.broker.cluster_membership import is_member
from tidelog.broker.config.broker_config import BrokerConfig, Endpoint
from tidelog.broker.entrance import Entrance, check_security
from tidelog.broker.loop.background_jobs import BackgroundJobs
from tidelog.broker.loop.garbage import GarbageCollector
from tidelog.broker.loop.lazy import Begin, LateService
from tidelog.broker.maintenance import maintenance_jobs
from tidelog.broker.network.acceptor import (
    Acceptor,
    ConnectionRate,
    DescriptorReserve,
    first_reserved_descriptor,
    raise_descriptor_limit,
)
from tidelog.broker.network.connection import Connection
from tidelog.broker.network.listening import check_ports, open_listener
from tidelog.broker.network.shell import STALL_MS, Limits, Shell
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.server_metrics import register_metrics
from tidelog.broker.startup import build_broker
from tidelog.log.system.time import SystemTime, Time

logger = logging.getLogger(__name__)

DRAIN_MS = 3_000
"""How long clients may take to receive the answers in flight when the broker stops."""
LATE_LINES_MS = 2_000
"""How long changes may take, once all connections are closed, to become durable and get their audit lines."""
_NEVER_MS = 2**31
"""Longest idle time of a connection if ``connections.max.idle.ms`` is negative."""
START_DELAY_S = 1.0
"""Delay from the opening of the listeners to the start of services that can wait, such as the cleaner."""


class Role(Protocol):
    """Role of a node, alone or as a member of a cluster: builds the broker, and waits until it may serve and stop."""

    @property
    def broker_epoch(self) -> int:
        """Epoch of the broker's registration, for the clean-shutdown marker."""
        ...

    async def build(self) -> Broker:
        """Build the parts. Raises StartError, ConfigError."""
        ...

    def dispatcher(self, broker: Broker) -> Dispatcher: ...

    async def serve(self) -> None:
        """Show this broker to clients, now that the listeners are open. Raises StartError."""
        ...

    def abandon(self) -> None:
        """Stop waiting for other nodes at the start: ``build`` or ``serve`` then raises StartError."""
        ...

    async def leave(self) -> None:
        """Prepare to stop, while clients are still served."""
        ...

    async def close(self) -> None: ...


class LoneRole:
    """A node that is its own cluster."""

    def __init__(self, config: BrokerConfig, time: Time, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = (config, time, loop)
        self._broker: Broker | None = None

    @property
    def broker_epoch(self) -> int:
        """Epoch under which Apache Kafka has registered this node in its metadata, 0 if it has not. If Kafka runs on
        this directory again, it regards the replicas as unclean if the marker has another epoch.
        """
        broker = self._broker
        registration = None if broker is None else broker.controller.image.brokers.get(broker.node_id)
        return 0 if registration is None else registration.broker_epoch

    async def build(self) -> Broker:
        """Build the parts. Raises StartError, ConfigError."""
        self._broker = await build_broker(*self._parts)
        return self._broker

    def dispatcher(self, broker: Broker) -> Dispatcher:
        """Return the dispatcher that answers every request itself."""
        return Dispatcher(broker)

    async def serve(self) -> None:
        """Do nothing: clients are served as soon as the listeners are open."""

    def abandon(self) -> None:
        """Do nothing: a lone node waits for no other."""

    async def leave(self) -> None:
        """Do nothing: there is no other broker."""

    async def close(self) -> None:
        """Close nothing."""


class Server:
    """One broker in this process and loop. ``endpoints`` are the addresses bound, with the ports that were chosen."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        time: Time | None = None,
        on_failure: Callable[[], object] = lambda: None,
        lone_role: Callable[[BrokerConfig, Time, asyncio.AbstractEventLoop], Role] | None = None,
    ) -> None:
        """``on_failure`` is called when the broker cannot go on and has to be stopped; ``failure`` says why.
        ``lone_role`` builds a role in place of LoneRole, for ``tidelog.broker.laboratory``."""
        self.config = config
        self._lone_role = lone_role or LoneRole
        self.failure: str | None = None
        self._on_failure = on_failure
        self._role: Role | None = None
        self._has_started = False
        self.endpoints: list[Endpoint] = []
        self.time = time or SystemTime()
        self._broker: Broker | None = None
        self._shell: Shell | None = None
        self._acceptors: list[Acceptor] = []
        self._jobs: BackgroundJobs | None = None
        self._entrance: Entrance | None = None
        self._descriptor_limit = 0

    @property
    def is_running(self) -> bool:
        """True between start and stop."""
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        """Parts of the broker; the server must be started."""
        assert self._broker is not None, "the server was not started"
        return self._broker

    async def start(self) -> list[Endpoint]:
        """Build the parts and open the listeners; return the bound addresses.

        Raises StartError, for example if the data directory is in use or another cluster's, and OSError, for example if
        a port is taken. Raises ConfigError before anything is written, unless the admin API has stored the value.
        """
        self._descriptor_limit = raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        if not all(map(os.path.isdir, self.config.log_dirs)):
            check_ports(self.config)  # a taken port leaves no new directory behind
            check_addresses(self.config)
        check_security(self.config)  # nor does a keystore that cannot be used
        role = self._role = self._choose_role(loop)
        broker = self._broker = await role.build()
        dispatcher = role.dispatcher(broker)
        limits = connection_limits(self.config)
        self._shell = Shell(
            loop, dispatcher, broker.timers, broker.executor, limits, broker.metrics, on_closed=self._on_closed
        )
        self._entrance = Entrance(broker, self._shell, self._resume_accepting)
        self._begin_services(broker, Begin.BEFORE_CLIENTS)
        self._open_listeners(loop)
        loop.call_soon(self._begin_services, broker, Begin.NEXT_TURN)
        loop.call_later(START_DELAY_S, self._begin_services, broker, Begin.LATER)
        register_metrics(broker, self._shell, dispatcher)
        self._jobs = BackgroundJobs(loop, broker.executor, broker.timers)
        is_busy = lambda: dispatcher.runner.is_busy() or broker.record_executor.is_busy()  # noqa: E731
        self._jobs.start([*maintenance_jobs(broker), GarbageCollector(is_busy).job()])
        await role.serve()
        self._has_started = True
        return self.endpoints

    def _choose_role(self, loop: asyncio.AbstractEventLoop) -> Role:
        """Return the role of this node. Raises ConfigError."""
        if not is_member(self.config):
            return self._lone_role(self.config, self.time, loop)
        from tidelog.broker.member.member import Member  # imported only where it is needed

        return Member(self.config, self.time, loop, self._fail)

    def abandon_start(self) -> None:
        """End the start of a member while it waits for the controllers; do nothing after the start."""
        if self._role is not None and not self._has_started:
            self._role.abandon()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._on_failure()

    def _begin_services(self, broker: Broker, when: Begin) -> None:
        """Begin the late services that are due at this time, unless the broker was stopped meanwhile."""
        if self._broker is broker:
            for service in broker.services.table():
                if service.begins is when and service.is_wanted():
                    broker.imports.call_when_loaded(service.module, partial(self._begin_service, broker, service))

    def _begin_service(self, broker: Broker, service: LateService) -> None:
        """Begin a late service whose module is imported."""
        if self._broker is broker:
            service.begin_if_wanted()

    async def stop(self) -> None:
        """Stop as described at the top of this module; do nothing if the server is not started. After a start that was
        not completed, leaders are not moved first: there are none.
        """
        self.abandon_start()
        role = self._role
        if self._broker is not None and role is not None:
            await role.leave()
        for acceptor in self._acceptors:
            acceptor.close()
        broker, shell = self._broker, self._shell
        if broker is None:
            return
        if self._entrance is not None:
            self._entrance.close()
        if shell is not None:
            await self._drain(broker, shell)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(broker.late_lines.wait_until_written(), LATE_LINES_MS / 1000)
        if self._jobs is not None:
            await self._jobs.stop()
        for service in broker.services.table():
            await service.stop()
        epoch = 0 if role is None else role.broker_epoch
        await asyncio.get_running_loop().run_in_executor(broker.executor, broker.log_manager.shutdown, epoch)
        if role is not None:
            await role.close()
        broker.late_lines.finish()
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
        entrance = self._entrance
        assert entrance is not None
        reserve = DescriptorReserve(
            first_reserved_descriptor(self._descriptor_limit),
            entrance.count,
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
                on_accept=partial(entrance.admit, bound),
                has_room=entrance.has_room,
                make_room=entrance.make_room,
                reserve=reserve,
                rate=rate,
            )
            self._acceptors.append(acceptor)
        for acceptor in self._acceptors:
            acceptor.resume()

    async def catch_up(self) -> None:
        """Fire the timers that are due by a clock that was moved ahead, and wait for the jobs among them."""
        self.broker.timers.catch_up()
        if self._jobs is not None:
            await self._jobs.settle()

    def reload_stores(self) -> None:
        """Read the stores of keys and certificates again, for the next handshakes."""
        if self._entrance is not None:
            self._entrance.reload_stores()

    def _on_closed(self, connection: Connection) -> None:
        assert self._entrance is not None
        self._entrance.connection_closed(connection)

    def _resume_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.resume()


def connection_limits(config: BrokerConfig) -> Limits:
    """Return the limits of connections."""
    idle_ms = config.get_int("connections.max.idle.ms")
    return Limits(
        max_frame_bytes=config.get_int("socket.request.max.bytes"),
        max_idle_ms=idle_ms if idle_ms >= 0 else _NEVER_MS,
        stall_ms=min(idle_ms, STALL_MS) if idle_ms > 0 else STALL_MS,
        awake_ms=config.get_int("socket.busy.poll.us") / 1000,
        queued_bytes=queued_request_bytes(config),
    )


def queued_request_bytes(config: BrokerConfig) -> int:
    """Return ``queued.max.request.bytes``, but at least ``socket.request.max.bytes``; 0: no limit."""
    queued = config.get_int("queued.max.request.bytes")
    return max(queued, config.get_int("socket.request.max.bytes")) if queued > 0 else 0
