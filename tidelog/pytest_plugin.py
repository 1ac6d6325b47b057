"""pytest fixtures: ``tidelog_broker`` is a broker for the whole test session, in a process of its own.

The plugin is installed with Tidelog; a test with the fixture gets a running broker with ``.bootstrap``.
``tidelog_lab`` is a broker with laboratory controls (``.lab``), empty at the beginning of each test. Override the
fixture ``tidelog_config`` (session scope) for configuration keys, and ``tidelog_security`` for TLS, users and ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tidelog.broker_process import Broker

if TYPE_CHECKING:
    from tidelog.broker_security import Security
    from tidelog.laboratory import Snapshot


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


@pytest.fixture(scope="session")
def tidelog_lab_broker(tidelog_config: Mapping[str, object], tidelog_security: Security | None) -> Iterator[Broker]:
    """A running broker with laboratory controls, shared by the tests of the session."""
    with Broker(tidelog_config, security=tidelog_security, lab=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def tidelog_lab_start(tidelog_lab_broker: Broker) -> Snapshot:
    """The first state of the broker with laboratory controls."""
    return tidelog_lab_broker.lab.snapshot()


@pytest.fixture
def tidelog_lab(tidelog_lab_broker: Broker, tidelog_lab_start: Snapshot) -> Broker:
    """A running broker with laboratory controls, without topics and faults."""
    tidelog_lab_broker.lab.restore(tidelog_lab_start)
    return tidelog_lab_broker
