"""Exit codes of CI's script when tests or checks fail, with stubs of all programs that it runs; the number of
workers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.requirements import require_tool

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("gcc", "kcat", "curl", "javac", "mvn", "npm", "python3", "apt-get")
MAKE = """\
echo "$PYTHON" > python.txt
case "$1" in
  test) echo "3 failed, 5 passed in 1.00s"
    test "$TESTS" = 0 || { echo "make: *** [Makefile:1: test] Error $TESTS" >&2; exit 2; } ;;
  check) echo checked; exit "$CHECKS" ;;
  sanitize-quick) exit "$SANITIZED" ;;
esac
"""
PYTEST = 'case "$*" in *--last-failed*) echo "3 passed in 0.50s"; exit "$AGAIN" ;; esac'
GREEN = {"TESTS": "0", "CHECKS": "0", "SANITIZED": "0", "AGAIN": "0"}


def executable(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(directory: Path, **answers: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a directory of its own, where each command exits as the answers say."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", directory / ".ci" / "run")
    for tool in TOOLS:
        executable(directory / "bin" / tool)
    executable(directory / "bin" / "make", MAKE)
    executable(directory / "bin" / "go", "echo go version go1.26.1 linux/amd64")
    executable(directory / ".venv" / "bin" / "pytest", PYTEST)
    executable(directory / ".venv" / "bin" / "python", "echo 3.11.7")
    environment = {"PATH": f"{directory / 'bin'}:{os.environ['PATH']}", **GREEN, **answers}
    command = [str(directory / ".ci" / "run")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_python_that_is_asked_for_compiles_and_tests(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    done = run(tmp_path, PYTHON=str(python))
    assert (tmp_path / "python.txt").read_text() == f"{python}\n"
    assert f"CPython 3.11.7 of {python}" in done.stdout


@pytest.mark.parametrize("is_new", [True, False])
def test_debians_python_compiles_and_tests_where_it_is_new_enough(tmp_path: Path, is_new: bool) -> None:
    debian = tmp_path / "usr" / "python3"
    executable(debian, f'case "$2" in *version_info*) exit {int(not is_new)} ;; esac')
    run(tmp_path, DEBIAN_PYTHON=str(debian))
    assert (tmp_path / "python.txt").read_text() == f"{debian if is_new else 'python3'}\n"


def test_ci_passes_if_all_tests_and_checks_pass(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "checked" in done.stdout
    assert "second run" not in done.stdout


@pytest.mark.parametrize("failed", ["CHECKS", "SANITIZED"])
def test_ci_fails_with_a_check(tmp_path: Path, failed: str) -> None:
    assert run(tmp_path, **{failed: "2"}).returncode == 1


def test_ci_fails_with_a_check_although_failed_tests_pass_again(tmp_path: Path) -> None:
    assert run(tmp_path, TESTS="1", CHECKS="2").returncode == 1


def test_tests_that_pass_when_run_again_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="1")
    assert done.returncode == 0
    assert "tests that needed a second run: 3 passed" in done.stdout


def test_ci_fails_if_tests_fail_twice(tmp_path: Path) -> None:
    assert run(tmp_path, TESTS="1", AGAIN="1").returncode == 1


@pytest.mark.parametrize("code", ["2", "3", "4"])
def test_ci_fails_if_the_tests_ended_early(tmp_path: Path, code: str) -> None:
    """Interrupted, an internal error, wrong usage: what had failed until then may pass, the rest did not run."""
    assert run(tmp_path, TESTS=code).returncode == 1


def test_tests_begin_without_jars_that_take_too_long(tmp_path: Path) -> None:
    """They fetch what they need by themselves, as on a machine where Maven's registry refuses."""
    executable(tmp_path / "bin" / "timeout", f'echo "$*" > {tmp_path / "bounded"}; exit 124')
    assert run(tmp_path).returncode == 0
    assert (tmp_path / "bounded").read_text() == "300 make kafka-jars\n"


def test_an_earlier_second_run_is_not_reported_again(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "retried.txt").write_text("FAILED of yesterday\n")
    assert "yesterday" not in run(tmp_path).stdout


@pytest.mark.parametrize(
    ("processors", "kilobytes", "workers"),
    [(2, 24_600_000, 5), (2, 4_030_000, 4), (16, 65_800_000, 33), (64, 32_900_000, 32), (1, 900_000, 2)],
)
def test_workers_have_a_gigabyte_each(tmp_path: Path, processors: int, kilobytes: int, workers: int) -> None:
    executable(tmp_path / "bin" / "nproc", f"echo {processors}")
    table = tmp_path / "meminfo"
    table.write_text(f"MemTotal:       {kilobytes} kB\nMemFree:        1000 kB\n")
    make = require_tool("make", "apt-get install make")
    command = [make, "--dry-run", "unit", f"MEMORY_TABLE={table}"]
    # Nothing else: a make that runs this test hands its options down.
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert f"--numprocesses={workers} " in done.stdout


@pytest.mark.parametrize(("code", "installers"), [("0", ["uv"]), ("2", ["uv", "pip"])])
def test_pip_installs_the_packages_of_the_tests_if_uv_fails(tmp_path: Path, code: str, installers: list[str]) -> None:
    """An index that only pip.conf names, or a machine for which there is no uv."""
    venv, calls = tmp_path / "venv", tmp_path / "calls"
    executable(venv / "bin" / "python", f'case "$*" in *--editable*) echo "pip $PIP_INDEX_URL" >> {calls} ;; esac')
    uv = f'case "$*" in *--editable*) echo "uv $UV_DEFAULT_INDEX" >> {calls} ;; esac; exit {code}'
    executable(venv / "bin" / "uv", uv)
    (venv / ".build").touch()
    command = [require_tool("make", "apt-get install make"), f"{venv}/.test", f"VENV={venv}"]
    environment = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": "https://packages.example/simple"}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=60)
    assert (venv / ".test").exists()
    assert calls.read_text() == "".join(f"{name} https://packages.example/simple\n" for name in installers)


@pytest.mark.parametrize(("code", "tries"), [("0", ["--offline"]), ("2", ["--offline", "--no-deps"])])
def test_pyspark_is_fetched_if_uv_has_no_wheel_of_it(tmp_path: Path, code: str, tries: list[str]) -> None:
    venv, calls = tmp_path / "venv", tmp_path / "calls"
    executable(venv / "bin" / "python", "")
    note = f'case "$word" in --offline|--no-deps) echo "$word" >> {calls}; exit {code} ;; esac'
    option = f'case "$*" in *pyspark==*) for word; do {note}; done ;; esac'
    executable(venv / "bin" / "uv", option)
    (venv / ".build").touch()
    command = [require_tool("make", "apt-get install make"), f"{venv}/.test", f"VENV={venv}"]
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=60)
    assert calls.read_text().split() == tries


def test_make_help_shows_each_target_that_has_a_text() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    described = [line.partition(":")[0].split() for line in lines if "## " in line and line[0].islower()]
    command = [require_tool("make", "apt-get install make"), "--silent", "help"]
    # Nothing else: a make that runs this test hands its options down.
    environment = {"PATH": os.environ["PATH"]}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in shown.splitlines()] == [name for names in described for name in names]
