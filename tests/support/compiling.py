"""A plugin for pytest that imports test modules, so that they and their packages are compiled, and collects no test.

Use: ``PYTHONPATH=src pytest -p tests.support.compiling``. It takes two thirds of the time of a collection. Hypothesis
keeps what it has read of the imported modules in ``.hypothesis``.
"""

from __future__ import annotations

import pytest

from tests.support.property_tests import read_constants


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem() -> list[pytest.Item]:
    """Make no test of any name in a module."""
    return []


def pytest_collection_finish() -> None:
    """Let Hypothesis read the constants of the imported modules."""
    read_constants()
