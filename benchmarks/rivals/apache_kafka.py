"""Apache Kafka: one KRaft node (broker and controller) in a directory of its own, and its command-line tools."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from benchmarks.rivals import kafka_jars
from benchmarks.rivals.process import BrokerProcess, free_port

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
BROKER_HEAP = ("-Xmx1G", "-Xms1G")
TOOL_HEAP = ("-Xmx256M",)
TOOL_TIMEOUT_S = 180.0
START_POLL_S = 0.02
SIGTERM_EXIT = 143
"""Exit code of a JVM that stopped cleanly on SIGTERM: 128 + 15."""

META_PROPERTIES = "meta.properties"

CONFIG_COMMAND = "kafka.admin.ConfigCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
STORAGE_TOOL = "kafka.tools.StorageTool"
TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"


def console_producer(version: str = kafka_jars.KAFKA_4) -> str:
    """Name the class of the console producer: it moved in Kafka 4."""
    return "kafka.tools.ConsoleProducer" if version.startswith("3.") else "org.apache.kafka.tools.ConsoleProducer"


def dump_log_segments(version: str = kafka_jars.KAFKA_4) -> str:
    """Name the class of DumpLogSegments: it moved in Kafka 4."""
    return "kafka.tools.DumpLogSegments" if version.startswith("3.") else "org.apache.kafka.tools.DumpLogSegments"


def run_tool(
    tool: str,
    arguments: list[str],
    *,
    version: str = kafka_jars.KAFKA_4,
    options: tuple[str, ...] = TOOL_HEAP,
    stdin: str | None = None,
    timeout_s: float = TOOL_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools to its end and return what it printed; its exit code is not judged.

    ``options`` are JVM options. Raises subprocess.TimeoutExpired, and as `kafka_jars.resolve`.
    """
    command = [*java_command(version, options), tool, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)


def java_command(version: str, options: tuple[str, ...]) -> list[str]:
    """Build a ``java`` command with the class path of a Kafka version and quiet logging; the caller adds class and
    arguments.
    """
    logging = ["-Dlog4j2.level=WARN"] if int(version.split(".")[0]) >= 4 else []
    return [kafka_jars.java(), *options, *logging, "-cp", kafka_jars.broker_classpath(version)]


class ApacheKafka(BrokerProcess):
    """One Kafka node. ``overrides`` are lines of server.properties and win over the defaults here.

    The directory is formatted on the first start and kept: a `restart` finds its data again.
    """

    name = "apache-kafka"
    start_timeout_s = 120.0
    stop_timeout_s = 300.0  # a node with 10,000 partitions takes more than a minute
    java_options: tuple[str, ...] = BROKER_HEAP
    tool_options: tuple[str, ...] = TOOL_HEAP

    def __init__(
        self,
        directory: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        version: str = kafka_jars.KAFKA_4,
        port: int = 0,
    ) -> None:
        super().__init__(directory, port or free_port())
        self.version = version
        self.controller_port = free_port()
        self.overrides = dict(overrides or {})

    @property
    def data_directory(self) -> Path:
        """log.dirs: the partition directories are in here."""
        return self.directory / "data"

    @property
    def properties_path(self) -> Path:
        """The file server.properties, which is written before each start."""
        return self.directory / "server.properties"

    def properties(self) -> dict[str, str]:
        """Return server.properties as it will be written."""
        plain = f"{self.host}:{self.port}"
        controller = f"{self.host}:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{plain}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_directory),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.overrides,
        }

    def format(self) -> None:
        """Write server.properties, and format the data directory if it is new. Raises as `format_data_directory`."""
        self.write_properties()
        if not (self.data_directory / META_PROPERTIES).exists():
            self.format_data_directory()

    def write_properties(self) -> None:
        """Write server.properties into the node's directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}" for key, value in self.properties().items()]
        self.properties_path.write_text("\n".join(lines) + "\n")

    def format_data_directory(self) -> None:
        """Run StorageTool on the new directory. Raises RuntimeError if it fails, and as `run_tool`."""
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self.properties_path)]
        done = run_tool(STORAGE_TOOL, arguments, version=self.version, options=self.tool_options)
        if done.returncode != 0:
            raise RuntimeError(f"could not format {self.data_directory}:\n{(done.stdout + done.stderr)[-2000:]}")

    def start(self) -> Self:
        """Format a new data directory, start, and wait for the first answer. Raises BrokerError, and as
        `format_data_directory`.
        """
        self.format()
        return super().start()

    def command(self) -> list[str]:
        """Return the JVM's command line, with the heap of ``java_options``. Raises as `kafka_jars.resolve`."""
        return [*java_command(self.version, self.java_options), "kafka.Kafka", str(self.properties_path)]

    def wait_until_ready(self, deadline: float) -> None:
        """Ask ApiVersions until the node answers."""
        self.answer_or_fail(deadline, START_POLL_S)

    def clean_exit_codes(self) -> tuple[int, ...]:
        """Return the exit codes of an orderly stop: a JVM that SIGTERM stopped reports the signal."""
        return (0, SIGTERM_EXIT)
