"""One log of a member fails while its directory works: the controller elects another leader for this partition alone.

The log's directory is renamed, so that no next segment can be created there.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.cluster_clients import WAIT_S
from tests.support.kafka_python import read_to_end
from tests.support.kraft_node import SHORT_SESSIONS, KraftNode, ports_of_controllers, wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPIC, HURT, OTHER = "t", 101, 102
LED, FOLLOWED, WHOLE = 0, 1, 2
"""Partitions of the topic: the hurt member's logs of the first two fail, one as leader and one as follower."""
PLACES = [[HURT, OTHER], [OTHER, HURT], [HURT, OTHER]]
VALUE = bytes(100_000)
RECORDS = 12
"""More bytes than a segment has."""


def produce(member: MemberNode, partition: int, count: int = RECORDS) -> None:
    """Write records with acks=all. The limit is less than ``replica.lag.time.max.ms``."""
    config = {"bootstrap.servers": member.bootstrap, "linger.ms": 0, "message.timeout.ms": 20_000}
    producer = Producer({**config, "enable.idempotence": True})
    errors: list[object] = []
    for _ in range(count):
        producer.produce(TOPIC, VALUE, partition=partition, on_delivery=lambda error, _: errors.append(error))
        producer.flush(WAIT_S)
    assert errors == [None] * count


def states(member: MemberNode) -> dict[int, tuple[int, list[int]]]:
    """Map partitions to leader and ISR; there are none while the member does not know the new topic."""
    admin = AdminClient({"bootstrap.servers": member.bootstrap})
    try:
        found = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result().partitions
    except KafkaException:
        return {}
    return {one.id: (one.leader.id if one.leader else -1, sorted(node.id for node in one.isr)) for one in found}


def test_another_replica_leads_where_one_log_fails(tmp_path: Path) -> None:
    ports = ports_of_controllers(1)
    controller = KraftNode(tmp_path, 1, ports, overrides=SHORT_SESSIONS, in_shared_jvm=True)
    hurt, other = (MemberNode(tmp_path, number, ports) for number in (HURT, OTHER))
    nodes = (controller, hurt, other)
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.discard)
            node.start()
        admin = AdminClient({"bootstrap.servers": other.bootstrap})
        config = {"segment.bytes": str(1 << 20), "min.insync.replicas": "1"}
        new = NewTopic(TOPIC, len(PLACES), replica_assignment=PLACES, config=config)
        admin.create_topics([new])[TOPIC].result()
        both = [HURT, OTHER]
        healthy = {LED: (HURT, both), FOLLOWED: (OTHER, both), WHOLE: (HURT, both)}
        wait_until(lambda: states(other) == healthy, "all replicas are in sync", WAIT_S)
        for number in healthy:
            produce(other, number, 1)  # then both members have opened the logs
        for number in (LED, FOLLOWED):
            path = hurt.data_directory / f"{TOPIC}-{number}"
            path.rename(path.with_name("away" + path.name))
        for number in healthy:
            produce(other, number)
        failed = {LED: (OTHER, [OTHER]), FOLLOWED: (OTHER, [OTHER]), WHOLE: (HURT, both)}
        wait_until(lambda: states(other) == failed, f"{failed}", WAIT_S)
        hurt.terminate()
        for number in (LED, FOLLOWED):
            path = hurt.data_directory / f"{TOPIC}-{number}"
            path.with_name("away" + path.name).rename(path)
        hurt.start()
        wait_until(lambda: all(isr == both for _, isr in states(other).values()), "all are in sync again", WAIT_S)
        elected = admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(TOPIC, LED), TopicPartition(TOPIC, WHOLE)]
        )
        with contextlib.suppress(KafkaException):
            elected.result()
        wait_until(lambda: states(other) == healthy, "the preferred replicas lead", WAIT_S)
        counts = Counter(record.partition for record in read_to_end(other.bootstrap, TOPIC))
        assert counts == dict.fromkeys(healthy, RECORDS + 1)
