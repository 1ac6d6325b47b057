"""Fixtures of the tests of waiting requests: a loop that the test runs, and a purgatory on it."""

from __future__ import annotations

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.replica.purgatory import Purgatory


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def purgatory(loop: ManualLoop) -> Purgatory:
    return Purgatory(loop.timers, loop.call_soon)
