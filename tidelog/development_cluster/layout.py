"""Directories, ports and configuration files of a development cluster: a controller of Kafka and Tidelog's members.

DIR/cluster.id               the cluster's id, created at the first start
DIR/controller/              controller.properties, data, controller.log
DIR/node-1/, node-2/ ...     server.properties, data, node.log
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tidelog.protocol.types import SystemRandom, random_uuid, uuid_to_str

CONTROLLER_ID = 1000
HOST = "127.0.0.1"
ONE_HOST = "this-host"
"""The rack of all members, which are on the same machine."""
PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


class Layout(NamedTuple):
    """Directory and ports of a cluster. ``overrides`` are configuration keys of its members."""

    directory: Path
    controller_port: int
    ports: tuple[int, ...]
    overrides: Mapping[str, str]

    @property
    def controller(self) -> Path:
        """The controller's directory."""
        return self.directory / "controller"

    def node(self, node_id: int) -> Path:
        """Return a member's directory."""
        return self.directory / f"node-{node_id}"

    @property
    def node_ids(self) -> range:
        """The members' ids, from 1 on."""
        return range(1, len(self.ports) + 1)

    def address(self, node_id: int) -> str:
        """Return a member's HOST:PORT."""
        return f"{HOST}:{self.ports[node_id - 1]}"

    @property
    def bootstrap(self) -> str:
        """The addresses of all members."""
        return ",".join(map(self.address, self.node_ids))


def choose_ports(first: int, nodes: int) -> tuple[int, tuple[int, ...]]:
    """Return the port of the controller and those of the members.

    The members have ``first`` and the ports after it, then comes the controller. With ``first`` 0 all are free ports.
    """
    if first:
        return first + nodes, tuple(range(first, first + nodes))
    sockets = [socket.create_server((HOST, 0)) for _ in range(nodes + 1)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports[0], tuple(ports[1:])


def taken_port(layout: Layout) -> int | None:
    """Return the first of the cluster's ports that is in use already, None if all are free."""
    for port in (*layout.ports, layout.controller_port):
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            return port
    return None


def cluster_id_of(directory: Path) -> str:
    """Return the cluster's id; the first call creates it and stores it in ``cluster.id``."""
    path = directory / "cluster.id"
    directory.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        temporary = path.with_name(f"cluster.id.{os.getpid()}")
        temporary.write_text(uuid_to_str(random_uuid(SystemRandom())) + "\n")
        temporary.rename(path)
    return path.read_text().strip()


def replication(nodes: int) -> dict[str, str]:
    """Return the keys that give topics and internal topics three replicas, of which two must be in sync, or fewer
    with fewer nodes."""
    factor, min_in_sync = str(min(3, nodes)), str(min(2, nodes))
    return {
        "default.replication.factor": factor,
        "min.insync.replicas": min_in_sync,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": min_in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": min_in_sync,
    }


def controller_properties(layout: Layout) -> dict[str, str]:
    """Return the controller's configuration."""
    address = f"{HOST}:{layout.controller_port}"
    return {
        "process.roles": "controller",
        "node.id": str(CONTROLLER_ID),
        "controller.quorum.voters": f"{CONTROLLER_ID}@{address}",
        "listeners": f"CONTROLLER://{address}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PROTOCOLS,
        "log.dirs": str(layout.controller / "data"),
        **replication(len(layout.ports)),
    }


def member_properties(layout: Layout, node_id: int) -> dict[str, str]:
    """Return a member's configuration."""
    return {
        "process.roles": "broker",
        "node.id": str(node_id),
        "controller.quorum.bootstrap.servers": f"{HOST}:{layout.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PROTOCOLS,
        "listeners": f"PLAINTEXT://{layout.address(node_id)}",
        "log.dirs": str(layout.node(node_id) / "data"),
        "broker.rack": ONE_HOST,
        "group.initial.rebalance.delay.ms": "0",
        **replication(len(layout.ports)),
        **layout.overrides,
    }
