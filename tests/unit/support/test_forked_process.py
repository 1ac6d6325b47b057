"""Forked processes of ``tidelog``: they get what an exec would have given them, and end as other processes do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import unit_cost
from tests.support.broker import TidelogProcess
from tests.support.forked_process import SERVE, ForkedProcess, ForkServer, can_fork, fork_server, shared
from tests.support.power.recording import RecordedBroker
from tests.support.power.trace import read_trace
from tests.support.power.workloads import SMALL


@pytest.fixture
def server() -> ForkServer:
    return fork_server()


def fork(server: ForkServer, directory: Path, *words: str) -> tuple[ForkedProcess, Path]:
    """Fork a process. Returns it, and the file of its standard error."""
    errors = directory / "errors"
    with errors.open("ab") as file:
        return ForkedProcess(server, words, shared(os.environ), file.fileno()), errors


def test_a_command_prints_and_ends(server: ForkServer, tmp_path: Path) -> None:
    process, _ = fork(server, tmp_path, "version")
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.read().startswith(b"tidelog ")
    assert process.wait(10) == process.poll() == 0


def test_an_error_is_in_its_file_and_the_exit_code(server: ForkServer, tmp_path: Path) -> None:
    process, errors = fork(server, tmp_path, "serve", "--override", "num.partitions=0")
    assert process.wait(10) == 2
    assert "num.partitions" in errors.read_text()
    assert process.stdout is not None
    process.stdout.close()


def test_the_directory_is_that_of_the_caller_and_the_session_is_its_own(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process, _ = fork(server, tmp_path, "serve", "--data-dir", "data", "--port", "0")
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith(b"tidelog ready")
        assert os.getsid(process.pid) == process.pid
        assert (tmp_path / "data").exists()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.001)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        process.send_signal(signal.SIGTERM)  # it has ended


def test_the_time_of_an_ended_process_counts(server: ForkServer, tmp_path: Path) -> None:
    before = unit_cost.cpu_seconds()
    with TidelogProcess(tmp_path / "broker") as broker:
        assert isinstance(broker.process, ForkedProcess)
        own = unit_cost.cpu_seconds() - before
    assert unit_cost.cpu_seconds() - before > own


def test_the_server_has_not_imported_numpy_which_reads_a_variable_of_its_own(
    server: ForkServer, tmp_path: Path
) -> None:
    process, _ = fork(server, tmp_path, "version")  # the server has imported everything when it answers
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert "crc32c" in mapped
    assert "numpy" not in mapped


def test_a_forked_broker_has_the_preloaded_library_with_variables_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with RecordedBroker(tmp_path / name, SMALL) as broker:
            assert isinstance(broker.process, ForkedProcess)
            broker.terminate()
        names = {step.other for step in read_trace(broker.trace, broker.root) if step.operation in "CMR"}
        assert {"data", "data/meta.properties"} <= names


def test_what_differs_from_the_tests_is_started_in_the_usual_way() -> None:
    environment = {**os.environ, "KAFKA_LOG_DIRS": "/tmp", "PYTEST_CURRENT_TEST": "another"}
    assert can_fork([*SERVE, "serve"], environment)
    assert can_fork([*SERVE, "serve"], {**environment, "OPENBLAS_NUM_THREADS": "1"})
    assert not can_fork([*SERVE, "serve"], {**environment, "LANG": "tlh"})
    assert not can_fork([*SERVE, "serve"], {**environment, "LD_PRELOAD": "libfaketime.so.1"})
    assert not can_fork(["nice", *SERVE, "serve"], environment)
    assert not can_fork([sys.executable, "-m", "tidelog.cli", "serve"], environment)
