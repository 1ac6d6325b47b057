"""Workers that end: by a test, which then fails once while all others run, and by Ctrl-C or a kill of the whole run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORKED = """\
from tests.support.forked_workers import pytest_xdist_setupnodes
"""
CONFTEST = """\
from tests.support.scheduling import FamilyScheduling

def pytest_xdist_make_scheduler(config, log):
    return FamilyScheduling(config, log)
"""
ENDING = """\
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test_number(number):
    if number == 2:
        os._exit(3)
"""
IMPORTED = """\
import os

IMPORTED_BY = os.getpid()

def test_the_worker_is_forked_from_the_process_that_has_imported_this():
    assert os.getppid() == IMPORTED_BY
"""
WAITING = """\
import time
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(2))
def test_waits(number):
    Path(__file__).with_name(f"waits-{number}").touch()
    time.sleep(600)
"""
ABANDONED = """\
import os
import signal
import time
from pathlib import Path

def test_waits_while_its_connection_is_closed():
    run = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    for pid in Path(f"/proc/{run}/task/{run}/children").read_text().split():
        if b"forked_worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGKILL)
    time.sleep(600)
"""
END_S = 60
PASSING = """\
import pytest

@pytest.mark.parametrize("number", range(3))
def test_number(number):
    pass
"""


def run(directory: Path, workers: int = 2) -> subprocess.Popen[str]:
    """Start pytest with workers for the files of a directory."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["-p", "xdist.plugin", "-p", "no:cacheprovider", f"--numprocesses={workers}", "-c", "/dev/null"]
    options += [f"--rootdir={directory}", "-o", f"pythonpath={ROOT}"]
    command = [sys.executable, "-m", "pytest", *options, str(directory)]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def is_running(group: int) -> bool:
    """Return whether a process of a process group is left, and its parent has not yet learned of its end."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("is_forked", [False, True], ids=["started", "forked"])
def test_a_test_that_ends_its_worker_fails_and_the_others_run(tmp_path: Path, is_forked: bool) -> None:
    (tmp_path / "conftest.py").write_text(FORKED + CONFTEST if is_forked else CONFTEST)
    (tmp_path / "test_ending.py").write_text(ENDING)
    (tmp_path / "test_first.py").write_text(PASSING)
    (tmp_path / "test_second.py").write_text(IMPORTED if is_forked else PASSING)
    with run(tmp_path) as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1, printed
    assert "FAILED test_ending.py::test_number[2]" in printed
    assert f"1 failed, {9 if is_forked else 11} passed" in printed


def test_a_worker_whose_connection_is_closed_is_killed_and_another_one_is_forked(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(FORKED + CONFTEST)
    (tmp_path / "test_abandoned.py").write_text(ABANDONED)
    (tmp_path / "test_later.py").write_text(IMPORTED)
    with run(tmp_path, workers=1) as process:
        printed, _ = process.communicate(timeout=END_S)
    assert process.returncode == 1, printed
    assert "1 failed, 1 passed" in printed, printed


@pytest.mark.parametrize("is_killed", [False, True], ids=["Ctrl-C", "killed"])
def test_no_process_is_left_of_a_run_that_is_ended(tmp_path: Path, is_killed: bool) -> None:
    (tmp_path / "conftest.py").write_text(FORKED)
    (tmp_path / "test_waiting.py").write_text(WAITING)
    with run(tmp_path) as process:
        deadline = time.monotonic() + END_S
        while len(list(tmp_path.glob("waits-*"))) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        if is_killed:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=END_S)
        while is_running(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
