"""The command line as users and service managers run it: real processes, signals, exit codes, wrong configuration."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import tidelog
from tests.support.broker import free_port
from tidelog.broker_process import BrokerProcessError, clean_environment
from tidelog.client import Client
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

TIDELOG = (sys.executable, "-I", "-m", "tidelog.cli")
TIMEOUT_S = 60


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*TIDELOG, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**clean_environment(), **(environment or {})},
        check=False,
    )


def start(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start ``tidelog serve``, and wait until it is ready."""
    process = subprocess.Popen(
        [*TIDELOG, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**clean_environment(), **(environment or {})},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("tidelog ready on "), (line, process.wait(TIMEOUT_S))
    return process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tidelog.Broker]:
    with tidelog.Broker(data_dir=tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    process = start("--data-dir", str(tmp_path))
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == 0
    assert process.stdout is not None
    assert re.fullmatch(r"console http://127\.0\.0\.1:\d+\n", process.stdout.read()), "nothing else is printed"
    process.stdout.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_serve_runs_with_closed_standard_descriptors(tmp_path: Path, closed: str) -> None:
    """Files it opens get none of their numbers: no log line goes into a segment, and libuv closes what it has."""
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" {closed}', "-", *TIDELOG, "serve", "--port", "0", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tidelog ready on ")
    opened = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)]
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()
    assert all(path.startswith(("/dev/", "pipe:")) for path in opened), opened


def test_ping_tells_whether_a_broker_answers(broker: tidelog.Broker) -> None:
    answered = run("ping", "--bootstrap", broker.bootstrap)
    assert (answered.returncode, answered.stderr) == (0, "")
    assert answered.stdout.startswith(f"{broker.bootstrap} answers: ")
    address = broker.bootstrap
    broker.stop()
    silent = run("ping", "--bootstrap", address)
    assert (silent.returncode, silent.stdout) == (1, "")
    assert len(silent.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--override", "num.partitions=none"], {}, "'none' for configuration num.partitions"),
        ([], {"KAFKA_LOG_RETENTION_MS": "a week"}, "'a week' for configuration log.retention.ms"),
        (["--override", "log.retention.ms=-7"], {}, "'-7' for configuration log.retention.ms; allowed: -1 or more"),
        (["--data-dir", ""], {}, "log.dirs"),
        (["--port", "65536"], {}, "listeners"),
        (["--override", "listeners=TLS://:9092"], {}, "listeners"),
        (["--config", "no-such-file"], {}, "no-such-file"),
    ],
)
def test_wrong_configuration_is_one_line_and_code_2(
    tmp_path: Path, arguments: Sequence[str], environment: dict[str, str], message: str
) -> None:
    ended = run("serve", "--data-dir", str(tmp_path), *arguments, environment=environment)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=\\u12")
    ended = run("serve", "--data-dir", str(tmp_path / "data"), "--config", str(path))
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert str(path) in line


def test_an_impossible_data_directory_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    ended = run("serve", "--port", "0", "--data-dir", str(file))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"tidelog serve: no data directory can be used: {file} is a file, expected a directory (--data-dir)\n"
    )


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    ended = run("serve", "--host", "nowhere.invalid", "--port", "0", "--data-dir", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("tidelog serve: cannot listen on PLAINTEXT://nowhere.invalid:0: ")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--timeout", "-1"], {}, "--timeout"),
        (["--bootstrap", "here:there"], {}, "here:there"),
        (["--local"], {"KAFKA_NUM_PARTITIONS": "none"}, "num.partitions"),
    ],
)
def test_a_ping_with_wrong_arguments_tells_which(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    ended = run("ping", *arguments, environment=environment)
    assert ended.returncode in (1, 2)
    assert message in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_second_broker_on_one_data_directory_is_refused(broker: tidelog.Broker) -> None:
    ended = run("serve", "--port", "0", "--data-dir", str(broker.data_dir))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"{broker.data_dir} is in use" in ended.stderr.splitlines()[-1]
    assert run("ping", "--bootstrap", broker.bootstrap).returncode == 0


def test_logs_of_a_running_broker_are_not_checked(broker: tidelog.Broker) -> None:
    """A half-written batch would look like damage."""
    with Client(broker.bootstrap) as client:
        client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse)
    directory = broker.data_dir
    assert directory is not None
    for path in (directory, directory / "t-0"):
        ended = run("check", str(path))
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == f"tidelog check: a broker runs on {directory}: stop it first\n"
    broker.stop()
    for path in (directory, directory / "t-0"):
        assert f"{directory}/t-0: in order\n" in run("check", str(path)).stdout


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "belongs to cluster .{22}, not to AAAAAAAAAAAAAAAAAAAAAA"),
        ("node.id=7", r"belongs to a Kafka cluster with other nodes \(1\)"),
    ],
)
def test_a_directory_of_another_cluster_or_node_is_refused(tmp_path: Path, setting: str, reason: str) -> None:
    tidelog.Broker(data_dir=tmp_path).start().stop()
    ended = run("serve", "--port", "0", "--data-dir", str(tmp_path), "--override", setting)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.match(f"tidelog serve: .*{tmp_path} {reason}", ended.stderr), ended.stderr


