"""Apache Kafka's consumers roll a group from the classic protocol to the consumer protocol and back, under load.

``java/Roll.java`` has the steps: two classic members, replaced one by one by members of the consumer protocol, and
these by classic ones again. ``--broker=kafka`` shows that Apache Kafka's broker does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.java_tools import run_program
from tests.support.jvm import MIGRATION

pytestmark = [pytest.mark.java, pytest.mark.slow]

ASSIGNORS = "org.apache.kafka.clients.consumer"
OVERRIDES = {"group.consumer.min.heartbeat.interval.ms": "100", "group.consumer.heartbeat.interval.ms": "300"}
TIMEOUT_S = 120
STEPS = [
    "classic: Classic",
    "with c: Consumer",
    "one gone: Consumer",
    "with d: Consumer",
    "one gone: Consumer",
    "with e-classic: Consumer",
    "one gone: Consumer",
    "with f-classic: Consumer",
    "one gone: Classic",
    "twice 0",
    "missing 0",
]


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kind: Any = ApacheKafka if request.config.getoption("--broker") == "kafka" else TidelogProcess
    with kind(tmp_path_factory.mktemp("migration"), OVERRIDES) as process:
        yield process


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_a_group_is_rolled_there_and_back(broker: BrokerProcess, assignor: str) -> None:
    topic = f"rolled-{assignor}"
    Admin(broker.bootstrap).create(topic, 4)
    words = [f"bootstrap={broker.bootstrap}", f"topic={topic}", f"assignor={ASSIGNORS}.{assignor}"]
    done = run_program(MIGRATION, words, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == STEPS, done.stdout + done.stderr
