"""Commands on topics, configurations and nodes, against Tidelog and Apache Kafka, with equal output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.apache_kafka import CONFIG_COMMAND, TOPIC_COMMAND, ApacheKafka, run_tool
from tests.support.broker import TidelogProcess
from tests.support.power.waiting import wait_until
from tests.support.shell import Shell
from tidelog.cli import main


@pytest.fixture(scope="module", params=["tidelog", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of either kind, shared by the tests of this module."""
    kind = ApacheKafka if request.param == "kafka" else TidelogProcess
    with kind(tmp_path_factory.mktemp(request.param)) as process:
        yield process


@pytest.fixture
def shell(served: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(served.bootstrap, capsys)


def names(topics: Sequence[dict[str, Any]]) -> set[str]:
    return {topic["name"] for topic in topics}


def columns(rows: Sequence[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def create(shell: Shell, topic: str, *words: str) -> None:
    """Create a topic that the broker knows then."""
    shell.text("topic", "create", topic, *words)
    shell.until(True, "topic", "list", of=lambda found: topic in names(found))


def test_the_status_command_finds_a_broker_in_order(shell: Shell) -> None:
    create(shell, "looked-at", "-p", "2")

    def is_in_order(found: dict[str, Any]) -> bool:
        has_logs = [one["partitions"] >= 2 for one in found["log_dirs"]] == [True]
        return has_logs and found["partitions"] >= 2 and not found["leaderless"] and not found["under_replicated"]

    shell.until(True, "status", of=is_in_order)
    text, found = shell.text("status"), shell.json("status")
    assert [one["id"] for one in found["brokers"]] == [found["controller"]]
    assert text.startswith(f"cluster: {found['cluster']}, controller {found['controller']}\n")


def test_a_topic_is_created_changed_and_deleted(shell: Shell) -> None:
    made = shell.json("topic", "create", "life", "-p", "2", "-r", "1", "-c", "retention.ms=1000")
    assert made == [{"name": "life", "created": True, "partitions": 2, "replicas": 1}]
    assert shell.text("topic", "create", "life", "--if-not-exists") == "topic life is there already\n"
    shell.until(True, "topic", "list", of=lambda found: "life" in names(found))
    assert shell.text("topic", "alter", "life", "--config", "segment.bytes=1048576", "--delete-config", "retention.ms")
    assert shell.text("topic", "add-partitions", "life", "-n", "2") == "topic life went from 2 to 4 partitions\n"
    configs = [{"key": "segment.bytes", "value": "1048576", "source": "topic"}]
    shell.until(configs, "topic", "describe", "life", of=lambda found: found[0]["configs"])
    keys = ("partition", "replicas", "start_offset", "end_offset")
    places = [(number, [1], 0, 0) for number in range(4)]
    shell.until(places, "topic", "describe", "life", of=lambda found: columns(found[0]["partitions"], *keys))
    assert shell.text("topic", "delete", "life") == "deleted topic life\n"
    shell.until(False, "topic", "list", of=lambda found: "life" in names(found))
    assert shell.json("topic", "delete", "life", "--if-exists") == [{"name": "life", "deleted": False}]


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    assert shell.text("topic", "create", "dry", "--dry-run") == "topic dry would be created\n"
    assert "dry" not in names(shell.json("topic", "list"))
    create(shell, "wet", "-p", "1")
    assert "would go from 1 to 3" in shell.text("topic", "add-partitions", "wet", "-p", "3", "--dry-run")
    assert "would set retention.ms=5" in shell.text("config", "set", "topic", "wet", "retention.ms=5", "--dry-run")
    (found,) = shell.json("topic", "describe", "wet")
    assert (len(found["partitions"]), found["configs"]) == (1, [])


def test_a_dry_run_reports_an_existing_topic(shell: Shell) -> None:
    create(shell, "made-before", "-p", "1")
    words = ["topic", "create", "made-before", "made-later", "--dry-run", "--if-not-exists"]
    assert shell.text(*words) == "topic made-before is there already\ntopic made-later would be created\n"


def test_topics_as_text_are_aligned_columns(shell: Shell) -> None:
    create(shell, "columns", "-p", "3", "-r", "1")
    lines = shell.text("topic", "list").splitlines()
    assert re.fullmatch(r"NAME +PARTITIONS +REPLICAS", lines[0])
    assert any(re.fullmatch(r"columns +3 +1", line) for line in lines)
    assert len(lines[0]) == max(map(len, lines))
    described = shell.text("topic", "describe", "columns")
    assert re.search(r"^ +2 +1 +0 +1 +1 +0 +0$", described, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topic", "create", "a/b"], "a/b"),
        (["topic", "create", "wrong", "-c", "no.such.key=1"], "no.such.key"),
        (["topic", "create", "wrong", "-c", "retention.ms=soon"], "soon"),
        (["topic", "create", "wrong", "-r", "3"], "topic wrong: "),
        (["topic", "describe", "not-there"], "topic not-there: "),
        (["topic", "delete", "not-there"], "topic not-there: "),
        (["topic", "add-partitions", "not-there", "-n", "1"], "topic not-there: "),
        (["config", "get", "topic", "not-there"], "topic not-there"),
        (["config", "get", "broker", "77"], "no broker '77'; the brokers' ids are 1"),
        (["config", "set", "topic", "not-there", "retention.ms=1"], "topic not-there"),
        (["log-dirs", "--topic", "not-there"], "topic not-there"),
    ],
)
def test_a_refusal_of_the_broker_is_one_line(shell: Shell, words: list[str], message: str) -> None:
    assert message in shell.failure(*words)


def test_each_of_several_topics_is_reported(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "create", "several", "a/b", "seven", "-b", shell.bootstrap]) == 1
    captured = capsys.readouterr()
    assert [line.partition(":")[0] for line in captured.out.splitlines()] == [
        "created topic several",
        "created topic seven",
    ]
    assert len(captured.err.splitlines()) == 1


def test_configurations_are_set_shown_and_unset(shell: Shell) -> None:
    create(shell, "configured")
    words = ("topic", "configured")
    assert shell.text("config", "set", *words, "retention.ms=7", "cleanup.policy=compact,delete") == (
        "topic configured: set retention.ms=7\ntopic configured: set cleanup.policy=compact,delete\n"
    )
    expected = [("cleanup.policy", "compact,delete", "topic"), ("retention.ms", "7", "topic")]
    shell.until(expected, "config", "get", *words, of=lambda found: columns(found, "key", "value", "source"))
    (one,) = shell.json("config", "get", *words, "max.message.bytes", "--doc")
    assert one["source"] == "default"
    assert one["documentation"]
    assert "no.such.key" in shell.failure("config", "get", *words, "no.such.key")
    assert shell.json("config", "unset", *words, "retention.ms")["configs"] == {"retention.ms": None}
    shell.until([("cleanup.policy",)], "config", "get", *words, of=lambda found: columns(found, "key"))
    assert len(shell.json("config", "get", *words, "--all")) > 10


def test_configurations_of_brokers_are_set_and_unset(shell: Shell) -> None:
    shell.text("config", "set", "broker", "1", "log.cleaner.backoff.ms=14000")
    shell.text("config", "set", "broker", "default", "log.retention.ms=604800001")
    own = ("config", "get", "broker", "1", "log.cleaner.backoff.ms", "log.retention.ms")
    expected = [("log.cleaner.backoff.ms", "14000", "broker"), ("log.retention.ms", "604800001", "all brokers")]
    shell.until(expected, *own, of=lambda found: columns(found, "key", "value", "source"))
    general = ("config", "get", "broker", "default")
    shell.until(True, *general, of=lambda found: ("log.retention.ms",) in columns(found, "key"))
    shell.text("config", "unset", "broker", "default", "log.retention.ms")
    shell.until(False, *general, of=lambda found: ("log.retention.ms",) in columns(found, "key"))


def test_the_cluster_and_its_log_directories_are_described(shell: Shell) -> None:
    found = shell.json("cluster")
    port = shell.bootstrap.rpartition(":")[2]
    (broker,) = found["brokers"]
    assert (broker["id"], broker["port"]) == (1, int(port))
    assert found["features"]["metadata.version"] > 0
    assert f"cluster: {found['id']}\n" in shell.text("cluster")
    create(shell, "directory", "-p", "2")
    words, places = ("log-dirs", "--topic", "directory"), [("directory", 0), ("directory", 1)]
    shell.until(places, *words, of=lambda found: columns(found[0]["partitions"], "topic", "partition"))
    (directory,) = shell.json(*words)
    assert directory["total"] > directory["usable"] > 0
    assert directory["directory"] in shell.text("log-dirs")


@pytest.mark.java
@pytest.mark.slow
def test_kafkas_own_tools_see_the_same(shell: Shell) -> None:
    create(shell, "shared", "-p", "2", "-c", "retention.ms=1234")
    server = ["--bootstrap-server", shell.bootstrap]
    described = run_tool(TOPIC_COMMAND, [*server, "--describe", "--topic", "shared"]).stdout
    (found,) = shell.json("topic", "describe", "shared")
    assert f"TopicId: {found['id']}" in described
    assert described.count("\tPartition: ") == len(found["partitions"]) == 2
    assert "retention.ms=1234" in described
    entity = ["--entity-type", "topics", "--entity-name", "shared"]
    output = run_tool(CONFIG_COMMAND, [*server, "--describe", *entity]).stdout
    assert "retention.ms=1234" in output
    listed = run_tool(TOPIC_COMMAND, [*server, "--list"]).stdout.split()
    assert set(listed) == names(shell.json("topic", "list", "--internal"))


def test_a_shell_completes_the_names_of_topics(served: BrokerProcess, shell: Shell) -> None:
    create(shell, "completed-topic")
    words = ["tidelog", "topic", "describe", "-b", served.bootstrap, "completed-"]
    asked = {"_TIDELOG_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-m", "tidelog"]

    def is_completed() -> bool:
        """Return whether a shell shows the topic: it waits for a busy broker no longer than two seconds."""
        done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
        assert done.stdout in ("", "plain,completed-topic\n")
        return bool(done.stdout)

    wait_until(is_completed)
