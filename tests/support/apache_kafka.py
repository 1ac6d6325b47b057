"""Apache Kafka for tests: a node and its command-line tools; a machine without Java or Maven skips the test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.rivals import apache_kafka as rival
from tests.support.jvm import BROKER_HEAP, SMALL_HEAP, broker_options
from tests.support.kafka_jars import KAFKA_4, broker_classpath

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


class ApacheKafka(rival.ApacheKafka):
    """`benchmarks.rivals.apache_kafka.ApacheKafka`, as a context manager; skips where it cannot run."""

    def __init__(
        self,
        directory: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        version: str = KAFKA_4,
        port: int = 0,
    ) -> None:
        broker_classpath(version)
        super().__init__(directory, overrides, version=version, port=port)
        self.java_options = (*BROKER_HEAP, *broker_options(version))
        self.tool_options = (*SMALL_HEAP, *broker_options(version))


def run_tool(
    tool: str,
    arguments: list[str],
    *,
    version: str = KAFKA_4,
    stdin: str | None = None,
    timeout_s: float = rival.TOOL_TIMEOUT_S,
    java_options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools to its end; its exit code is not judged."""
    broker_classpath(version)
    options = (*SMALL_HEAP, *broker_options(version), *java_options)
    return rival.run_tool(tool, arguments, version=version, options=options, stdin=stdin, timeout_s=timeout_s)
