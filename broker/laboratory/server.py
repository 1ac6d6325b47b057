"""The server of a laboratory: a broker that can be restarted on a snapshot of its files, within one process.

    snapshot   the broker stops cleanly -> its directories are copied -> it starts on the same ports
    restore    the broker stops -> files that differ from the snapshot are written to a directory ``.staged`` in each
               data directory -> they replace the live files -> the broker starts on the same ports

If a copy fails, the broker starts again on its unchanged files: whatever may need more disk space is done before any
live file changes. Modules stay imported and files are not synced (``files.py``), so a restart takes milliseconds. Each
start builds a new server and configuration, so nothing of the earlier state stays in memory. While the broker is
stopped, a socket that is bound but does not listen reserves each port for which the configuration has 0. A restart
disconnects all clients. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.cluster_membership import is_member
from tidelog.broker.config.broker_config import BrokerConfig, Endpoint
from tidelog.broker.laboratory.clock import LaboratoryTime
from tidelog.broker.laboratory.faults import Faults, LaboratoryDispatcher
from tidelog.broker.laboratory.files import Disk, LaboratoryFileSystem
from tidelog.broker.laboratory.snapshots import Snapshot, take_snapshot
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.server import LoneRole, Server
from tidelog.broker.startup import build_broker
from tidelog.log.system.time import Time
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import UnknownTopicOrPartitionError

logger = logging.getLogger(__name__)


class LaboratoryRole(LoneRole):
    """The parts of a broker without a cluster, with files that are not synced, and faults that requests meet."""

    def __init__(
        self, config: BrokerConfig, time: Time, loop: asyncio.AbstractEventLoop, *, faults: Faults, disk: Disk
    ) -> None:
        super().__init__(config, time, loop)
        self._faults = faults
        self._files = LaboratoryFileSystem(disk)

    async def build(self) -> Broker:
        """Build the broker. Raises StartError, ConfigError."""
        return await build_broker(*self._parts, self._files)

    def dispatcher(self, broker: Broker) -> Dispatcher:
        """Return a dispatcher that applies the faults before its handlers."""
        return LaboratoryDispatcher(broker, self._faults)


class LaboratoryServer:
    """A broker with its clock, its faults, its disk and its snapshots."""

    def __init__(self, config: BrokerConfig, *, on_failure: Callable[[], object] = lambda: None) -> None:
        """Raises ConfigError if the configuration is that of a member of a cluster."""
        if is_member(config):
            raise ConfigError("--laboratory: a member of a cluster has no laboratory controls")
        self.time = LaboratoryTime()
        self.faults = Faults()
        self.disk = Disk()
        self._on_failure = on_failure
        self._config = config
        self._ports: list[socket.socket] = []
        self._snapshots: list[Snapshot] = []
        self._archives = tempfile.TemporaryDirectory(prefix="tidelog-laboratory-")
        self._controls: list[Callable[[], Coroutine[Any, Any, object]]] = []
        self._serving: list[asyncio.Task[object]] = []
        self._server = self._new_server(config)

    @property
    def broker(self) -> Broker:
        """The running broker."""
        return self._server.broker

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses at which the broker listens."""
        return self._server.endpoints

    @property
    def failure(self) -> str | None:
        """The reason why the broker has failed, or None."""
        return self._server.failure

    def add_control(self, serve: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run ``serve``, which takes commands from a test, from the start of this server until its stop."""
        self._controls.append(serve)

    def abandon_start(self) -> None:
        """Do nothing: a lone node waits for no other."""

    def reload_stores(self) -> None:
        """Read the stores of keys and certificates again."""
        self._server.reload_stores()

    async def start(self) -> None:
        """Start the broker on the files in its directories. Raises what ``Server.start`` raises."""
        listeners = self._config.listeners
        for index, endpoint in enumerate(listeners):
            if not endpoint.port:
                listeners[index] = self._keep_port(endpoint)
        await self._server.start()
        self._serving += [asyncio.create_task(serve()) for serve in self._controls]
        for task in self._serving:
            task.add_done_callback(note_end)

    async def stop(self) -> None:
        """Stop the controls and the broker, and remove the snapshots."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._stop_broker()
        for port in self._ports:
            port.close()
        self._archives.cleanup()

    async def advance(self, milliseconds: int) -> None:
        """Move the clock forward, and fire the timers that are then due. Raises ValueError for a negative span,
        and beyond the year 9999."""
        self.time.advance(milliseconds)
        await self._server.catch_up()

    async def snapshot(self) -> int:
        """Copy the whole state. Returns the snapshot's number, for ``restore``. The broker stops meanwhile, which ends
        faults, a full disk and what ``move_leader`` did. Raises OSError, and what ``Server.start`` raises."""
        await self._stop_broker()
        number = len(self._snapshots)
        try:
            archive = os.path.join(self._archives.name, str(number))
            self._snapshots.append(take_snapshot(self._config.log_dirs, archive, self.time.ahead_ms))
        finally:
            await self._start_again()
        return number

    async def restore(self, number: int) -> None:
        """Return to the state of a snapshot, without faults. Raises ValueError for an unknown number, OSError, and what
        ``Server.start`` raises."""
        if not 0 <= number < len(self._snapshots):
            raise ValueError(f"snapshot {number} is not known")
        snapshot = self._snapshots[number]
        await self._stop_broker()
        try:
            snapshot.stage(self._config.log_dirs)
        except OSError:
            await self._start_again()
            raise
        snapshot.install(self._config.log_dirs)
        self.time.ahead_ms = snapshot.ahead_ms
        self.faults.requests.clear()
        await self._start_again()

    def move_leader(self, topic: str, number: int, *, is_away: bool) -> None:
        """Leave a partition without a leader, or make this broker its leader again. The leader epoch grows by one. Only
        the metadata in memory changes.

        Raises UnknownTopicOrPartitionError.
        """
        broker = self.broker
        image = broker.metadata.topics.get(topic)
        if image is None or not 0 <= number < len(image.partitions):
            raise UnknownTopicOrPartitionError(f"{topic}-{number} is not known")
        states = list(image.partitions)
        state = states[number]
        leader = NO_LEADER if is_away else broker.node_id
        states[number] = state._replace(leader=leader, leader_epoch=state.leader_epoch + 1)
        moved = image._replace(partitions=tuple(states))
        broker.metadata.put(moved)
        broker.replica_manager.take_roles(moved, [number])
        coordinators = broker.services.coordinators.made
        if moved.is_internal and coordinators is not None:
            coordinators.take_roles(topic)

    async def _stop_broker(self) -> None:
        self.faults.clear()
        self.disk.is_full = False
        locks = self._server.broker.locks if self._server.is_running else []
        await self._server.stop()
        for lock in locks:
            lock.close()

    async def _start_again(self) -> None:
        config = BrokerConfig(self._config.static_texts, self._config.resolved)
        config.listeners[:] = self._config.listeners
        self._server = self._new_server(config)
        await self._server.start()

    def _new_server(self, config: BrokerConfig) -> Server:
        return Server(
            config,
            time=self.time,
            on_failure=self._on_failure,
            lone_role=partial(LaboratoryRole, faults=self.faults, disk=self.disk),
        )

    def _keep_port(self, endpoint: Endpoint) -> Endpoint:
        """Choose a free port for an endpoint, and reserve it while the broker is stopped. Raises OSError."""
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        reserved = socket.socket(family)
        self._ports.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((endpoint.host or "0.0.0.0", 0))
        return endpoint._replace(port=reserved.getsockname()[1])


def note_end(control: asyncio.Task[object]) -> None:
    """Log a defect that has ended a control: its commands are not answered any more."""
    if not control.cancelled() and (error := control.exception()) is not None:
        logger.error("a defect ended a control of the laboratory", exc_info=error)
