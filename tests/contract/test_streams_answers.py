"""Streams groups: the same questions to Tidelog and to Apache Kafka, the same answers.

As ``test_answers``, which compares the other APIs; the questions are in ``tests/support/scripts/streams.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.compared import AT_ONCE, compared, two_brokers, unexpected
from tests.support.questions import Broker
from tests.support.scripts import streams
from tests.support.scripts.registry import Entry

pytestmark = [pytest.mark.java, pytest.mark.slow]

BOTH = {"group.streams.initial.rebalance.delay.ms": "0"}
KAFKAS = {
    **AT_ONCE,
    "group.streams.assignment.interval.ms": "0",
    "group.streams.min.assignment.interval.ms": "0",
    "group.streams.assignor.offload.enable": "false",
}

DELIBERATE: dict[str, str] = {}
"""What differs -- question, field and both values, matched from the start -- and the reason."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    with two_brokers(tmp_path_factory.mktemp("streams-answers"), KAFKAS, BOTH) as pair:
        yield pair


@pytest.mark.parametrize("entry", streams.STREAMS_SCRIPTS, ids=lambda entry: entry.run.__name__)
def test_same_answers(brokers: tuple[Broker, Broker], entry: Entry) -> None:
    ranges = [broker.versions()[entry.api_key] for broker in brokers]
    assert ranges[0] == ranges[1]
    assert unexpected(compared(brokers, entry, range(ranges[0][0], ranges[0][1] + 1)), DELIBERATE) == []
