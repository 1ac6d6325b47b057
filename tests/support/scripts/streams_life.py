"""Scripts about streams groups over time: delays, endpoints, changes of a group's type, full groups, standby tasks.

A delay lasts 15 s or more if the script sends requests during the delay, and 0.3 s if the script waits for its end.
"""

from __future__ import annotations

import time
from typing import Any

from tests.support.questions import Broker
from tests.support.scripts.groups import join_stable_group, protocols
from tests.support.scripts.registry import WAIT_S, configure_group
from tests.support.scripts.streams import (
    EMPTY,
    STREAMS_SCRIPTS,
    beat,
    create_source,
    join,
    leave_and_delete,
    streams_script,
    topology,
)

__all__ = ["STREAMS_SCRIPTS"]


def tasks(*partitions: int) -> dict[str, Any]:
    """Return the fields of a heartbeat that reports these active tasks, and no standby or warmup tasks."""
    return {**EMPTY, "active_tasks": [{"subtopology_id": "0", "partitions": list(partitions)}]}


@streams_script("streams_group_heartbeat")
def initial_delay(broker: Broker, version: int) -> None:
    """Show that no member gets tasks during the initial rebalance delay, also after all members have left."""
    create_source(broker, "streams-delayed", 4)
    configure_group(broker, "streams-d", streams_initial_rebalance_delay_ms="60000")
    first = join(broker, "streams-d", "a", "streams-delayed")
    beat(broker, "streams-d", "a", first.member_epoch, **EMPTY)
    second = join(broker, "streams-d", "b", "streams-delayed")
    beat(broker, "streams-d", "b", second.member_epoch)
    broker.ask("streams_group_describe", 0, group_ids=["streams-d"])
    for member in "ab":
        beat(broker, "streams-d", member, -1)
    broker.ask("streams_group_describe", 0, group_ids=["streams-d"])
    join(broker, "streams-d", "c", "streams-delayed")
    leave_and_delete(broker, "streams-d", "c")


@streams_script("streams_group_heartbeat")
def delay_ends(broker: Broker, version: int) -> None:
    """Show that a member has all tasks after the initial rebalance delay, and a second member joins without a delay."""
    create_source(broker, "streams-waited", 4)
    configure_group(broker, "streams-w", streams_initial_rebalance_delay_ms="300")
    epoch = join(broker, "streams-w", "a", "streams-waited", quiet=True).member_epoch
    deadline = time.monotonic() + WAIT_S
    while (answer := beat(broker, "streams-w", "a", epoch, quiet=True)).status:
        assert time.monotonic() < deadline, answer
        epoch = answer.member_epoch
        time.sleep(0.05)
    broker.ask("streams_group_describe", 0, group_ids=["streams-w"])
    epoch = beat(broker, "streams-w", "a", answer.member_epoch, **tasks(0, 1, 2, 3)).member_epoch
    join(broker, "streams-w", "b", "streams-waited")
    beat(broker, "streams-w", "a", epoch)
    leave_and_delete(broker, "streams-w", "a", "b")


@streams_script("streams_group_heartbeat")
def interval(broker: Broker, version: int) -> None:
    """Show that a member which joins within the assignment interval gets no tasks, but a status that says so.

    Then the interval is set to 0, and both members send a heartbeat.
    """
    create_source(broker, "streams-interval", 4)
    configure_group(broker, "streams-i", streams_assignment_interval_ms="15000")
    first = join(broker, "streams-i", "a", "streams-interval")
    beat(broker, "streams-i", "a", first.member_epoch, **tasks(0, 1, 2, 3))
    second = join(broker, "streams-i", "b", "streams-interval")
    beat(broker, "streams-i", "a", first.member_epoch)
    beat(broker, "streams-i", "b", second.member_epoch)
    broker.ask("streams_group_describe", 0, group_ids=["streams-i"])
    configure_group(broker, "streams-i", streams_assignment_interval_ms="0")
    beat(broker, "streams-i", "b", second.member_epoch)
    beat(broker, "streams-i", "a", first.member_epoch)
    leave_and_delete(broker, "streams-i", "a", "b")


@streams_script("streams_group_heartbeat")
def endpoints(broker: Broker, version: int) -> None:
    """Show that a heartbeat returns the partitions of each endpoint if they changed after the epoch that it names."""
    create_source(broker, "streams-ends", 2)

    def at(port: int) -> dict[str, Any]:
        return {"user_endpoint": {"host": "localhost", "port": port}}

    first = join(broker, "streams-e", "a", "streams-ends", **at(7001))
    response = beat(broker, "streams-e", "a", first.member_epoch, **tasks(0, 1), endpoint_information_epoch=0)
    known = response.endpoint_information_epoch
    beat(broker, "streams-e", "a", first.member_epoch, endpoint_information_epoch=known)
    second = join(broker, "streams-e", "b", "streams-ends", **at(7002), endpoint_information_epoch=-1)
    given = beat(broker, "streams-e", "a", first.member_epoch, endpoint_information_epoch=known)
    kept = [index for each in given.active_tasks or () for index in each.partitions]
    done = beat(broker, "streams-e", "a", given.member_epoch, **tasks(*kept), endpoint_information_epoch=known)
    last = beat(broker, "streams-e", "b", second.member_epoch, endpoint_information_epoch=0)
    for name, epoch in (("a", done.member_epoch), ("b", last.member_epoch)):
        beat(broker, "streams-e", name, epoch, endpoint_information_epoch=last.endpoint_information_epoch - 1)
        beat(broker, "streams-e", name, epoch, endpoint_information_epoch=last.endpoint_information_epoch)
    beat(broker, "streams-e", "b", last.member_epoch, **at(7003))
    join(broker, "streams-e", "c", "streams-ends", endpoint_information_epoch=0)
    broker.ask("streams_group_describe", 0, group_ids=["streams-e"])
    leave_and_delete(broker, "streams-e", "a", "b", "c")


