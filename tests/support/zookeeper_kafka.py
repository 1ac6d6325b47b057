"""Apache Kafka 3.9 in ZooKeeper mode: one broker, which can still write message formats 0 and 1, and its ZooKeeper."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.rivals.apache_kafka import java_command
from benchmarks.rivals.process import BrokerError, free_port
from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_jars import KAFKA_3

OLD_PROTOCOL = "2.8"
"""The last ``inter.broker.protocol.version`` under which a topic may choose its message format."""
ZOOKEEPER_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 5.0
POLL_S = 0.05
TICK_MS, SESSION_TIMEOUT_MS = "1000", "2500"
"""Milliseconds of ZooKeeper's tick and of a session. A killed broker can register again after its session has ended."""
EPHEMERAL_NODES = b"ephemeral nodes dump"
REGISTRATION = b"/brokers/ids/"


class ZooKeeperKafka(ApacheKafka):
    """One broker and its ZooKeeper, which starts before the broker's first start and runs until `close`."""

    def __init__(
        self, directory: Path, overrides: Mapping[str, str] | None = None, *, in_shared_jvm: bool = False
    ) -> None:
        super().__init__(directory, overrides, version=KAFKA_3, in_shared_jvm=in_shared_jvm)
        self._zookeeper_port = free_port()
        self._zookeeper: subprocess.Popen[bytes] | None = None

    def properties(self) -> dict[str, str]:
        """Return the properties of a broker in ZooKeeper mode: those of a KRaft node, without KRaft's own keys."""
        kraft_only = {"process.roles", "node.id", "controller.quorum.voters", "controller.listener.names"}
        common = {key: value for key, value in super().properties().items() if key not in kraft_only}
        return {
            **common,
            "broker.id": "3",
            "zookeeper.connect": f"{self.host}:{self._zookeeper_port}",
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "inter.broker.protocol.version": OLD_PROTOCOL,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        }

    def format(self) -> None:
        """Write server.properties; in ZooKeeper mode a log directory needs no formatting."""
        self.write_properties()

    def start(self) -> Self:
        """Start ZooKeeper if it does not run yet, then the broker. Raises BrokerError."""
        if self._zookeeper is None:
            self._start_zookeeper()
        deadline = time.monotonic() + ZOOKEEPER_TIMEOUT_S
        while not self._is_unregistered():
            if time.monotonic() > deadline:
                raise BrokerError(f"a killed broker stays registered for {ZOOKEEPER_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        return super().start()

    def _is_unregistered(self) -> bool:
        """Return whether ZooKeeper serves and no broker is registered with it."""
        nodes = self._ephemeral_nodes()
        return EPHEMERAL_NODES in nodes and REGISTRATION not in nodes

    def _ephemeral_nodes(self) -> bytes:
        """Return ZooKeeper's answer to ``dump``, its sessions and their ephemeral nodes; empty if it does not answer.

        While ZooKeeper starts, it answers that it does not serve, or does not answer a connection accepted too early.
        """
        address = (self.host, self._zookeeper_port)
        with suppress(OSError), closing(socket.create_connection(address, ANSWER_TIMEOUT_S)) as connection:
            connection.sendall(b"dump")
            return b"".join(iter(lambda: connection.recv(65536), b""))
        return b""

    def wait_until_ready(self, deadline: float) -> None:
        """Wait until the broker answers and knows a controller.

        A librdkafka client that connects earlier finds no controller, and does not ask again soon.
        """
        super().wait_until_ready(deadline)
        while not self._has_controller():
            if time.monotonic() > deadline:
                raise BrokerError(f"{self.name} elected no controller in {self.start_timeout_s:.0f} s\n{self.output()}")
            time.sleep(POLL_S)

    def _has_controller(self) -> bool:
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return client.list_topics(timeout=ANSWER_TIMEOUT_S).controller_id >= 0
        except KafkaException:
            return False

    def _start_zookeeper(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        java = java_command(self.version, self.tool_options)
        options = ["-Dzookeeper.admin.enableServer=false", "-Dzookeeper.4lw.commands.whitelist=dump"]
        main = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(self._zookeeper_port)]
        with (self.directory / "zookeeper.out").open("ab") as output:
            self._zookeeper = subprocess.Popen(
                [java[0], *options, *java[1:], *main, str(self.directory / "zookeeper"), TICK_MS],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + ZOOKEEPER_TIMEOUT_S
        while not self._zookeeper_listens():
            if self._zookeeper.poll() is not None or time.monotonic() > deadline:
                raise BrokerError(f"ZooKeeper did not start:\n{(self.directory / 'zookeeper.out').read_text()[-2000:]}")
            time.sleep(POLL_S)

    def _zookeeper_listens(self) -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex((self.host, self._zookeeper_port)) == 0

    def close(self) -> None:
        """Stop the broker if it still runs, then ZooKeeper."""
        self.discard()
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()
            self._zookeeper = None
