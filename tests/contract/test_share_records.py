"""Records of share groups that Apache Kafka wrote, read by Tidelog: members in ``__consumer_offsets``, offsets in the
state topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.test_kafka_files import adopt
from tests.contract.test_share_answers import KAFKAS, STATE_TOPIC
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.compared import OVERRIDES, until_ready
from tests.support.questions import Broker
from tests.support.scripts import shares
from tests.support.scripts.registry import write
from tidelog.broker.coordinator.config import GroupConfig
from tidelog.broker.coordinator.group.records import GroupRecordSerde
from tidelog.broker.coordinator.group.shard import GroupShard
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.runtime.replay import Serde, Shard, replay_chunk
from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
from tidelog.broker.coordinator.share_state.records import ShareStateSerde
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, ARCHIVED, AVAILABLE
from tidelog.broker.coordinator.share_state.state import ShareStateShard, StateKey
from tidelog.broker.metadata.image import MetadataCache
from tidelog.log.system.time import ManualTime

pytestmark = [pytest.mark.java, pytest.mark.slow]

NAME = "kafkas"


def replayed(shard: Shard, serde: Serde, directory: Path) -> None:
    """Replay the segments of a partition that Kafka wrote."""
    for segment in sorted(directory.glob("*.log")):
        replay_chunk(shard, serde, segment.read_bytes(), 0, "__share_group_state-0")


def test_kafkas_share_group_is_understood(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "kafka", {**OVERRIDES, **STATE_TOPIC, **KAFKAS}, in_shared_jvm=True) as kafka:
        broker = Broker(kafka.bootstrap)
        until_ready(broker)
        reader = shares.prepare_reader(broker, NAME, 3)
        reader.fetch(1, max_records=30)
        reader.acknowledge(1, (0, 4, [1]), (10, 12, [1]), (13, 13, [2]), (20, 29, [3]))
        reader.acknowledge(1, (5, 5, [1]))
        topic_id = reader.topic_id
        broker.close()
    time = ManualTime()
    (state_directory,) = tmp_path.rglob("__share_group_state-0")
    states = ShareStateShard(CoordinatorTimer(time), time=time)
    replayed(states, ShareStateSerde(), state_directory)
    state = states.read(StateKey(NAME, topic_id, 0))
    assert state is not None
    assert state.start_offset in (5, 6), "it moves with the next write, which the closing connection makes"
    known = {
        offset: (span.state, span.delivery_count)
        for span in state.batches
        for offset in range(span.first, span.last + 1)
    }
    assert [known[offset] for offset in (10, 12, 13, 20, 29)] == [
        *[(ACKNOWLEDGED, 1)] * 2,
        (AVAILABLE, 1),
        *[(ARCHIVED, 1)] * 2,
    ]

    (groups_directory,) = tmp_path.rglob("__consumer_offsets-0")
    groups = GroupShard(
        CoordinatorTimer(time), metadata=MetadataCache(), time=time, config=GroupConfig(), new_uuid=lambda: "id"
    )
    replayed(groups, GroupRecordSerde(), groups_directory)
    group = groups.groups[NAME]
    assert isinstance(group, ShareGroup)
    assert group.initialized[topic_id].partitions == {0}
    assert group.members["m"].subscription.topic_names == (NAME,)
    assert group.members["m"].current.assigned == {topic_id: frozenset({0})}


def test_an_adopted_share_group_continues_where_it_was(tmp_path: Path) -> None:
    """``tidelog adopt`` of a Kafka that stopped; the next member gets what was not done."""
    with ApacheKafka(tmp_path / "kafka", {**OVERRIDES, **STATE_TOPIC, **KAFKAS}, in_shared_jvm=True) as kafka:
        broker = Broker(kafka.bootstrap)
        until_ready(broker)
        reader = shares.prepare_reader(broker, NAME, 3)
        reader.fetch(1, max_records=30)
        reader.acknowledge(1, (0, 4, [1]), (10, 12, [1]), (13, 13, [2]), (20, 29, [3]))
        shares.leave_group(broker, NAME)
    done = adopt(kafka.data_directory, "--data-dir", tmp_path / "tidelog" / "data")
    assert done.returncode == 0, done.stdout + done.stderr
    with TidelogProcess(tmp_path / "tidelog", STATE_TOPIC) as tidelog:
        broker = Broker(tidelog.bootstrap)
        for number in range(2):
            write(broker, NAME, b"after-%d" % number)
        shares.member(broker, NAME, NAME, "n")
        reader = shares.Reader(broker, NAME, NAME, "n")
        answer = reader.fetch(1)
        broker.close()
    (data,) = answer.responses[0].partitions
    assert data.error_code == 0, data
    counts = {
        offset: run.delivery_count
        for run in data.acquired_records
        for offset in range(run.first_offset, run.last_offset + 1)
    }
    assert list(counts) == [*range(5, 10), *range(13, 20), 30, 31]
    assert counts[13] == 2, "it was released, which is stored with its count"
    assert (counts[30], counts[31]) == (1, 1)
