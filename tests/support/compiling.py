"""A plugin for pytest that imports test modules, and collects no test: for processes that are forked.

It takes two thirds of the time of a collection. Hypothesis reads the constants of the imported modules.
"""

from __future__ import annotations

import sys

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem() -> list[pytest.Item]:
    """Make no test of any name in a module."""
    return []


def pytest_collection_finish() -> None:
    """Let Hypothesis read the constants of the imported modules, if it is one of them."""
    if "hypothesis" in sys.modules:
        from tests.support.property_tests import read_constants

        read_constants()
