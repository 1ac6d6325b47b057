"""Programs and packages that tests need. If one is missing the test is skipped with a hint; in CI the test fails."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import NoReturn

import pytest


def missing(what: str, install: str) -> NoReturn:
    """Skip the test; fail it with ``CI=true``: CI installs all programs, so a missing one is an error there."""
    reason = f"{what} is missing; install it with: {install}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def require_tool(name: str, install: str) -> str:
    """Return the path of an executable, or skip with the command that installs it."""
    path = shutil.which(name)
    if path is None:
        missing(name, install)
    return path


def require_packages(*names: str) -> None:
    """Skip the test or module if one of these packages is missing, but import none: a worker collects all modules."""
    for name in names:
        if find_spec(name) is None:
            missing(f"the package {name}", "make .venv/.test")
