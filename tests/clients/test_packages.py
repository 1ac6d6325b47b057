"""Files with which other tools start a broker: the image's scripts, as in Apache's image, and the systemd unit."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rivals.process import free_port
from tidelog.broker_process import clean_environment
from tidelog.client.connection import Client
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = str(ROOT / "docker" / "image" / "entrypoint")
RUN = str(ROOT / "docker" / "image" / "run")
CONFLUENT = ROOT / "docker" / "image" / "confluent"
UNIT = ROOT / "docker" / "systemd" / "tidelog.service"
RUNNING = "Transitioning from RECOVERY to RUNNING"
STARTED = "Kafka Server started"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
TIMEOUT_S = 60


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The image's environment: tidelog is on the PATH."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "tidelog").write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog.cli "$@"\n')
    (commands / "tidelog").chmod(0o755)
    return {**clean_environment(), "PATH": f"{commands}:{os.environ['PATH']}", "KAFKA_LOG_DIRS": str(tmp_path / "data")}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class Started:
    """A process with those that it starts, and their output."""

    def __init__(self, environment: dict[str, str], *words: str) -> None:
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, text: str) -> str:
        """Return the output up to the line with ``text``."""
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if text in line:
                return seen
        raise AssertionError(seen)

    def stop(self) -> int:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return self.process.returncode


def test_words_of_the_command_line_are_tidelogs(environment: dict[str, str]) -> None:
    assert run(environment, ENTRYPOINT, "version").stdout.startswith("tidelog ")
    assert "Usage: tidelog" in run(environment, ENTRYPOINT, "--help").stdout


def test_a_shell_or_a_path_is_run_as_it_is(environment: dict[str, str]) -> None:
    assert run(environment, ENTRYPOINT, "sh", "-c", "exit 7").returncode == 7
    assert run(environment, ENTRYPOINT, "/bin/sh", "-c", "exit 8").returncode == 8


def test_testcontainers_starts_a_broker_as_it_starts_apaches_image(environment: dict[str, str], tmp_path: Path) -> None:
    """Its Java module: a shell waits for a script, which says what is advertised and calls /etc/kafka/docker/run."""
    outside, inside = free_port(), free_port()
    script = tmp_path / "testcontainers_start.sh"
    given = environment_of_testcontainers(outside, inside)
    wait = f"while [ ! -f {script} ]; do sleep 0.1; done; exec {script}"
    broker = Started({**environment, **given}, ENTRYPOINT, "sh", "-c", wait)
    advertised = f"PLAINTEXT://localhost:{outside},BROKER://{socket.gethostname()}:{inside}"
    give_script(script, f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS={advertised}\nexec {RUN}\n")
    try:
        broker.read_until(RUNNING)
        assert_testcontainers(broker, outside)
    finally:
        code = broker.stop()
    assert code == 0


# What Testcontainers' modules for Confluent's images have a shell do, once they know what is to be advertised.
CONFLUENT_STARTS = {
    "go": """#!/bin/bash
source {place}/bash-config
export KAFKA_ADVERTISED_LISTENERS="{advertised}"
sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' {place}/configure
echo 'kafka-storage format -t "$(kafka-storage random-uuid)" -c /etc/kafka/kafka.properties' >> {place}/configure
echo '' > {place}/ensure
{place}/configure
{place}/launch
""",
    "python": """#!/bin/bash
sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' {place}/configure
echo 'kafka-storage format -t 4L6g3nShT-eMCtK--X86sw -c /etc/kafka/kafka.properties' >> {place}/configure
export KAFKA_ADVERTISED_LISTENERS={advertised}
. {place}/bash-config
{place}/configure
{place}/launch
""",
    "node": """#!/bin/bash
