"""Programs that tests need beside Python. If one is missing the test skips with a hint; in CI it fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def missing(what: str, install: str) -> NoReturn:
    """Skip the test, or fail it where ``CI=true``: CI installs everything, so a gap there is a broken CI script."""
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
