"""Scripts about streams groups (KIP-1071): members, topologies, tasks, statuses.

STREAMS_SCRIPTS is a table apart from SCRIPTS, because these scripts need brokers whose streams groups assign at once.
Most topologies have one subtopology that reads one topic, so that no script waits for internal topics. ``statuses``
joins groups whose internal or source topics are missing or do not fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.support.questions import Broker
from tests.support.scripts.registry import WAIT_S, Entry, Script, create

STREAMS_SCRIPTS: list[Entry] = []
EMPTY: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}


def streams_script(api: str) -> Callable[[Script], Script]:
    """Register a script for an API of streams groups."""

    def register(run: Script) -> Script:
        STREAMS_SCRIPTS.append(Entry(api, run))
        return run

    return register


def topology(topic: str, epoch: int = 0, **fields: Any) -> dict[str, Any]:
    """Describe one subtopology that reads one topic."""
    return {"epoch": epoch, "subtopologies": [{"subtopology_id": "0", "source_topics": [topic], **fields}]}


def beat(broker: Broker, group: str, member: str, epoch: int, *, quiet: bool = False, **fields: Any) -> Any:
    """Send one StreamsGroupHeartbeat; the response to a ``quiet`` one is not compared."""
    ask = broker.ask_quietly if quiet else broker.ask
    return ask("streams_group_heartbeat", 0, group_id=group, member_id=member, member_epoch=epoch, **fields)


def join(broker: Broker, group: str, member: str, topic: str, *, quiet: bool = False, **fields: Any) -> Any:
    """Send the first heartbeat of a member, whose topology reads ``topic``."""
    values = {"rebalance_timeout_ms": 60_000, "process_id": f"p-{member}", "topology": topology(topic), **EMPTY}
    return beat(broker, group, member, 0, quiet=quiet, **{**values, **fields})


def create_source(broker: Broker, topic: str, partitions: int) -> None:
    """Create a topic, and wait until the group coordinator knows it.

    In Apache Kafka the coordinator may learn of a topic after its partitions answer ListOffsets.
    """
    create(broker, topic, partitions)
    group, deadline = f"{topic}-known", time.monotonic() + WAIT_S
    while join(broker, group, "a", topic, quiet=True).status:
        assert time.monotonic() < deadline, topic
        leave_and_delete(broker, group, "a")
        time.sleep(0.01)
    leave_and_delete(broker, group, "a")


def leave_and_delete(broker: Broker, group: str, *members: str) -> None:
    """Let all members leave, and delete the group."""
    for member in members:
        beat(broker, group, member, -1, quiet=True)
    broker.ask_quietly("delete_groups", 2, groups_names=[group])


@streams_script("streams_group_heartbeat")
def members(broker: Broker, version: int) -> None:
    """Join a member that gets all tasks, and a second member that gets tasks after the first has given them back.

    Heartbeats with wrong epochs follow, a shutdown of the application, and the end of the group.
    """
    create_source(broker, "streams-two", 4)
    first = join(broker, "streams-g", "a", "streams-two")
    tasks = {**EMPTY, "active_tasks": [{"subtopology_id": "0", "partitions": [0, 1, 2, 3]}]}
    beat(broker, "streams-g", "a", first.member_epoch, **tasks)
    second = join(broker, "streams-g", "b", "streams-two")
    response = beat(broker, "streams-g", "a", first.member_epoch)
    beat(broker, "streams-g", "b", second.member_epoch)
    kept = [{"subtopology_id": t.subtopology_id, "partitions": t.partitions} for t in response.active_tasks or ()]
    done = beat(broker, "streams-g", "a", response.member_epoch, **{**EMPTY, "active_tasks": kept})
    given = beat(broker, "streams-g", "b", second.member_epoch)
    broker.ask("streams_group_describe", 0, group_ids=["streams-g"])
    beat(broker, "streams-g", "a", done.member_epoch + 1)
    beat(broker, "streams-g", "a", 1)
    beat(broker, "streams-g", "b", given.member_epoch, shutdown_application=True)
    beat(broker, "streams-g", "a", done.member_epoch)
    for name in "ab":
        beat(broker, "streams-g", name, -1)
    beat(broker, "streams-g", "a", -1)
    broker.ask("streams_group_describe", 0, group_ids=["streams-g", "none"])
    broker.ask("list_groups", 5, types_filter=["streams"])
    broker.ask("delete_groups", 2, groups_names=["streams-g"])


@streams_script("streams_group_heartbeat")
def statuses(broker: Broker, version: int) -> None:
    """Join groups whose topics are missing or have unequal partition counts, and members with unequal topologies."""
    join(broker, "streams-missing", "a", "streams-none")
    create_source(broker, "streams-one", 1)
    create_source(broker, "streams-three", 3)
    alike: dict[str, Any] = {"subtopology_id": "0", "source_topics": ["streams-one", "streams-three"]}
    alike["copartition_groups"] = [{"source_topics": [0, 1]}]
    join(broker, "streams-alike", "a", "", topology={"epoch": 0, "subtopologies": [alike]})
    changelog = topology("streams-one", state_changelog_topics=[{"name": "streams-log"}])
    join(broker, "streams-log", "a", "", topology=changelog)
    join(broker, "streams-old", "a", "", topology=topology("streams-one", 3))
    join(broker, "streams-old", "b", "", topology=topology("streams-one", 1))
    join(broker, "streams-old", "c", "", topology=topology("streams-one", 4))
    broker.ask("streams_group_describe", 0, group_ids=["streams-missing", "streams-alike"])
    for group, names in (("missing", "a"), ("alike", "a"), ("log", "a"), ("old", "ab")):
        for name in names:
            beat(broker, f"streams-{group}", name, -1, quiet=True)
        broker.ask_quietly("delete_groups", 2, groups_names=[f"streams-{group}"])


@streams_script("streams_group_heartbeat")
def refused(broker: Broker, version: int) -> None:
    """Send heartbeats with fields, epochs and names that are not valid."""
    each: tuple[dict[str, Any], ...] = (
        {"instance_id": "i"},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"active_tasks": None},
        {"topology": None},
        {"warmup_tasks": [{"subtopology_id": "0", "partitions": [0]}]},
        {"task_offsets": []},
        {"topology": topology("__consumer_offsets")},
        {"topology": topology("a b")},
        {"topology": topology("t", source_topic_regex=["x"])},
        {"topology": topology("t", state_changelog_topics=[{"name": "c", "partitions": 2}])},
        {"topology": topology("t", repartition_source_topics=[{"name": "r"}])},
    )
    for fields in each:
        join(broker, "streams-refused", "a", "t", **fields)
    for epoch in (1, -1, -2, -3):
        beat(broker, "streams-refused", "a", epoch)
    join(broker, "", "a", "t")
    join(broker, "streams-refused", "", "t")
    broker.ask("streams_group_describe", 0, group_ids=["streams-refused", ""])
