"""A test that ends the process of its worker: it fails once, and all other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
PASSING = """\
import pytest

@pytest.mark.parametrize("number", range(3))
def test_number(number):
    pass
"""


def test_a_test_that_ends_its_worker_fails_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ending.py").write_text(ENDING)
    for name in ("first", "second"):
        (tmp_path / f"test_{name}.py").write_text(PASSING)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["-p", "xdist.plugin", "-p", "no:cacheprovider", "--numprocesses=2", "--dist=loadfile", "-c", "/dev/null"]
    options += [f"--rootdir={tmp_path}", "-o", f"pythonpath={ROOT}"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_ending.py::test_number[2]" in done.stdout
    assert "1 failed, 11 passed" in done.stdout
