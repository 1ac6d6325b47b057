"""States of share groups are deleted in steps; an initialized partition has a state in every interleaving."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import delete_topic
from tests.unit.broker.handlers.drive import handler_of
from tests.unit.broker.share.share_world import ShareMember, ShareWorld
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.protocol.errors import KafkaError, NonEmptyGroupError
from tidelog.protocol.messages import alter_share_group_offsets as alter
from tidelog.protocol.messages import delete_share_group_offsets as delete
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.protocol.schema.fields import Message

PARTITIONS = 130
GROUP, TOPIC = "g", "wide"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    made = ShareWorld(tmp_path)
    made.configure(GROUP)
    made.topic(TOPIC, partitions=PARTITIONS)
    yield made
    made.close()


def join_and_leave(world: ShareWorld) -> None:
    member = world.member(GROUP, TOPIC)
    member.beat(-1)


def start(world: ShareWorld, request: Message) -> Steps[Any]:
    """Run a handler's steps; a KafkaError is its answer."""
    context = world.context(1)
    context.api_version = request.VERSIONS.highest
    module = handler_of(request)
    try:
        return (yield from module.handle(world.broker, context, request))
    except KafkaError as error:
        return error


def deletion(*, of_group: bool) -> Message:
    if of_group:
        return DeleteGroupsRequest(groups_names=[GROUP])
    topics = [delete.DeleteShareGroupOffsetsRequestTopic(topic_name=TOPIC)]
    return delete.DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=topics)


def share_group(world: ShareWorld) -> ShareGroup | None:
    group = world.coordinators.groups.runtime.shard_for(GROUP).groups.get(GROUP)
    assert group is None or isinstance(group, ShareGroup)
    return group


def states(world: ShareWorld) -> set[int]:
    topic_id = world.broker.metadata.topics[TOPIC].topic_id
    share = world.coordinators.share
    return {index for index in range(PARTITIONS) if share.read(StateKey(GROUP, topic_id, index)) is not None}


def initialized(world: ShareWorld) -> set[int]:
    group = share_group(world)
    return {index for known in group.initialized.values() for index in known.partitions} if group else set()


def finish(steps: Steps[Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("of_group", [False, True])
def test_states_are_deleted_in_steps_and_the_group_forgets_them_first(world: ShareWorld, *, of_group: bool) -> None:
    join_and_leave(world)
    assert states(world) == initialized(world) == set(range(PARTITIONS))
    left = [PARTITIONS]
    for _ in start(world, deletion(of_group=of_group)):
        left.append(len(states(world)))
        assert len(states(world)) == PARTITIONS or not initialized(world)
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= ITEMS_PER_STEP
    group = share_group(world)
    assert group is None if of_group else group is not None and not group.deleting


@pytest.mark.parametrize("of_group", [False, True])
@pytest.mark.parametrize("then", ["again", "join"])
def test_a_deletion_that_a_crash_cut_off_is_finished_by_the_next_or_undone_by_a_member(
    world: ShareWorld, then: str, *, of_group: bool
) -> None:
    join_and_leave(world)
    steps = start(world, deletion(of_group=of_group))
    while len(states(world)) > PARTITIONS // 2:
        next(steps)
    again = world.restarted()
    assert 0 < len(states(again)) < PARTITIONS
    assert initialized(again) == set()
    if then == "join":
        again.member(GROUP, TOPIC)
        group = share_group(again)
        assert states(again) == initialized(again) == set(range(PARTITIONS))
        assert group is not None
        assert not group.deleting
    else:
        finish(start(again, deletion(of_group=of_group)))
        assert states(again) == initialized(again) == set()
        assert (share_group(again) is None) == of_group
    again.close()


def requests(world: ShareWorld, draw: random.Random) -> Message:
    """Draw a request that creates or deletes states, or lets a member leave, so that they can be deleted."""
    kind = draw.choice(["join", "leave", "topic", "group", "alter"])
    if kind in ("join", "leave"):
        epoch = 0 if kind == "join" else -1
        names = [TOPIC] if kind == "join" else None
        return ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id=draw.choice("mn"), member_epoch=epoch, subscribed_topic_names=names
        )
    if kind in ("topic", "group"):
        return deletion(of_group=kind == "group")
    partitions = [
        alter.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0)
        for index in draw.sample(range(PARTITIONS), 20)
    ]
    topic = alter.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)
    return alter.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[topic])


def advance(under_way: dict[Steps[Any], Any], steps: Steps[Any], draw: random.Random) -> None:
    """Take some steps of one request, unless it waits for another; some requests' clients go away."""
    waiting = under_way[steps]
    if waiting is not None and not waiting.done:
        return
    if draw.random() < 0.02:
        steps.close()
        del under_way[steps]
        return
    try:
        for _ in range(draw.randrange(40)):
            under_way[steps] = next(steps)
            if under_way[steps] is not None:
                return
    except StopIteration:
        del under_way[steps]


@pytest.mark.parametrize("seed", range(4))
def test_initialized_partitions_have_a_state_in_any_interleaving(world: ShareWorld, seed: int) -> None:
    draw = random.Random(seed)
    under_way: dict[Steps[Any], Any] = {}
    for _ in range(250):
        if len(under_way) < 4 and draw.random() < 0.3:
            under_way[start(world, requests(world, draw))] = None
        for steps in list(under_way):
            advance(under_way, steps, draw)
            assert initialized(world) <= states(world)
    while under_way:
        for steps in list(under_way):
            advance(under_way, steps, draw)
    assert initialized(world) <= states(world)


def test_a_member_that_joins_meanwhile_waits_and_then_has_every_state(world: ShareWorld) -> None:
    join_and_leave(world)
    steps = start(world, deletion(of_group=False))
    while len(states(world)) == PARTITIONS:
        next(steps)
    joining = start(
        world,
        ShareGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=0, subscribed_topic_names=[TOPIC]),
    )
    waiting = next(joining)
    assert waiting is not None
    finish(steps)
    assert waiting.done
    assert finish(joining).member_epoch > 0
    assert states(world) == initialized(world) == set(range(PARTITIONS))
    assert isinstance(finish(start(world, deletion(of_group=False))), NonEmptyGroupError)
    assert ShareMember(world, GROUP, TOPIC, "n").beat(0, subscribed_topic_names=[TOPIC]).error_code == 0


@pytest.mark.parametrize("kind", ["join", "alter"])
def test_a_topic_deleted_while_its_states_are_made_has_none_afterwards(world: ShareWorld, kind: str) -> None:
    """No later deletion would remove such a state, and the group would list the topic until it is deleted."""
    topic_id, share = world.broker.metadata.topics[TOPIC].topic_id, world.coordinators.share
    keys = [StateKey(GROUP, topic_id, index) for index in range(PARTITIONS)]
    if kind == "join":
        request: Message = ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=0, subscribed_topic_names=[TOPIC]
        )
    else:
        partitions = [
            alter.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0)
            for index in range(PARTITIONS)
        ]
        topic = alter.AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)
        request = alter.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[topic])
    steps = start(world, request)
    while share.read(keys[9]) is None:
        next(steps)
    delete_topic(world, TOPIC)
    world.loop.run_soon()
    finish(steps)
    assert [key for key in keys if share.read(key) is not None] == []
    assert initialized(world) == set()