@streams_script("streams_group_heartbeat")
def kinds(broker: Broker, version: int) -> None:
    """Show that a group with members keeps its type, and which other type a group without members can take.

    A classic member can join a streams group that has no members, which is then a classic group.
    """
    create_source(broker, "streams-kinds", 2)
    classic = join_stable_group(broker, "streams-k", "streams-kinds")
    join(broker, "streams-k", "a", "streams-kinds")
    left = [{"member_id": classic.member_id}]
    broker.ask_quietly("leave_group", 3, group_id="streams-k", members=left)
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    commit = {"group_id": "streams-k", "topics": [{"name": "streams-kinds", "partitions": [partition]}]}
    broker.ask("offset_commit", 8, generation_id_or_member_epoch=-1, **commit)
    join(broker, "streams-k", "a", "streams-kinds")
    others(broker)
    broker.ask("offset_commit", 8, generation_id_or_member_epoch=-1, **commit)
    broker.ask("offset_fetch", 8, groups=[{"group_id": "streams-k", "topics": None}])
    beat(broker, "streams-k", "a", -1)
    others(broker, has_members=False)
    other = join_stable_group(broker, "streams-k2", "streams-kinds")
    join(broker, "streams-k2", "a", "streams-kinds")
    beat(broker, "streams-k2", "a", -1)
    classic = join_stable_group(broker, "streams-k", "streams-kinds")
    broker.ask("streams_group_describe", 0, group_ids=["streams-k"])
    broker.ask("describe_groups", 6, groups=["streams-k"])
    broker.ask("offset_fetch", 8, groups=[{"group_id": "streams-k", "topics": None}])
    for group, member in (("streams-k", classic), ("streams-k2", other)):
        left = [{"member_id": member.member_id}]
        broker.ask_quietly("leave_group", 3, group_id=group, members=left)
        broker.ask_quietly("delete_groups", 2, groups_names=[group])


def others(broker: Broker, *, has_members: bool = True) -> None:
    """Join the group with members of each other type, then describe and list it as tools do.

    No classic member tries it if the group has no members: the member would get in, and change the group's type.
    """
    wanted = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["streams-kinds"], "topic_partitions": []}
    broker.ask("consumer_group_heartbeat", 1, group_id="streams-k", member_id="x", member_epoch=0, **wanted)
    broker.ask(
        "share_group_heartbeat",
        1,
        group_id="streams-k",
        member_id="y",
        member_epoch=0,
        subscribed_topic_names=["streams-kinds"],
    )
    if has_members:
        fields = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}
        offered = protocols("streams-kinds")
        broker.ask("join_group", 3, group_id="streams-k", member_id="z", protocols=offered, **fields)
    broker.ask("heartbeat", 3, group_id="streams-k", generation_id=1, member_id="z")
    broker.ask("leave_group", 3, group_id="streams-k", members=[{"member_id": "z"}])
    broker.ask("consumer_group_describe", 1, group_ids=["streams-k"])
    broker.ask("share_group_describe", 1, group_ids=["streams-k"])
    broker.ask("describe_groups", 6, groups=["streams-k"])
    broker.ask("streams_group_describe", 0, group_ids=["streams-k"])
    listed = broker.ask_quietly("list_groups", 5)
    found = [group for group in listed.groups if group.group_id == "streams-k"]
    broker.answers.append(("list_groups v5", broker.plain(found)))


@streams_script("streams_group_heartbeat")
def full(broker: Broker, version: int) -> None:
    """Show that a group with as many members as its broker allows refuses another member until one leaves."""
    create_source(broker, "streams-many", 3)
    epochs = {name: join(broker, "streams-f", name, "streams-many").member_epoch for name in "abc"}
    join(broker, "streams-f", "d", "streams-many")
    beat(broker, "streams-f", "c", epochs["c"])
    beat(broker, "streams-f", "c", -1)
    join(broker, "streams-f", "d", "streams-many")
    join(broker, "streams-f", "a", "streams-many", client_tags=[])
    leave_and_delete(broker, "streams-f", "a", "b", "d")


@streams_script("streams_group_heartbeat")
def standbys(broker: Broker, version: int) -> None:
    """Show that standby tasks go to another process than their active task, after the group's config asks for standbys.

    The script itself creates the changelog topic.
    """
    create_source(broker, "streams-states", 2)
    changelog = topology("streams-states", state_changelog_topics=[{"name": "streams-states-log"}])
    create_source(broker, "streams-states-log", 2)
    first = join(broker, "streams-s", "a", "", topology=changelog)
    first = beat(broker, "streams-s", "a", first.member_epoch, **tasks(0, 1))
    configure_group(broker, "streams-s", streams_num_standby_replicas="1")
    first = beat(broker, "streams-s", "a", first.member_epoch)
    second = join(broker, "streams-s", "b", "", topology=changelog)
    response = beat(broker, "streams-s", "a", first.member_epoch)
    kept = [index for each in response.active_tasks or () for index in each.partitions]
    done = beat(broker, "streams-s", "a", response.member_epoch, **tasks(*kept))
    beat(broker, "streams-s", "b", second.member_epoch)
    beat(broker, "streams-s", "a", done.member_epoch)
    broker.ask("streams_group_describe", 0, group_ids=["streams-s"])
    leave_and_delete(broker, "streams-s", "a", "b")
