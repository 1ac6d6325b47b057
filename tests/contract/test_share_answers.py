"""Share groups: the same requests to Tidelog and to Apache Kafka get the same responses.

As ``test_answers``, which compares the other APIs; the questions are in ``tests/support/scripts/shares.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.compared import AT_ONCE, collect_differences, two_brokers, unexpected_differences
from tests.support.questions import Broker
from tests.support.scripts import shares
from tests.support.scripts.registry import Entry

pytestmark = [pytest.mark.java, pytest.mark.slow]

STATE_TOPIC = {"share.coordinator.state.topic.num.partitions": "1"}
KAFKAS = {
    **AT_ONCE,
    "group.share.assignment.interval.ms": "0",
    "group.share.min.assignment.interval.ms": "0",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

DELIBERATE = {
    r"share_group_(heartbeat|describe).*epoch": "a group assigns with its first heartbeat, in epoch 1; members compare",
    r"share_fetch.*'share_session_epoch': 0,.*x06.*": "an unknown topic has its own error; Kafka fails",
    r"share_acknowledge.*'acknowledgement_batches': \[\].*\.responses": "a partition without batches is answered too",
    r"read_share_group_state.*state-made-states.*(state_epoch 3 4|start_offset 7 -1|delivery_complete_count 0 -1)": (
        "a state that exists is not created again without a start offset: acknowledged records would come again"
    ),
    r"describe_share_group_offsets.*'group_id': ''.*": "no group is called nothing; Kafka fails",
    r"describe_share_group_offsets.*'topic_name': 'none'.* closed": "an unknown topic beside others; Kafka fails",
}
"""What differs -- question, field and both values, matched from the start -- and the reason."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    with two_brokers(tmp_path_factory.mktemp("share-answers"), KAFKAS, STATE_TOPIC) as pair:
        yield pair


def spread(answer: Any) -> Any:
    """Show acquired records one by one: into which runs they are put is the broker's choice."""
    if isinstance(answer, list):
        return [spread(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    found = {key: spread(value) for key, value in answer.items()}
    if "acquired_records" in answer:
        found["acquired_records"] = sorted(
            f"{offset} x{run['delivery_count']}"
            for run in answer["acquired_records"]
            for offset in range(run["first_offset"], run["last_offset"] + 1)
        )
    return found


@pytest.mark.parametrize("entry", shares.SHARE_SCRIPTS, ids=lambda entry: entry.run.__name__)
def test_same_answers(brokers: tuple[Broker, Broker], entry: Entry) -> None:
    ranges = [broker.versions()[entry.api_key] for broker in brokers]
    assert ranges[0] == ranges[1]
    versions = range(ranges[0][0], ranges[0][1] + 1)
    assert unexpected_differences(collect_differences(brokers, entry, versions, spread), DELIBERATE) == []
