"""pytest fixtures: ``tidelog_broker`` is a broker for the whole test session, in a process of its own.

Installed with Tidelog; a test that takes the fixture gets a running broker with ``.bootstrap``. Override the fixture
``tidelog_config`` (session scope) to give it configuration keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tidelog.broker_process import Broker


@pytest.fixture(scope="session")
def tidelog_config() -> Mapping[str, object]:
    """Configuration keys of the session's broker; none unless overridden."""
    return {}


@pytest.fixture(scope="session")
def tidelog_broker(tidelog_config: Mapping[str, object]) -> Iterator[Broker]:
    """A running broker, empty at first, shared by the tests of the session."""
    with Broker(tidelog_config) as broker:
        yield broker
