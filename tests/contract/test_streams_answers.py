"""Streams groups: the same requests to Tidelog and to Apache Kafka get the same responses.

As ``test_answers``, which compares the other APIs; the questions are in ``tests/support/scripts/streams.py`` and
``streams_life.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.compared import collect_differences, two_brokers, unexpected_differences
from tests.support.questions import Broker
from tests.support.scripts import streams_life
from tests.support.scripts.registry import Entry

pytestmark = [pytest.mark.java, pytest.mark.slow]

BOTH = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.max.size": "3",
}
KAFKAS = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

DELIBERATE = {
    r"streams_group_heartbeat.*'streams-e'.*7003.*user_endpoint\.port": "a new endpoint is told; Kafka tells the old",
    r"streams_group_heartbeat.*'streams-s'.*(active|standby|warmup)_tasks": "a task given back is no hindrance to its "
    "own member's copy of it; in Kafka it is until the heartbeat after",
    r"streams_group_heartbeat.*'streams-f'.*'client_tags': \[\]": "who is a member may join again when the group is "
    "full; Kafka's code says that it means so, and refuses",
}
"""What differs -- question, field and both values, matched from the start -- and the reason."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    with two_brokers(tmp_path_factory.mktemp("streams-answers"), KAFKAS, BOTH) as pair:
        yield pair


@pytest.mark.parametrize("entry", streams_life.STREAMS_SCRIPTS, ids=lambda entry: entry.run.__name__)
def test_same_answers(brokers: tuple[Broker, Broker], entry: Entry) -> None:
    ranges = [broker.versions()[entry.api_key] for broker in brokers]
    assert ranges[0] == ranges[1]
    assert (
        unexpected_differences(collect_differences(brokers, entry, range(ranges[0][0], ranges[0][1] + 1)), DELIBERATE)
        == []
    )
