"""Apache Kafka for tests: a node and its command-line tools; on a machine without Java or Maven the test is skipped.

StorageTool formats one directory for each version and checkout. The nodes of tests get copies of its files, each with a
node id and a directory id of its own. So a node does not start a JVM only to format its directory.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

from benchmarks.rivals import apache_kafka as rival
from benchmarks.rivals.kafka_jars import BUILD, build_lock
from benchmarks.rivals.process import BrokerError, ChildProcess
from tests.support.java_tools import tool_server
from tests.support.jvm import BROKER_HEAP, SMALL_HEAP, broker_options
from tests.support.kafka_jars import KAFKA_4, broker_classpath
from tests.support.node_server import NodeThread, node_server
from tests.support.sparse_copy import copy_tree
from tidelog.protocol.types import random_uuid, uuid_to_str

CONFIG_COMMAND = rival.CONFIG_COMMAND
CONSOLE_CONSUMER = rival.CONSOLE_CONSUMER
CONSUMER_PERFORMANCE = rival.CONSUMER_PERFORMANCE
DELETE_RECORDS = rival.DELETE_RECORDS
GET_OFFSETS = rival.GET_OFFSETS
PRODUCER_PERFORMANCE = rival.PRODUCER_PERFORMANCE
TOPIC_COMMAND = rival.TOPIC_COMMAND
VERIFIABLE_PRODUCER = rival.VERIFIABLE_PRODUCER
console_producer = rival.console_producer
dump_log_segments = rival.dump_log_segments
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
DECIDE_FORMAT = (
    "controller.quorum.bootstrap.servers",
    "eligible.leader.replicas.enable",
    "inter.broker.protocol.version",
    "metadata.log.dir",
    "unstable.feature.versions.enable",
)
"""Settings that, beside ids and log.dirs, decide what StorageTool writes: it formats the nodes that have one."""

SMALL = {"log.cleaner.dedupe.buffer.size": str(8 << 20)}
"""Settings of nodes that have no other value. Kafka's default of this one is 128 MiB, which the JVM fills with zeros at
each start: with 8 MiB a node's life in the shared JVM takes 0.38 s of CPU time in place of 0.54."""


class ApacheKafka(rival.ApacheKafka):
    """`benchmarks.rivals.apache_kafka.ApacheKafka` with small JVMs; without Java or Maven the test is skipped.

    With ``in_shared_jvm`` the node is a thread (`tests.support.node_server`): it can be stopped, but not killed
    (`leave_as_killed` leaves the files of a kill). It has no process id, and its output is mixed with that of other
    nodes.
    """

    def __init__(
        self,
        directory: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        version: str = KAFKA_4,
        port: int = 0,
        in_shared_jvm: bool = False,
    ) -> None:
        broker_classpath(version)
        super().__init__(directory, overrides, version=version, port=port)
        self._own_log_path = self.log_path
        self.choose_jvm(shared=in_shared_jvm)
        self.java_options = (*BROKER_HEAP, *broker_options(version))
        self.tool_options = (*SMALL_HEAP, *broker_options(version))

    def choose_jvm(self, *, shared: bool) -> None:
        """Choose the JVM for the next start of a node that does not run: the shared one, or one of its own."""
        self._in_shared_jvm = shared
        self.log_path = node_server(self.version).log_path if shared else self._own_log_path

    def write_properties(self) -> None:
        """Write server.properties, with the settings of SMALL."""
        super().write_properties()
        own = self.properties()
        with self.properties_path.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in SMALL.items() if key not in own)

    def start_process(self) -> ChildProcess:
        """Start the node's JVM, or the node in the shared JVM."""
        if self._in_shared_jvm:
            return NodeThread(node_server(self.version), self.properties_path)
        return super().start_process()

    def discard(self) -> None:
        """Kill the node's JVM; stop a node in the shared JVM."""
        if not self._in_shared_jvm:
            super().discard()
            return
        with suppress(BrokerError):  # it ended by itself
            self.terminate()

    def leave_as_killed(self) -> None:
        """Stop a node in the shared JVM, with the files in ``log.dirs`` that kill -9 would have left.

        They are copied while the JVM is frozen: what a process has written, the kernel has, whether the process is
        stopped or killed. Clients see an orderly stop. Raises BrokerError.
        """
        left = self.directory / "left-as-killed"
        with node_server(self.version).frozen():
            copy_tree(self.data_directory, left)
        self.terminate()
        shutil.rmtree(self.data_directory)
        left.rename(self.data_directory)

    def format_data_directory(self) -> None:
        """Copy a formatted directory; with a setting of DECIDE_FORMAT StorageTool formats the directory itself."""
        properties = self.properties()
        if properties.pop("log.dirs") != str(self.data_directory) or any(key in properties for key in DECIDE_FORMAT):
            super().format_data_directory()
            return
        template = self._format_template()
        self.data_directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(template / BOOTSTRAP_CHECKPOINT, self.data_directory)
        text = with_ids((template / rival.META_PROPERTIES).read_text(), properties["node.id"])
        (self.data_directory / rival.META_PROPERTIES).write_text(text)

    def _format_template(self) -> Path:
        """Let StorageTool format the directory that is copied for this version, once."""
        directory = BUILD / "formatted" / self.version
        node = rival.ApacheKafka(directory, version=self.version)
        node.tool_options = self.tool_options
        with build_lock(directory):
            node.format()
        return node.data_directory


def with_ids(meta_properties: str, node_id: str) -> str:
    """Replace the node id by ``node_id``, and the directory id by a random one."""
    directory_id = uuid_to_str(random_uuid(SystemRandom()))
    text = re.sub(r"^node\.id=.*$", f"node.id={node_id}", meta_properties, flags=re.MULTILINE)
    return re.sub(r"^directory\.id=.*$", f"directory.id={directory_id}", text, flags=re.MULTILINE)


def run_tool(
    tool: str,
    arguments: list[str],
    *,
    version: str = KAFKA_4,
    stdin: str | None = None,
    timeout_s: float = rival.TOOL_TIMEOUT_S,
    java_options: tuple[str, ...] = (),
    in_own_jvm: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools to its end; any exit code is accepted.

    It runs in the JVM of `tests.support.java_tools` that has these ``java_options``. With ``in_own_jvm`` it runs in one
    of its own, which a tool needs that reads ``/dev/stdin`` or prints in a shutdown hook of Java. Raises
    subprocess.TimeoutExpired.
    """
    if not in_own_jvm:
        return tool_server(version, java_options).run(tool, arguments, stdin, timeout_s)
    broker_classpath(version)
    options = (*SMALL_HEAP, *broker_options(version), *java_options)
    return rival.run_tool(tool, arguments, version=version, options=options, stdin=stdin, timeout_s=timeout_s)
