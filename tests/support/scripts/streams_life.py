"""Streams groups over time: delays, endpoints, moves between kinds of groups, groups that are full, standby tasks.

A delay lasts a minute if the script asks during it, and is short if the script waits for its end.
"""

from __future__ import annotations

import time
from typing import Any

from tests.support.questions import Broker
from tests.support.scripts.groups import joined, protocols
from tests.support.scripts.registry import WAIT_S
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

GROUP_RESOURCE = 32


def configure(broker: Broker, group: str, **configs: str | None) -> None:
    """Set configs of a group (None as value removes a config), and wait until they are in force."""
    each = [
        {"name": key.replace("_", "."), "config_operation": 0 if value is not None else 1, "value": value}
        for key, value in configs.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": each}
    answer = broker.ask_quietly("incremental_alter_configs", 1, resources=[resource])
    assert answer.responses[0].error_code == 0, answer
    wanted = {key.replace("_", "."): value for key, value in configs.items() if value is not None}
    asked = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": list(wanted)}
    deadline = time.monotonic() + WAIT_S
    while True:
        found = broker.ask_quietly("describe_configs", 4, resources=[asked]).results[0]
        if wanted.items() <= {config.name: config.value for config in found.configs}.items():
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def tasks(*partitions: int) -> dict[str, Any]:
    """Return tasks that a member reports as its own."""
    return {**EMPTY, "active_tasks": [{"subtopology_id": "0", "partitions": list(partitions)}]}


@streams_script("streams_group_heartbeat")
def initial_delay(broker: Broker, version: int) -> None:
    """Show that no member has tasks while a new group waits for more members; a group that was left starts again."""
    create_source(broker, "streams-delayed", 4)
    configure(broker, "streams-d", streams_initial_rebalance_delay_ms="60000")
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
    """Show that the members have their tasks after the delay, and another waits no more."""
    create_source(broker, "streams-waited", 4)
    configure(broker, "streams-w", streams_initial_rebalance_delay_ms="300")
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
    """Show that members which join within the assignment interval get no tasks yet, and a status that says so."""
    create_source(broker, "streams-interval", 4)
    configure(broker, "streams-i", streams_assignment_interval_ms="15000")
    first = join(broker, "streams-i", "a", "streams-interval")
    beat(broker, "streams-i", "a", first.member_epoch, **tasks(0, 1, 2, 3))
    second = join(broker, "streams-i", "b", "streams-interval")
    beat(broker, "streams-i", "a", first.member_epoch)
    beat(broker, "streams-i", "b", second.member_epoch)
    broker.ask("streams_group_describe", 0, group_ids=["streams-i"])
    configure(broker, "streams-i", streams_assignment_interval_ms="0")
    beat(broker, "streams-i", "b", second.member_epoch)
    beat(broker, "streams-i", "a", first.member_epoch)
    leave_and_delete(broker, "streams-i", "a", "b")


@streams_script("streams_group_heartbeat")
def endpoints(broker: Broker, version: int) -> None:
    """Show that members get the partitions of each endpoint when these have changed since their last answer."""
    create_source(broker, "streams-ends", 2)

    def at(port: int) -> dict[str, Any]:
        return {"user_endpoint": {"host": "localhost", "port": port}}

    first = join(broker, "streams-e", "a", "streams-ends", **at(7001))
    told = beat(broker, "streams-e", "a", first.member_epoch, **tasks(0, 1), endpoint_information_epoch=0)
    known = told.endpoint_information_epoch
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
    """Show that a group without members may become one of another kind, or not; one that has members may not."""
    create_source(broker, "streams-kinds", 2)
    classic = joined(broker, "streams-k", "streams-kinds")
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
    other = joined(broker, "streams-k2", "streams-kinds")
    join(broker, "streams-k2", "a", "streams-kinds")
    beat(broker, "streams-k2", "a", -1)
    classic = joined(broker, "streams-k", "streams-kinds")
    broker.ask("streams_group_describe", 0, group_ids=["streams-k"])
    broker.ask("describe_groups", 6, groups=["streams-k"])
    broker.ask("offset_fetch", 8, groups=[{"group_id": "streams-k", "topics": None}])
    for group, member in (("streams-k", classic), ("streams-k2", other)):
        left = [{"member_id": member.member_id}]
        broker.ask_quietly("leave_group", 3, group_id=group, members=left)
        broker.ask_quietly("delete_groups", 2, groups_names=[group])


def others(broker: Broker, *, has_members: bool = True) -> None:
    """Try to join with members of each other kind, and ask with tools what it is; a classic one may where there are
    none.
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
    """Show that a group with the allowed number of members refuses another."""
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
    """Show that copies of states are on other processes, from when the group's config asks for them; changelogs are
    made.
    """
    create_source(broker, "streams-states", 2)
    changelog = topology("streams-states", state_changelog_topics=[{"name": "streams-states-log"}])
    create_source(broker, "streams-states-log", 2)
    first = join(broker, "streams-s", "a", "", topology=changelog)
    first = beat(broker, "streams-s", "a", first.member_epoch, **tasks(0, 1))
    configure(broker, "streams-s", streams_num_standby_replicas="1")
    first = beat(broker, "streams-s", "a", first.member_epoch)
    second = join(broker, "streams-s", "b", "", topology=changelog)
    told = beat(broker, "streams-s", "a", first.member_epoch)
    kept = [index for each in told.active_tasks or () for index in each.partitions]
    done = beat(broker, "streams-s", "a", told.member_epoch, **tasks(*kept))
    beat(broker, "streams-s", "b", second.member_epoch)
    beat(broker, "streams-s", "a", done.member_epoch)
    broker.ask("streams_group_describe", 0, group_ids=["streams-s"])
    leave_and_delete(broker, "streams-s", "a", "b")
