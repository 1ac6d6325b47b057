"""Messages of `tidelog serve` when it cannot start, and when it stops: one clear line that says what to do."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from tidelog.broker_process import clean_environment

TIDELOG = (sys.executable, "-I", "-m", "tidelog")
TIMEOUT_S = 60


def serve(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a broker that is to end by itself: standard input closes at once."""
    return subprocess.run(
        [*TIDELOG, "serve", "--until-stdin-closes", "--log-level", "warning", *words],
        input="", capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment(), check=False,
    )  # fmt: skip


def refusal(code: int, *words: str) -> str:
    """Run a broker that does not start, and return its one line."""
    ended = serve(*words)
    assert (ended.returncode, ended.stdout) == (code, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tidelog serve: ")
    return line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num.partitons=3", "--override num.partitons: unknown configuration key; the nearest is num.partitions"),
        ("no.such.thing=3", "--override no.such.thing: unknown configuration key"),
        ("listener.name.a.max.connections=3", "--override listener.name.a.max.connections: unknown configuration key"),
        ("default.replication.factor=3", "default.replication.factor=3"),
        ("admin.listener=foo", "admin.listener; allowed: HOST:PORT with a port from 0 to 65535, or nothing"),
        ("admin.listener=127.0.0.1:99999", "admin.listener; allowed: HOST:PORT with a port from 0 to 65535"),
        ("schema.registry.listener=127.0.0.1:-1", "schema.registry.listener; allowed: HOST:PORT with a port from 0"),
    ],
)
def test_an_impossible_configuration_is_refused(tmp_path: Path, override: str, message: str) -> None:
    data = tmp_path / "data"
    assert message in refusal(2, "--port", "0", "--data-dir", str(data), "--override", override)
    assert not data.exists()


@pytest.mark.parametrize(
    "override", ["log.cleaner.threads=1", "zookeeper.connect=x", "listener.name.plaintext.ssl.client.auth=none"]
)
def test_keys_of_kafka_without_effect_are_accepted(tmp_path: Path, override: str) -> None:
    assert serve("--port", "0", "--data-dir", str(tmp_path), "--override", override).returncode == 0


def test_a_data_directory_that_is_a_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    line = refusal(1, "--port", "0", "--data-dir", str(file))
    assert f"{file} is a file, expected a directory (--data-dir)" in line


def test_a_data_directory_in_use_names_the_process_that_has_it(tmp_path: Path) -> None:
    with tidelog.Broker(data_dir=tmp_path) as broker:
        line = refusal(1, "--port", "0", "--data-dir", str(tmp_path))
        assert f"{tmp_path} is in use by process {broker.pid}" in line
        assert "--data-dir" in line


def test_a_taken_port_leaves_no_directory_and_says_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(1, "--port", str(port), "--data-dir", str(data))
    assert f"127.0.0.1:{port}: Address already in use" in line
    assert "--port" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["admin.listener", "schema.registry.listener"])
def test_a_taken_port_of_an_http_interface_leaves_no_directory_and_is_named(tmp_path: Path, key: str) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("--port", "0", "--data-dir", str(data), "--override", f"{key}={address}")
        message = f"tidelog serve: cannot listen on {address} ({key}): Address already in use"
        assert refusal(1, *words) == message
        assert not data.exists()
        data.mkdir()
        assert serve(*words).stderr.splitlines()[-1] == message


def test_a_host_of_the_admin_interface_that_is_not_known_is_named(tmp_path: Path) -> None:
    words = ("--override", "admin.listener=nowhere.invalid:1", "--override", "admin.authentication=none")
    line = refusal(1, "--port", "0", "--data-dir", str(tmp_path / "data"), *words)
    assert line.startswith("tidelog serve: cannot listen on nowhere.invalid:1 (admin.listener): ")


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "server.properties"
    assert f"--config {missing}: No such file or directory" in refusal(2, "--config", str(missing))


def test_a_standard_input_that_cannot_close_is_reported(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*TIDELOG, "serve", "--until-stdin-closes", "--port", "0", "--data-dir", str(tmp_path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment(),
        check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "--until-stdin-closes: expected a pipe as standard input, not a file or /dev/null" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_logged(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*TIDELOG, "serve", "--port", "0", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tidelog ready on ")
    process.send_signal(number)
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    lines = log.splitlines()
    assert f"the broker stops: {number.name}" in log
    assert lines[-1].endswith("the broker has stopped")
