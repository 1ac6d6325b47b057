"""Importable names: only ``tidelog``, so that a user's modules may have any other name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMMON_NAMES = ("broker", "cleaner", "log", "pipeline", "protocol")


@pytest.mark.parametrize("name", COMMON_NAMES)
def test_no_common_name_is_importable(name: str) -> None:
    assert importlib.util.find_spec(name) is None
    assert importlib.util.find_spec(f"tidelog.{name}") is not None


def test_every_directory_with_modules_is_a_package() -> None:
    """A directory without an ``__init__`` would be missing from a wheel."""
    folders = {path.parent for name in COMMON_NAMES for path in (ROOT / name).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_a_user_may_have_modules_of_these_names(tmp_path: Path) -> None:
    """The command and every package go on when ``log.py``, ``broker.py`` and ``pipeline/`` of a user come first."""
    for name in COMMON_NAMES:
        (tmp_path / f"{name}.py").write_text("raise ImportError('the module of the user')\n")
    (tmp_path / "pipeline.py").unlink()
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text("raise ImportError('the package of the user')\n")
    program = (
        "import sys, tidelog.broker.server, tidelog.cleaner.log_cleaner, tidelog.pipeline.jobs.export\n"
        "from tidelog.cli import main\n"
        "sys.exit(main(['version']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tidelog" in done.stdout
