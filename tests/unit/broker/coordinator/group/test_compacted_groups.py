"""Groups that are loaded from a compacted partition, in which only the newest record of each key is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, CurrentAssignment, Subscription
from tidelog.broker.coordinator.group.consumer.records import (
    consumer_group_tombstones,
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from tidelog.broker.coordinator.group.records import GroupRecordSerde
from tidelog.broker.coordinator.group.share.group import ShareAssignment, ShareGroup, ShareSubscription
from tidelog.broker.coordinator.group.share.records import (
    share_current_record,
    share_epoch_record,
    share_group_tombstones,
    share_member_record,
    share_member_tombstones,
    share_target_epoch_record,
    share_target_record,
)
from tidelog.broker.coordinator.group.streams.group import StreamsAssignment, StreamsGroup, StreamsMemberSpec, TaskSet
from tidelog.broker.coordinator.group.streams.records import (
    GroupEpoch,
    streams_current_record,
    streams_epoch_record,
    streams_group_tombstones,
    streams_member_record,
    streams_member_tombstones,
    streams_target_epoch_record,
    streams_target_record,
)
from tidelog.broker.coordinator.runtime.replay import encode_batch
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord

TOPIC = bytes([1] * 16)


class Records(NamedTuple):
    """Builders of one protocol's records: for a group, or for the group's member ``m``."""

    epoch: Callable[[int], CoordinatorRecord]
    target_epoch: Callable[[int], CoordinatorRecord]
    member: Callable[[str, str], CoordinatorRecord]
    target: Callable[[str, int], CoordinatorRecord]
    current: Callable[[str, int, int], CoordinatorRecord]
    member_tombstones: Callable[[str], list[CoordinatorRecord]]
    group_tombstones: Callable[[Any], list[CoordinatorRecord]]


def tasks(partition: int) -> TaskSet:
    return TaskSet({"0": frozenset({partition})})


PROTOCOLS = {
    "consumer": Records(
        lambda epoch: epoch_record("g", epoch, epoch * 7),
        lambda epoch: target_epoch_record("g", epoch, epoch * 1000),
        lambda m, host: member_record("g", m, Subscription(f"instance of {m}", None, "c", host, ("t",))),
        lambda m, partition: target_record("g", m, {TOPIC: frozenset({partition})}),
        lambda m, epoch, partition: current_record(
            "g", m, CurrentAssignment(epoch, assigned={TOPIC: frozenset({partition})}, epochs={(TOPIC, partition): 1})
        ),
        lambda m: member_tombstones("g", m),
        consumer_group_tombstones,
    ),
    "share": Records(
        lambda epoch: share_epoch_record("g", epoch, epoch * 7),
        lambda epoch: share_target_epoch_record("g", epoch, epoch * 1000),
        lambda m, host: share_member_record("g", m, ShareSubscription(None, "c", host, ("t",))),
        lambda m, partition: share_target_record("g", m, {TOPIC: frozenset({partition})}),
        lambda m, epoch, partition: share_current_record(
            "g", m, ShareAssignment(epoch, assigned={TOPIC: frozenset({partition})})
        ),
        lambda m: share_member_tombstones("g", m),
        share_group_tombstones,
    ),
    "streams": Records(
        lambda epoch: streams_epoch_record("g", GroupEpoch(epoch, epoch * 7, 0, {})),
        lambda epoch: streams_target_epoch_record("g", epoch, epoch * 1000),
        lambda m, host: streams_member_record("g", m, StreamsMemberSpec(None, "c", host)),
        lambda m, partition: streams_target_record("g", m, tasks(partition)),
        lambda m, epoch, partition: streams_current_record(
            "g", m, StreamsAssignment(epoch, assigned=tasks(partition), epochs={("0", partition): 1})
        ),
        lambda m: streams_member_tombstones("g", m),
        streams_group_tombstones,
    ),
}


def random_life(chance: random.Random) -> list[CoordinatorRecord]:
    """Build the records of the group ``g``, whose members come, change their hosts and partitions, and go. When none is
    left the group may be removed; one of another protocol then has its id."""
    kind: Records | None = None
    members: dict[str, int] = {}
    found: list[CoordinatorRecord] = []
    epoch = 1
    for _ in range(chance.randrange(2, 40)):
        if kind is None:
            kind = chance.choice([*PROTOCOLS.values()])
        name = chance.choice("abc")
        if name not in members:
            epoch += 1
            members[name] = next(partition for partition in range(4) if partition not in members.values())
            found += [kind.member(name, "first host"), kind.epoch(epoch), kind.target_epoch(epoch)]
            found += [kind.target(name, members[name]), kind.current(name, epoch, members[name])]
        elif chance.random() < 0.5:
            found.append(kind.member(name, f"host {len(found)}"))
        elif chance.random() < 0.5:
            members[name] = next(partition for partition in range(4) if partition not in members.values())
            found += [kind.target(name, members[name]), kind.current(name, epoch, members[name])]
        else:
            del members[name]
            found += kind.member_tombstones(name)
            if not members and chance.random() < 0.7:
                found += kind.group_tombstones(group_after(found))
                kind, epoch = None, 1
    return found


def compacted(records: list[CoordinatorRecord], end: int) -> list[CoordinatorRecord]:
    """Leave out each of the first ``end`` records that has a later one with its key among them."""
    newest = {GroupRecordSerde.encode(record)[0]: index for index, record in enumerate(records[:end])}
    return [
        record
        for index, record in enumerate(records)
        if index >= end or newest[GroupRecordSerde.encode(record)[0]] == index
    ]


def group_after(records: list[CoordinatorRecord]) -> Any:
    """Load a partition with these records, and return its group ``g``."""
    log = MemoryTopicLog(1)
    for record in records:
        log.append(0, encode_batch(GroupRecordSerde, [record], None, 0))
    world = GroupWorld(log)
    world.runtime.load_all()
    world.loop.run_soon()
    return world.group()


def facts_of(value: Any) -> Any:
    """Convert a group to comparable values, without what is computed when it is needed."""
    if isinstance(value, (ConsumerGroup, ShareGroup, StreamsGroup)):
        return {name: facts_of(each) for name, each in vars(value).items() if not name.startswith("_")}
    if isinstance(value, dict):
        return {key: facts_of(each) for key, each in value.items()}
    if hasattr(value, "member_id"):
        return {name: getattr(value, name) for name in value.__slots__}
    return value


@pytest.mark.parametrize("seed", range(60))
def test_a_group_is_the_same_after_any_compaction(seed: int) -> None:
    chance = random.Random(seed)
    records = random_life(chance)
    expected = facts_of(group_after(records))
    assert expected is not None or records[-1].value is None
    for end in {len(records), chance.randrange(len(records)), chance.randrange(len(records))}:
        assert facts_of(group_after(compacted(records, end))) == expected
