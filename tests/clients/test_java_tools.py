"""Kafka's tools in the JVM that tests share end and print as in a JVM of their own."""

from __future__ import annotations

import re

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.apache_kafka import CONSOLE_CONSUMER, GET_OFFSETS, TOPIC_COMMAND, console_producer, run_tool

pytestmark = pytest.mark.java


def comparable(printed: str) -> list[str]:
    """Return the lines that a tool printed, without times and the frames of a stack trace."""
    without_times = re.sub(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]?|\d\d:\d\d:\d\d\.\d+", "", printed)
    return [line for line in without_times.splitlines() if not line.lstrip().startswith(("at ", "... "))]


def results(broker: BrokerProcess, topic: str, *, in_own_jvm: bool) -> list[tuple[int, list[str], list[str]]]:
    """Run tools that succeed and tools that fail; return their exit codes and what they printed."""
    server = ["--bootstrap-server", broker.bootstrap]
    runs: list[tuple[str, list[str], str | None]] = [
        (TOPIC_COMMAND, [], None),
        (GET_OFFSETS, [*server, "--nothing"], None),
        (TOPIC_COMMAND, [*server, "--describe", "--topic", "missing"], None),
        (TOPIC_COMMAND, [*server, "--create", "--topic", topic], None),
        (TOPIC_COMMAND, [*server, "--create", "--topic", topic], None),
        (console_producer(), [*server, "--topic", topic], "one\ntwo\n"),
        (CONSOLE_CONSUMER, [*server, "--topic", topic, "--from-beginning", "--max-messages", "2"], None),
    ]
    ended = [run_tool(tool, words, stdin=stdin, in_own_jvm=in_own_jvm) for tool, words, stdin in runs]
    return [
        (one.returncode, comparable(one.stdout.replace(topic, "TOPIC")), comparable(one.stderr.replace(topic, "TOPIC")))
        for one in ended
    ]


def test_tools_print_and_end_as_in_a_jvm_of_their_own(broker: BrokerProcess) -> None:
    own = results(broker, "by-tools-alone", in_own_jvm=True)
    assert results(broker, "by-shared-tools", in_own_jvm=False) == own
    assert [code for code, *_ in own] == [1, 1, 1, 0, 1, 0, 0]
    assert own[-1][1] == ["one", "two"]
