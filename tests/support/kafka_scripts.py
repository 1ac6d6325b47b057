"""Apache Kafka's ``kafka-*.sh`` in a directory for PATH, because Maven downloads its jars without these scripts."""

from __future__ import annotations

import shlex
from pathlib import Path

from benchmarks.rivals.kafka_jars import KAFKA_4
from tests.support.jvm import java_command
from tests.support.kafka_jars import broker_classpath

_TOOLS = "org.apache.kafka.tools"
CLASSES = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-server-start": "kafka.Kafka",
    "kafka-share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
}


def write_scripts(directory: Path) -> Path:
    """Write a script for each tool; returns the directory. Skips the test without Java or Maven."""
    java = java_command(KAFKA_4, broker_classpath(KAFKA_4), "-Dlog4j2.level=OFF")
    directory.mkdir(parents=True, exist_ok=True)
    for name, main in CLASSES.items():
        script = directory / f"{name}.sh"
        script.write_text(f'#!/bin/sh\nexec {shlex.join([*java, main])} "$@"\n')
        script.chmod(0o755)
    return directory
