"""``tidelog cluster start`` without processes: jars, Java, ports, configurations, and a line for each missing
requirement."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidelog.broker.config.sources import parse_properties
from tidelog.cli import main
from tidelog.client.connection import ClientError
from tidelog.development_cluster import nodes as nodes_module
from tidelog.development_cluster.kafka_jars import (
    ARTIFACTS,
    Artifact,
    JarsError,
    class_path_of,
    default_cache,
    download,
)
from tidelog.development_cluster.layout import (
    Layout,
    choose_ports,
    cluster_id_of,
    controller_properties,
    member_properties,
)
from tidelog.development_cluster.nodes import Node, NodeError, Nodes, wait_until_known
from tidelog.development_cluster.run import java_version
from tidelog.protocol.errors import SaslAuthenticationFailedError

CONTENT = b"a jar"
DIGEST = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
JAR = Artifact("org.example", "thing", "1.0", DIGEST)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """A Maven repository in a directory."""
    place = tmp_path / "maven/org/example/thing/1.0"
    place.mkdir(parents=True)
    (place / "thing-1.0.jar").write_bytes(CONTENT)
    return (tmp_path / "maven").as_uri() + "/"


def test_jars_are_downloaded_once(tmp_path: Path, repository: str) -> None:
    cache = tmp_path / "cache"
    assert download(cache, repository, [JAR]) == ["thing-1.0.jar"]
    assert [path.name for path in cache.iterdir()] == ["thing-1.0.jar"]
    assert download(cache, "file:///nowhere", [JAR]) == []


@pytest.mark.parametrize(
    "wrong", [JAR._replace(sha256="other"), JAR._replace(version="2.0")], ids=["digest", "missing"]
)
def test_a_jar_that_cannot_be_had_is_named_and_not_kept(tmp_path: Path, repository: str, wrong: Artifact) -> None:
    with pytest.raises(JarsError, match=r"thing-[12].0.jar"):
        download(tmp_path / "cache", repository, [wrong])
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("wrong", ["foo/", "http://127.0.0.1:1/", "http://[/"])
def test_a_repository_that_is_none_is_named(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(JarsError, match=rf"^{re.escape(wrong)}org/.* cannot be downloaded: [^<]*; --kafka DIR takes"):
        download(tmp_path / "cache", wrong, [JAR])


def test_the_table_has_whole_digests_of_one_kafka() -> None:
    assert all(len(base64.b64decode(one.sha256, validate=True)) == hashlib.sha256().digest_size for one in ARTIFACTS)
    assert len({one.version for one in ARTIFACTS if one.group == "org.apache.kafka"}) == 1
    assert len({one.file_name for one in ARTIFACTS}) == len(ARTIFACTS)


@pytest.mark.parametrize("inside", [".", "libs"])
def test_jars_are_found_in_a_directory_or_an_unpacked_kafka(tmp_path: Path, inside: str) -> None:
    with pytest.raises(JarsError, match="expected an unpacked release"):
        class_path_of(tmp_path)
    place = tmp_path / inside
    place.mkdir(exist_ok=True)
    (place / "kafka-clients-4.3.1.jar").touch()
    assert class_path_of(tmp_path) == f"{place}/*"


def test_the_cache_is_where_the_user_has_it() -> None:
    assert default_cache({"XDG_CACHE_HOME": "/c"}).parts[:3] == ("/", "c", "tidelog")
    assert ".cache" in default_cache({}).parts


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17\n', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('java version "1.8.0_392"', 8),
        ("not a Java", 0),
        ('java version "²"', 0),
    ],
)
def test_the_version_of_java_is_parsed(output: str, version: int) -> None:
    assert java_version(output) == version


def test_ports_follow_one_another_or_are_free_ones() -> None:
    assert choose_ports(9092, 3) == (9095, (9092, 9093, 9094))
    controller, members = choose_ports(0, 3)
    assert len({controller, *members}) == 4
    assert min(controller, *members) > 0


@pytest.mark.parametrize(("nodes", "factor", "least"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (5, "3", "2")])
def test_topics_have_replicas_on_up_to_three_members(tmp_path: Path, nodes: int, factor: str, least: str) -> None:
    layout = Layout(tmp_path, 9000, tuple(range(9001, 9001 + nodes)), {"num.partitions": "7"})
    found = member_properties(layout, nodes)
    assert found["listeners"] == f"PLAINTEXT://127.0.0.1:{9000 + nodes}"
    assert found["num.partitions"] == "7"
    for properties in (found, controller_properties(layout)):
        assert properties["offsets.topic.replication.factor"] == factor
        assert properties["transaction.state.log.min.isr"] == least


def test_a_directory_keeps_its_cluster(tmp_path: Path) -> None:
    assert cluster_id_of(tmp_path / "new") == cluster_id_of(tmp_path / "new")


def start(directory: Path, *words: str) -> int:
    """Run ``tidelog cluster start`` in this process; it ends before a node is started."""
    return main(["cluster", "start", "--data-dir", str(directory), *words])


def test_without_java_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert start(tmp_path) == 1
    error = capfd.readouterr().err
    assert error.startswith("tidelog cluster start: the controller needs Java 17 or later, and there is no java")
    assert error.count("\n") == 1


def test_without_java_in_java_home_the_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A java on the path is not looked for, as Kafka's own scripts do."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert start(tmp_path) == 1
    assert capfd.readouterr().err.endswith(f"there is no java in JAVA_HOME, {tmp_path}\n")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says it is Java 17."""
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return program


