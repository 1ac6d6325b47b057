"""Offset commits that a group or a transaction refuses: missing topics and partitions are still reported as unknown, as
by Apache Kafka."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.unit.broker.handlers.test_coordinator_handlers import World
from tidelog.broker.coordinator.group.coordinator import GroupCoordinator
from tidelog.broker.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.broker.handlers.partition_chunks import CHUNK
from tidelog.broker.metadata.image import TopicImage, single_replica_states
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidProducerIdMappingError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

COUNTS = {"t": 4, "u": 4, "v": CHUNK + 3}
FIRST_BY_ID = 10
VERSIONS = [(ApiKey.OFFSET_COMMIT, version) for version in range(1, 11)]
VERSIONS += [(ApiKey.TXN_OFFSET_COMMIT, version) for version in range(6)]


@pytest.fixture
def world() -> World:
    world = World()
    for number, (name, count) in enumerate(COUNTS.items()):
        world.groups.metadata.put(
            TopicImage(name, bytes([number + 1] * 16), single_replica_states(1, count), {}, False)
        )
    return world


def id_of(world: World, name: str) -> bytes:
    image = world.groups.metadata.find(name)
    return name.encode() * 16 if image is None else bytes(image.topic_id)


def refused_commit(world: World, api: ApiKey, asked: list[tuple[str, int]]) -> Any:
    """Build a commit of an unknown member, or of a producer without a transaction."""
    topics: dict[str, list[int]] = {}
    for name, index in asked:
        topics.setdefault(name, []).append(index)
    if api == ApiKey.TXN_OFFSET_COMMIT:
        return TxnOffsetCommitRequest(transactional_id="x", group_id="g", producer_id=77, topics=[
            TxnOffsetCommitRequestTopic(
                name=name, partitions=[TxnOffsetCommitRequestPartition(partition_index=index) for index in indexes]
            )
            for name, indexes in topics.items()
        ])  # fmt: skip
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=5, member_id="gone", topics=[
        OffsetCommitRequestTopic(
            name=name, topic_id=id_of(world, name),
            partitions=[OffsetCommitRequestPartition(partition_index=index) for index in indexes],
        )
        for name, indexes in topics.items()
    ])  # fmt: skip


def expected_code(api: ApiKey, version: int, name: str, index: int) -> int:
    if name not in COUNTS and api == ApiKey.OFFSET_COMMIT and version >= FIRST_BY_ID:
        return UnknownTopicIdError.code
    if index >= COUNTS.get(name, 0):
        return UnknownTopicOrPartitionError.code
    if api == ApiKey.TXN_OFFSET_COMMIT:
        return InvalidProducerIdMappingError.code
    return GroupIdNotFoundError.code if version >= 9 else IllegalGenerationError.code


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_refused_commit_tells_of_each_partition_whether_it_is_there(world: World, api: ApiKey, version: int) -> None:
    choose = random.Random(version)
    known = [(name, index) for name, count in COUNTS.items() for index in range(count)]
    unknown = [("t", 4), ("v", CHUNK + 3), ("n", 0), ("n", 1), ("m", 0)]
    for size in (1, 3, 6, CHUNK + 5):
        asked = choose.sample([*known, *unknown], size) + choose.sample(unknown, 1)
        asked = list(dict.fromkeys(asked))
        response = world.ask(refused_commit(world, api, asked), version)
        names = {id_of(world, name): name for name in (*COUNTS, "n", "m")}
        codes = [
            (getattr(topic, "name", "") or names[bytes(topic.topic_id)], partition.partition_index,
             partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        ]  # fmt: skip
        assert Counter(codes) == Counter((*pair, expected_code(api, version, *pair)) for pair in asked)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_coordinators_are_not_asked_where_nothing_is_there(
    world: World, api: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction gets a partition, no group is made: there is nothing to commit."""
    for coordinator, method in (
        (GroupCoordinator, "commit_offsets"),
        (GroupCoordinator, "commit_offsets_in_transaction"),
        (TransactionCoordinator, "add_partitions"),
        (TransactionCoordinator, "verify_partition"),
    ):
        monkeypatch.setattr(coordinator, method, lambda *_: pytest.fail("a coordinator was asked"))
    response = world.ask(refused_commit(world, api, [("n", 0), ("t", 4)]), version)
    codes = {partition.error_code for topic in response.topics for partition in topic.partitions}
    assert codes == {expected_code(api, version, name, index) for name, index in [("n", 0), ("t", 4)]}
