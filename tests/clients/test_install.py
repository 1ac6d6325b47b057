"""``pip install`` of the checkout: what it puts into an empty directory, and that the command runs from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import missing

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "data", "__pycache__", "*.egg-info", ".*_cache")
INSTALL = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which a copy of the checkout is installed without its dependencies."""
    source, target = tmp_path_factory.mktemp("source") / "tidelog", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    done = subprocess.run([*INSTALL, "--target", str(target), str(source)], capture_output=True, text=True, check=False)
    if done.returncode and "setuptools" in done.stderr and "No matching distribution" in done.stderr:
        missing("setuptools 77", "pip install 'setuptools>=77'")
    assert done.returncode == 0, done.stderr
    return target


def test_only_two_names_are_installed(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"tidelog", "pyspark_tidelog", "bin"}


def test_files_are_installed_not_links(installed: Path) -> None:
    assert [path for path in installed.rglob("*") if path.is_symlink()] == []
    modules = {path.relative_to(installed / "tidelog") for path in (installed / "tidelog" / "broker").rglob("*.py")}
    here = {path.relative_to(ROOT) for path in (ROOT / "broker").rglob("*.py")}
    assert modules == here


def test_the_command_runs_from_there(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "log.py").write_text("raise ImportError('the module of the user')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(installed)])}
    command = [sys.executable, str(installed / "bin" / "tidelog"), "version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tidelog ")
