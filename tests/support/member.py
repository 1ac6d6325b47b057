"""A Tidelog process as a member of a KRaft cluster, formatted and configured by files as an operator would do it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from benchmarks.rivals.apache_kafka import CLUSTER_ID
from benchmarks.rivals.process import BrokerProcess, ChildProcess, free_port
from benchmarks.rivals.tidelog_broker import read_ready_line
from tests.support.forked_process import start_or_fork
from tests.support.kraft_node import HOST, KraftNode
from tidelog.cli import main


class MemberNode(BrokerProcess):
    """One member of a cluster; ``controllers`` maps the ids of its controllers to their ports."""

    name = "member"
    start_timeout_s = 120.0
    stop_timeout_s = 120.0

    def __init__(
        self,
        directory: Path,
        node_id: int,
        controllers: Mapping[int, int],
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory / f"member-{node_id}", free_port())
        self.node_id = node_id
        self.controllers = controllers
        self.overrides = dict(overrides or {})

    @property
    def data_directory(self) -> Path:
        """The directory in ``log.dirs``."""
        return self.directory / "data"

    @property
    def properties_path(self) -> Path:
        """The path of server.properties."""
        return self.directory / "server.properties"

    def properties(self) -> dict[str, str]:
        """Return server.properties as it will be written."""
        return {
            "process.roles": "broker",
            "node.id": str(self.node_id),
            "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{port}" for port in self.controllers.values()),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(self.data_directory),
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.num.partitions": "5",
            **self.overrides,
        }

    def start(self) -> Self:
        """Format a new directory, start the member, and wait until it is ready. Raises BrokerError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.properties_path.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        code = main(["format", "-t", CLUSTER_ID, "-c", str(self.properties_path), "--ignore-formatted"])
        assert code == 0, "the directory cannot be formatted"
        return super().start()

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-m", "tidelog.cli", "serve", "--config", str(self.properties_path)]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "TIDELOG_DEBUG": "1"}

    def start_process(self) -> ChildProcess:
        """Fork the process, or start it."""
        return start_or_fork(self, super().start_process)

    def stdout(self) -> int:
        """Return PIPE, because the member prints the ready line on standard output once it is unfenced."""
        return subprocess.PIPE

    def wait_until_ready(self, deadline: float) -> None:
        """Read the ready line. Raises BrokerError."""
        read_ready_line(self, deadline)


class TakenOver(MemberNode):
    """A Tidelog broker with the directory, the address and the id of a Java broker, which it replaces."""

    def __init__(self, java: KraftNode, overrides: Mapping[str, str] | None = None) -> None:
        super().__init__(
            java.directory, java.node_id, java.controllers, java.overrides if overrides is None else overrides
        )
        self.directory, self.port, self._data_directory = java.directory, java.port, java.data_directory
        self.log_path = java.directory / "member.out"

    @property
    def data_directory(self) -> Path:
        """The Java broker's directory in ``log.dirs``."""
        return self._data_directory

    @property
    def properties_path(self) -> Path:
        """The path of the configuration file, beside the Java broker's."""
        return self.directory / "tidelog.properties"
