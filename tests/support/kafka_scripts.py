"""Apache Kafka's ``kafka-*.sh`` in a directory for PATH, because Maven downloads its jars without these scripts.

A script of a tool that soon ends by itself asks this process to run the tool in the JVM of `tests.support.java_tools`.
The others start a JVM of their own.
"""

from __future__ import annotations

import json
import shlex
import socketserver
import sys
import threading
from functools import cache
from pathlib import Path

from benchmarks.rivals.apache_kafka import TOOL_TIMEOUT_S
from benchmarks.rivals.kafka_jars import KAFKA_4
from tests.support.java_tools import tool_server
from tests.support.jvm import java_command
from tests.support.kafka_jars import broker_classpath

_CLIENT = Path(__file__).parent / "scripts" / "ask_tool.py"
_TOOLS = "org.apache.kafka.tools"
SHORT_TOOLS = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
}
WITH_OWN_JVM = {
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-server-start": "kafka.Kafka",
    "kafka-storage": "kafka.tools.StorageTool",
}
"""They run until they are stopped, or use files of their working directory."""


class _ToolRequest(socketserver.StreamRequestHandler):
    """A connection of ``ask_tool.py``: one line of JSON each way."""

    def handle(self) -> None:
        tool, arguments = json.loads(self.rfile.readline())
        done = tool_server(KAFKA_4).run(tool, arguments, None, TOOL_TIMEOUT_S)
        self.wfile.write(json.dumps([done.returncode, done.stdout, done.stderr]).encode() + b"\n")


@cache
def _serve_tools() -> int:
    """Begin to run tools for scripts, until this process ends; return the port on 127.0.0.1."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _ToolRequest)
    threading.Thread(target=server.serve_forever, name="Kafka's scripts", daemon=True).start()
    return server.server_address[1]


def write_scripts(directory: Path) -> Path:
    """Write a script for each tool; returns the directory. Skips the test without Java or Maven."""
    java = java_command(KAFKA_4, broker_classpath(KAFKA_4), "-Dlog4j2.level=OFF")
    ask = [sys.executable, "-I", "-S", str(_CLIENT), str(_serve_tools())]
    directory.mkdir(parents=True, exist_ok=True)
    for command, tools in ((ask, SHORT_TOOLS), (java, WITH_OWN_JVM)):
        for name, main in tools.items():
            script = directory / f"{name}.sh"
            script.write_text(f'#!/bin/sh\nexec {shlex.join([*command, main])} "$@"\n')
            script.chmod(0o755)
    return directory
