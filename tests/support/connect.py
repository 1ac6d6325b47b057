"""Apache Kafka's Connect: distributed workers as processes, driven through their REST interface."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from benchmarks.rivals.apache_kafka import SIGTERM_EXIT
from benchmarks.rivals.process import BrokerError, BrokerProcess, free_port
from tests.support.jvm import java_command
from tests.support.kafka_jars import KAFKA_4, broker_classpath, connect_classpath

MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
REST_TIMEOUT_S = 60.0
POLL_S = 0.1
LOGGING = """\
appender.all.type=Console
appender.all.name=all
appender.all.target=SYSTEM_ERR
appender.all.layout.type=PatternLayout
appender.all.layout.pattern=%d{ABSOLUTE} %p %c{1}: %m%n
rootLogger.level=WARN
rootLogger.appenderRef.all.ref=all
"""


class ConnectWorker(BrokerProcess):
    """One worker of the group ``connect``; several make a cluster. Exactly-once source support is on.

    ``port`` is that of its REST interface. Its session is the shortest that a broker allows by default.
    """

    def __init__(self, directory: Path, bootstrap: str) -> None:
        connect_classpath()  # downloads the jars before the start timeout begins
        super().__init__(directory, free_port())
        self.name = f"connect-{directory.name}"
        self.log_path = directory / f"{self.name}.out"
        self.kafka = bootstrap

    def properties(self) -> dict[str, str]:
        """Return connect-distributed.properties."""
        internal = {
            f"{topic}.storage.{key}": value
            for topic in ("config", "offset", "status")
            for key, value in {"topic": f"connect-{topic}", "replication.factor": "1", "partitions": "1"}.items()
            if (topic, key) != ("config", "partitions")  # the topic of configs always has one partition
        }
        return {
            "bootstrap.servers": self.kafka,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "listeners": f"http://{self.bootstrap}",
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            "plugin.discovery": "service_load",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.flush.interval.ms": "500",
            **internal,
        }

    def command(self) -> list[str]:
        """Write the properties; return the JVM's command line."""
        properties, logging = self.directory / "worker.properties", self.directory / "log4j2.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        logging.write_text(LOGGING)
        class_path = f"{broker_classpath()}:{connect_classpath()}"
        return java_command(KAFKA_4, class_path, f"-Dlog4j2.configurationFile={logging}", MAIN, str(properties))

    def wait_until_ready(self, deadline: float) -> None:
        """Wait until the worker answers requests: it has joined its group and read its configuration."""
        while self._try("GET", "/connectors") is None:
            if self.process is None or self.process.poll() is not None:
                raise BrokerError(f"{self.name} ended while it started\n{self.output()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"{self.name} was not ready in {self.start_timeout_s:.0f} s\n{self.output()}")
            time.sleep(POLL_S)

    def clean_exit_codes(self) -> tuple[int, ...]:
        """Return the exit codes of an orderly stop: a JVM that SIGTERM stopped reports the signal."""
        return (0, SIGTERM_EXIT)

    def configure(self, connector: str, config: Mapping[str, str]) -> None:
        """Create or change a connector; repeats the request while the workers have no leader or rebalance."""
        deadline = time.monotonic() + self.start_timeout_s
        while self._try("PUT", f"/connectors/{connector}/config", dict(config)) is None:
            assert time.monotonic() < deadline, f"{connector} could not be configured\n{self.output()}"
            time.sleep(POLL_S)

    def where(self, connector: str) -> tuple[str, str]:
        """Return the state of a connector's first task and the worker that runs it; ("", "") before there is a task."""
        status = self._try("GET", f"/connectors/{connector}/status")
        tasks = status["tasks"] if status else []
        return (tasks[0]["state"], tasks[0]["worker_id"]) if tasks else ("", "")

    def _try(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """Return the response; None if the worker does not answer, or with status 404, 409 or 5xx. Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{self.bootstrap}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code not in (
                HTTPStatus.NOT_FOUND,
                HTTPStatus.CONFLICT,
            ):
                raise
            return None
        except OSError:
            return None