def test_an_old_java_is_named(java: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_1\"' >&2\n")
    assert start(tmp_path) == 1
    assert f"{java} is Java 8" in capfd.readouterr().err


@pytest.mark.usefixtures("java")
def test_a_port_that_is_taken_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = min(server.getsockname()[1], 64_000)
        if port != server.getsockname()[1]:
            server.close()
            server = socket.create_server(("127.0.0.1", port))
        assert start(tmp_path, "--port", str(port)) == 1
        server.close()
    assert f"port {port} of 127.0.0.1 is taken" in capfd.readouterr().err


def test_an_unknown_key_of_the_brokers_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(tmp_path, "--override", "num.partitons=3") == 2
    assert "--override num.partitons: unknown configuration key; the nearest is num.part" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("java")
def test_a_directory_without_jars_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(tmp_path, "--port", "0", "--kafka", str(tmp_path / "nothing")) == 1
    assert f"{tmp_path}/nothing has no kafka-clients" in capfd.readouterr().err


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("version", ["3.9.2", "2.8.0"])
def test_an_older_kafka_is_named(tmp_path: Path, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    libs = tmp_path / "kafka/libs"
    libs.mkdir(parents=True)
    (libs / f"kafka-clients-{version}.jar").touch()
    assert start(tmp_path, "--port", "0", "--kafka", str(tmp_path / "kafka")) == 1
    assert f"{libs} has Apache Kafka {version}" in capfd.readouterr().err


def test_a_node_that_ends_before_it_is_ready_is_reported_with_its_last_output(tmp_path: Path) -> None:
    node = Node("node 1", ["sh", "-c", "echo no room >&2; exit 3"], tmp_path / "node.log")
    with pytest.raises(NodeError, match=r"node 1 ended with 3 before it was ready(.|\n)*no room"):
        node.wait_ready(time.monotonic() + 60)
    node.stop()


def test_a_node_is_ready_when_it_says_so_and_stops_when_asked(tmp_path: Path) -> None:
    node = Node("node 1", ["sh", "-c", "echo tidelog ready on x:1; cat"], tmp_path / "node.log")
    node.wait_ready(time.monotonic() + 60)
    assert not node.has_ended
    node.stop()
    assert node.has_ended


def test_a_controller_that_prints_much_is_not_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe holds 64 KiB; log4j prints warnings to standard output."""
    layout = Layout(tmp_path, 1, (2,), {})
    nodes = Nodes(layout, "java", "jars")
    monkeypatch.setattr(nodes, "_java", [sys.executable, "-c", "print('a warning' * 20_000)"])
    (tmp_path / "controller" / "data").mkdir(parents=True)
    (tmp_path / "controller" / "data" / "meta.properties").touch()
    nodes._start_controller("id")
    (controller,) = nodes.running
    assert controller.process.wait(60) == 0
    assert str(controller.failure("ended")).endswith("a warning")
    nodes.stop()


def test_configurations_are_the_users_own_and_have_their_values_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = r"org.apache.kafka.Module required username=\"a\\b\";"
    nodes = Nodes(Layout(tmp_path, 1, (2,), {"sasl.jaas.config": given}), "java", "jars")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    monkeypatch.setattr(sys, "executable", "/bin/true")
    nodes._start_member(1, "id")
    nodes.stop()
    path = tmp_path / "node-1" / "server.properties"
    assert parse_properties(path.read_text())["sasl.jaas.config"] == given
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_format_that_does_not_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("java", timeout)

    monkeypatch.setattr(subprocess, "run", wait)
    nodes = Nodes(Layout(tmp_path, 1, (2,), {}), "java", "jars")
    with pytest.raises(NodeError, match="was not formatted in 120 s"):
        nodes._start_controller("id")


def test_a_cluster_is_ready_when_its_members_tell_clients_of_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes_module, "ASK_AGAIN_S", 0)
    answers = iter([{1}, {1, 2}, {1, 2, 3}, {1}])
    soon = time.monotonic() + 60
    assert wait_until_known(lambda: next(answers), (1, 2, 3), soon)
    assert list(answers) == [{1}]
    assert not wait_until_known(lambda: {1}, (1, 2), time.monotonic() - 1)


@pytest.mark.parametrize("error", [ClientError("closed the connection"), SaslAuthenticationFailedError("a password")])
def test_a_member_that_needs_a_login_is_not_asked_for_nodes(error: Exception) -> None:
    def ask() -> set[int]:
        raise error

    assert wait_until_known(ask, (1, 2), time.monotonic() + 60)
