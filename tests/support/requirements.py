"""Programs that tests need beside Python. If one is missing the test is skipped with a hint; in CI the test fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def missing(what: str, install: str) -> NoReturn:
    """Skip the test; fail it with ``CI=true``: CI installs all programs, so a missing one is an error there."""
    reason = f"{what} is missing; install it with: {install}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_tool(name: str, install: str) -> str:
    """Return the path of an executable, or skip with the command that installs it."""
    path = shutil.which(name)
    if path is None:
        missing(name, install)
    return path
