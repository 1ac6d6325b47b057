"""A hook that lets Hypothesis read the project's constants and Unicode's categories before the first property test.

Hypothesis prefers both as values. Otherwise the first property test of each process would take the time: 2.6 s of CPU
time for the constants of 670 modules, 0.3 s once ``.hypothesis`` has them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let Hypothesis read the constants, if a property test was collected."""
    if any(item.get_closest_marker("hypothesis") for item in session.items):
        read_constants()


# Imported before the project's profile is loaded, so its settings are repeated here.
@settings(database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers() | st.text()))
def read_constants(values: list[int | str]) -> None:
    """Draw values, so that Hypothesis reads the constants."""
