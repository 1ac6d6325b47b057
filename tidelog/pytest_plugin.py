"""pytest fixtures: ``tidelog_broker`` is a broker for the whole test session, in a process of its own.

Installed with Tidelog; a test that takes the fixture gets a running broker with ``.bootstrap``. Override the fixture
``tidelog_config`` (session scope) to give it configuration keys, and ``tidelog_security`` to give it TLS, users and
ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tidelog.broker_process import Broker

if TYPE_CHECKING:
    from tidelog.broker_security import Security


@pytest.fixture(scope="session")
def tidelog_config() -> Mapping[str, object]:
    """Configuration keys of the session's broker; none unless overridden."""
    return {}


@pytest.fixture(scope="session")
def tidelog_security() -> Security | None:
    """TLS, users and ACLs of the session's broker; none unless overridden."""
    return None


@pytest.fixture(scope="session")
def tidelog_broker(tidelog_config: Mapping[str, object], tidelog_security: Security | None) -> Iterator[Broker]:
    """A running broker, empty at first, shared by the tests of the session."""
    with Broker(tidelog_config, security=tidelog_security) as broker:
        yield broker