@pytest.mark.parametrize("setting", ["process.roles=controller", "controller.quorum.voters=1@a:9093,2@b:9093"])
def test_one_node_of_a_cluster_is_refused_in_one_line(tmp_path: Path, setting: str) -> None:
    ended = run("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--override", setting)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith(f"tidelog serve: {setting}")
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_reported(broker: tidelog.Broker, tmp_path: Path) -> None:
    port = broker.bootstrap.rpartition(":")[2]
    ended = run("serve", "--port", port, "--data-dir", str(tmp_path / "other"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"tidelog serve: cannot listen on PLAINTEXT://127.0.0.1:{port}: "), ended.stderr


def test_kafkas_own_variables_configure_it(tmp_path: Path) -> None:
    environment = {
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_NODE_ID": "3",
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,CONTROLLER://:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "3@localhost:9093",
        "KAFKA_LOG_DIRS": str(tmp_path),
    }
    process = start(environment=environment)
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0
    assert process.stdout is not None
    process.stdout.close()
    text = (tmp_path / "meta.properties").read_text()
    assert "cluster.id=5L6g3nShT-eMCtK--X86sw" in text
    assert "node.id=3" in text


def test_a_compose_file_for_apaches_image_works_unchanged(tmp_path: Path) -> None:
    inner, outer = free_port(), free_port()
    environment = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT_HOST://localhost:{outer},PLAINTEXT://127.0.0.1:{inner}",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
        "KAFKA_LISTENERS": f"CONTROLLER://:29093,PLAINTEXT_HOST://:{outer},PLAINTEXT://:{inner}",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_LOG_DIRS": str(tmp_path),
    }
    process = subprocess.Popen(
        [*TIDELOG, "serve", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean_environment(), **environment},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tidelog ready on ")
    try:
        for host, port in (("localhost", outer), ("127.0.0.1", inner)):
            with Client(f"{host}:{port}") as client:
                (broker,) = client.call(MetadataRequest(topics=[]), MetadataResponse).brokers
            assert (broker.host, broker.port) == (host, port), "each listener answers with its own address"
        assert run("ping", "--local", environment=environment).returncode == 0
    finally:
        process.terminate()
    _, errors = process.communicate(timeout=TIMEOUT_S)
    printed = [line for line in errors.splitlines() if "turn_clock" not in line]  # a busy machine has slow turns
    assert (process.returncode, printed) == (0, []), "no warning about any of these variables"


def test_files_of_the_environment_come_first_and_may_be_missing(tmp_path: Path) -> None:
    defaults = tmp_path / "defaults.properties"
    defaults.write_text(f"log.dirs={tmp_path}/data\nnode.id=5\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA")
    files = f"{defaults}:{tmp_path}/missing.properties"
    process = start(environment={"TIDELOG_CONFIG_FILES": files, "KAFKA_NODE_ID": "6"})
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0
    assert process.stdout is not None
    process.stdout.close()
    text = (tmp_path / "data" / "meta.properties").read_text()
    assert "node.id=6" in text
    assert "cluster.id=AAAAAAAAAAAAAAAAAAAAAA" in text


def test_a_broker_of_ones_own_restarts_on_its_data(broker: tidelog.Broker) -> None:
    address, pid = broker.bootstrap, broker.pid
    broker.restart()
    assert broker.bootstrap == address
    assert broker.pid != pid
    assert broker.kill() == -signal.SIGKILL
    assert broker.start().bootstrap == address


def test_a_directory_of_its_own_goes_with_it() -> None:
    with tidelog.Broker() as broker:
        directory = broker.data_dir
        assert directory is not None
        assert directory.exists()
        assert "Traceback" not in broker.log_text()
    assert not directory.exists()


def test_a_broker_that_cannot_start_tells_why() -> None:
    with pytest.raises(BrokerProcessError, match=r"num\.partitions"):
        tidelog.Broker({"num.partitions": 0}).start()


def test_the_configuration_of_a_broker_is_not_on_the_command_line_and_its_file_goes_once_it_is_read() -> None:
    with tidelog.Broker({"ssl.keystore.password": "secret", "num.partitions": 3}) as broker:
        for _ in range(2):
            words = Path(f"/proc/{broker.pid}/cmdline").read_text().split("\0")
            assert not any("secret" in word for word in words)
            file = Path(words[words.index("--config") + 1])
            assert not file.parent.exists()
            broker.restart()


def test_a_broker_ends_with_the_killed_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
        import sys, time, tidelog
        broker = tidelog.Broker(data_dir={str(tmp_path)!r}).start()
        print(broker.pid, flush=True)
        time.sleep(60)
    """
    starter = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait(TIMEOUT_S)
    assert starter.stdout.read() == ""
    starter.stdout.close()
    waiter = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(waiter, select.POLLIN)
    readable = poller.poll(TIMEOUT_S * 1000)
    os.close(waiter)
    assert readable, "the broker is still there"


def test_the_pytest_plugin_gives_a_running_broker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.fixture(scope="session")
            def tidelog_config():
                return {"num.partitions": 3}
            """
        )
    )
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
            from tidelog.client import Client

            def test_topics_have_the_configured_partitions(tidelog_broker):
                with Client(tidelog_broker.bootstrap) as client:
                    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
                    (topic,) = client.call(request, MetadataResponse).topics
                assert len(topic.partitions) == 3
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tidelog.pytest_plugin"]
    ended = subprocess.run(
        [*command, "-p", "no:randomly", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