export KAFKA_ADVERTISED_LISTENERS={advertised}
echo '' > {place}/ensure
{place}/run
""",
}


@pytest.mark.parametrize("language", CONFLUENT_STARTS)
def test_testcontainers_starts_a_broker_as_it_starts_confluents_images(
    environment: dict[str, str], tmp_path: Path, language: str
) -> None:
    """The modules for Go, Python and Node: by scripts of those images, some of which they change before."""
    place = tmp_path / "confluent"
    shutil.copytree(CONFLUENT, place)
    outside, inside = free_port(), free_port()
    script = tmp_path / "testcontainers_start.sh"
    given = {
        **environment_of_testcontainers(outside, inside),
        "KAFKA_BROKER_ID": "1",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
        "KAFKA_REST_BOOTSTRAP_SERVERS": f"PLAINTEXT://0.0.0.0:{outside}",
        "KAFKA_CONFLUENT_SUPPORT_METRICS_ENABLE": "false",
    }
    broker = Started({**environment, **given}, "sh", "-c", f"while [ ! -f {script} ]; do sleep 0.1; done; {script}")
    advertised = f"PLAINTEXT://localhost:{outside},BROKER://{socket.gethostname()}:{inside}"
    give_script(script, CONFLUENT_STARTS[language].format(place=place, advertised=advertised))
    try:
        assert STARTED in broker.read_until(RUNNING)
        assert_testcontainers(broker, outside)
    finally:
        broker.stop()


def environment_of_testcontainers(outside: int, inside: int) -> dict[str, str]:
    """Return the variables that all of its modules give."""
    return {
        "CLUSTER_ID": CLUSTER_ID,
        "KAFKA_LISTENERS": f"PLAINTEXT://:{outside},BROKER://:{inside},CONTROLLER://:9094",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_NODE_ID": "1",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }


def give_script(script: Path, text: str) -> None:
    """Lay a script where a shell waits for it, whole at once."""
    ready = script.with_name("ready.sh")
    ready.write_text(text)
    ready.chmod(0o777)
    ready.rename(script)


def assert_testcontainers(broker: Started, outside: int) -> None:
    """Fail unless a client finds the broker of Testcontainers as it was advertised."""
    broker.read_until("tidelog ready on ")
    with Client(f"localhost:{outside}") as client:
        found = client.call(MetadataRequest(topics=[]), MetadataResponse)
    assert found.cluster_id == CLUSTER_ID
    assert [(one.host, one.port) for one in found.brokers] == [("localhost", outside)]


def test_arguments_of_the_start_script_are_variables(environment: dict[str, str]) -> None:
    done = run(environment, RUN, "KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:no port")
    assert done.returncode == 2
    assert "no port" in done.stderr


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which a service manager listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messages:
        messages.bind(str(tmp_path / "notify"))
        messages.settimeout(TIMEOUT_S)
        yield messages


def test_a_service_manager_is_notified_of_a_broker(environment: dict[str, str], notified: socket.socket) -> None:
    given = {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "60000000"}
    broker = Started({**environment, **given}, ENTRYPOINT, "serve", "--port", "0", "--host", "127.0.0.1")
    try:
        heard = [notified.recv(100), notified.recv(100)]
    finally:
        code = broker.stop()
    assert heard == [b"READY=1", b"WATCHDOG=1"]
    assert (notified.recv(100), code) == (b"STOPPING=1", 0)


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing; install it with: apt-get install systemd")
    text = UNIT.read_text().replace("/opt/tidelog/bin/tidelog", sys.executable)
    assert complaints(analyze, tmp_path / UNIT.name, text) == []
    wrong = text.replace("[Service]", "[Service]\nNoSuchKey=1")
    assert len(complaints(analyze, tmp_path / f"wrong-{UNIT.name}", wrong)) == 1
    rated = run({**os.environ}, analyze, "security", "--offline=true", "--threshold=30", str(tmp_path / UNIT.name))
    assert rated.returncode == 0, rated.stdout[-500:]


def complaints(analyze: str, unit: Path, text: str) -> list[str]:
    """Return the lines of systemd-analyze that are about a unit; it looks at units of the machine beside it."""
    unit.write_text(text)
    done = run({**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}, analyze, "verify", str(unit))
    return [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
