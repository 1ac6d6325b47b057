"""Scripts about groups of the classic and the consumer protocol, and their offsets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tests.support.questions import Broker
from tests.support.scripts.registry import create, script, topic_id

UNKNOWN_ID = b"\x05" * 16
UUID = "q3e4T7XlSDuJCEtQDxVJ8g"


def subscription(*topics: str) -> bytes:
    """Encode ConsumerProtocolSubscription v0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def protocols(*topics: str) -> list[dict[str, object]]:
    """Return the protocols in the JoinGroup of a consumer with the range assignor."""
    return [{"name": "range", "metadata": subscription(*topics)}]


def join_stable_group(broker: Broker, group: str, topic: str, *, instance: str | None = None) -> Any:
    """Create a stable classic group with one member, in its first generation; return its JoinGroup response."""
    fields = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "group_instance_id": instance,
        "protocols": protocols(topic),
    }
    first = broker.ask_quietly("join_group", 5, **fields)
    member = first
    if first.error_code == 79:
        member = broker.ask_quietly("join_group", 5, **{**fields, "member_id": first.member_id})
    assert member.error_code == 0, member
    plan = [{"member_id": member.member_id, "assignment": b"plan"}]
    synced = broker.ask_quietly(
        "sync_group",
        3,
        group_id=group,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=instance,
        assignments=plan,
    )
    assert synced.error_code == 0, synced
    return member


@script("find_coordinator")
def find_coordinator(broker: Broker, version: int) -> None:
    for kind in (0, 1, 3, 9):
        for key in ("g", "", f"{UUID}:{UUID}:0", "g:x:1"):
            if version >= 4:
                broker.ask("find_coordinator", version, key_type=kind, coordinator_keys=[key])
            else:
                broker.ask("find_coordinator", version, key_type=kind, key=key)
    if version >= 4:
        broker.ask("find_coordinator", version, key_type=0, coordinator_keys=["a", "b", "a"])
        broker.ask("find_coordinator", version, key_type=0, coordinator_keys=[])


@script("join_group")
def join_group(broker: Broker, version: int) -> None:
    group = f"jg{version}"
    create(broker, group)

    def join(**other: object) -> Any:
        fields = {
            "group_id": group,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": protocols(group),
            **other,
        }
        return broker.ask("join_group", version, **fields)

    join(group_id="")
    join(member_id="unknown")
    for session_ms in (0, 5_999, 1_800_001):
        join(session_timeout_ms=session_ms)
    join(protocols=[])
    join(protocol_type="")
    first = join()
    member = join(member_id=first.member_id) if first.error_code == 79 else first
    again = join(member_id=member.member_id)
    join(protocols=[{"name": "other", "metadata": b""}])
    join(protocol_type="connect")
    join(member_id=again.member_id)
    join(member_id="unknown")
    if version >= 5:
        static = join(group_id=f"{group}-static", group_instance_id="i")
        join(group_id=f"{group}-static", group_instance_id="i")
        join(group_id=f"{group}-static", group_instance_id="i", member_id=static.member_id)
        join(group_id=f"{group}-static", group_instance_id="j", member_id="unknown")
    if version >= 9:
        join(group_id=f"{group}-reason", reason="because")


@script("sync_group")
def sync_group(broker: Broker, version: int) -> None:
    group = f"sg{version}"
    create(broker, group)
    member = join_stable_group(broker, group, group)

    def sync(**other: object) -> None:
        fields = {
            "group_id": group,
            "generation_id": member.generation_id,
            "member_id": member.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            **other,
        }
        broker.ask("sync_group", version, **fields)

    sync()
    sync(group_id="")
    sync(group_id=f"{group}-none")
    sync(generation_id=9)
    sync(generation_id=-1)
    sync(member_id="unknown")
    sync(member_id="")
    if version >= 5:
        sync(protocol_type="connect")
        sync(protocol_name="roundrobin")
        sync(protocol_name=None)
        sync(protocol_type=None)
    if version >= 3:
        sync(group_instance_id="unknown")


@script("heartbeat")
def heartbeat(broker: Broker, version: int) -> None:
    group = f"hb{version}"
    create(broker, group)
    member = join_stable_group(broker, group, group)

    def beat(**other: object) -> None:
        fields = {"group_id": group, "generation_id": member.generation_id, "member_id": member.member_id, **other}
        broker.ask("heartbeat", version, **fields)

    beat()
    beat(group_id="")
    beat(group_id=f"{group}-none")
    beat(generation_id=0)
    beat(generation_id=-1)
    beat(member_id="unknown")
    beat(member_id="")
    if version >= 3:
        beat(group_instance_id="unknown")


@script("leave_group")
def leave_group(broker: Broker, version: int) -> None:
    group = f"lg{version}"
    create(broker, group)
    member = join_stable_group(broker, group, group)
    if version < 3:
        for of, member_id in ((group, "unknown"), ("", member.member_id), (f"{group}-none", member.member_id)):
            broker.ask("leave_group", version, group_id=of, member_id=member_id)
        broker.ask("leave_group", version, group_id=group, member_id=member.member_id)
        broker.ask("leave_group", version, group_id=group, member_id=member.member_id)
        return
    static = join_stable_group(broker, f"{group}-static", group, instance="i")

    def leave(of: str, *members: tuple[str, str | None]) -> None:
        asked = [{"member_id": member_id, "group_instance_id": instance} for member_id, instance in members]
        broker.ask("leave_group", version, group_id=of, members=asked)

    leave(group, ("unknown", None), (member.member_id, None), (member.member_id, None))
    leave("", ("unknown", None))
    leave(f"{group}-none", ("unknown", None))
    leave(f"{group}-static", ("", "j"), ("unknown", "i"), (static.member_id, None))
    leave(f"{group}-static", ("", "i"))
    leave(group)


@script("describe_groups")
def describe_groups(broker: Broker, version: int) -> None:
    group = f"dg{version}"
    create(broker, group)
    member = join_stable_group(broker, group, group)
    join_stable_group(broker, f"{group}-static", group, instance="i")
    groups = [group, f"{group}-static", f"{group}-none", ""]
    broker.ask("describe_groups", version, groups=groups)
    broker.ask("describe_groups", version, groups=[group], include_authorized_operations=True)
    left = [{"member_id": member.member_id}]
    broker.ask_quietly("leave_group", 3, group_id=group, members=left)
    broker.ask("describe_groups", version, groups=[group])
    broker.ask("describe_groups", version, groups=[])


@script("list_groups")
def list_groups(broker: Broker, version: int) -> None:
    group = f"ls{version}"
    create(broker, group)
    join_stable_group(broker, group, group)

    def listed(**filters: object) -> None:
        response = broker.ask_quietly("list_groups", version, **filters)
        response.groups = [found for found in response.groups if found.group_id == group]
        broker.answers.append((f"list_groups v{version} {filters}", broker.plain(response)))

    listed()
    for states in (["Stable"], ["stable"], ["Empty"], ["NoSuchState"], ["Stable", "Dead"]):
        listed(states_filter=states)
    for types in (["classic"], ["Classic"], ["consumer"], ["nosuchtype"], ["share"]):
        listed(types_filter=types)


@script("delete_groups")
def delete_groups(broker: Broker, version: int) -> None:
    group = f"de{version}"
    create(broker, group)
    join_stable_group(broker, group, group)
    committed(broker, f"{group}-offsets", group)
    names = [group, f"{group}-none", "", f"{group}-offsets"]
    broker.ask("delete_groups", version, groups_names=names)
    broker.ask("delete_groups", version, groups_names=[f"{group}-offsets"])
    broker.ask("delete_groups", version, groups_names=[])
    broker.ask("offset_fetch", 5, group_id=f"{group}-offsets", topics=None)


def committed(broker: Broker, group: str, topic: str, offset: int = 1) -> None:
    """Create a group without members, by a commit of one offset."""
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
    topics = [{"name": topic, "partitions": partitions}]
    broker.ask_quietly("offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics)


@script("offset_commit")
def offset_commit(broker: Broker, version: int) -> None:
    group = f"oc{version}"
    create(broker, group, 2)
    ids = {group: topic_id(broker, group)}
    member = join_stable_group(broker, f"{group}-member", group)

    def commit(of: str, *, topic: str = group, partition: int = 0, metadata: str | None = "m", **other: object) -> None:
        placed = [{"partition_index": partition, "committed_offset": 3, "committed_metadata": metadata}]
        topics = [{"name": topic, "topic_id": ids.get(topic, UNKNOWN_ID), "partitions": placed}]
        fields = {"group_id": of, "generation_id_or_member_epoch": -1, "topics": topics, **other}
        broker.ask("offset_commit", version, **fields)

    commit(group)
    commit(group, partition=2)
    commit(group, partition=-1)
    commit(group, topic=f"{group}-none")
    commit(group, metadata=None)
    commit(group, metadata="x" * 4097)
    commit("")
    commit(group, generation_id_or_member_epoch=1)
    commit(group, member_id="m")
    commit(group, generation_id_or_member_epoch=1, member_id="m")
    of = f"{group}-member"
    mine = {"generation_id_or_member_epoch": member.generation_id, "member_id": member.member_id}
    commit(of, **mine)
    commit(of)
    commit(of, **{**mine, "generation_id_or_member_epoch": 7})
    commit(of, **{**mine, "member_id": "unknown"})
    if version >= 7:
        commit(of, **mine, group_instance_id="i")
        commit(group, group_instance_id="i")
    broker.ask("offset_commit", version, group_id=group, generation_id_or_member_epoch=-1, topics=[])
    broker.ask("offset_fetch", 5, group_id=group, topics=None)
    broker.ask("offset_fetch", 5, group_id=of, topics=None)


@script("offset_fetch")
def offset_fetch(broker: Broker, version: int) -> None:
    group = f"of{version}"
    create(broker, group, 2)
    committed(broker, group, group)
    known = topic_id(broker, group)
    every: list[tuple[str, list[int] | None]] = [(group, [0, 1, 5]), (f"{group}-none", [0]), (group, [])]
    for stable in (False, True):
        for of in (group, f"{group}-none", ""):
            for topic, partitions in every:
                if version < 8:
                    topics = [{"name": topic, "partition_indexes": partitions}]
                    broker.ask("offset_fetch", version, group_id=of, topics=topics, require_stable=stable)
                else:
                    by_id = known if topic == group else UNKNOWN_ID
                    one: dict[str, object] = {"name": topic, "topic_id": by_id, "partition_indexes": partitions}
                    asked = [{"group_id": of, "topics": [one]}]
                    broker.ask("offset_fetch", version, groups=asked, require_stable=stable)
            if version >= 8:
                broker.ask("offset_fetch", version, groups=[{"group_id": of, "topics": None}])
            elif version >= 2:
                broker.ask("offset_fetch", version, group_id=of, topics=None)
    if version >= 8:
        broker.ask("offset_fetch", version, groups=[])
        both = [{"group_id": group, "topics": None}, {"group_id": f"{group}-none", "topics": None}]
        broker.ask("offset_fetch", version, groups=both)
    if version >= 9:
        for epoch, member in ((-1, None), (0, "m"), (3, "m")):
            asked_as = [{"group_id": group, "member_id": member, "member_epoch": epoch, "topics": None}]
            broker.ask("offset_fetch", version, groups=asked_as)


@script("offset_delete")
def offset_delete(broker: Broker, version: int) -> None:
    group = f"od{version}"
    create(broker, group, 2)
    committed(broker, group, group)
    join_stable_group(broker, f"{group}-member", group)

    def delete(of: str, topic: str, partition: int) -> None:
        topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        broker.ask("offset_delete", version, group_id=of, topics=topics)

    delete(group, group, 1)
    delete(group, group, 9)
    delete(group, f"{group}-none", 0)
    delete(f"{group}-none", group, 0)
    delete(f"{group}-member", group, 0)
    delete(group, group, 0)
    member = join_stable_group(broker, f"{group}-left", group)
    broker.ask_quietly("leave_group", 1, group_id=f"{group}-left", member_id=member.member_id)
    committed(broker, f"{group}-left", group)
    for _ in range(2):
        delete(f"{group}-left", group, 0)
    broker.ask_quietly("delete_groups", 0, groups_names=[f"{group}-left"])
    delete(f"{group}-left", group, 0)
    broker.ask("offset_delete", version, group_id=group, topics=[])
    broker.ask("offset_fetch", 5, group_id=group, topics=None)


@script("consumer_group_heartbeat")
def consumer_group_heartbeat(broker: Broker, version: int) -> None:
    group = f"cg{version}"
    create(broker, group, 3)
    known = topic_id(broker, group)

    def beat(**other: object) -> Any:
        member = "" if version == 0 else "first"
        fields = {
            "group_id": group,
            "member_id": member,
            "member_epoch": 0,
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": [group],
            "topic_partitions": [],
            **other,
        }
        return broker.ask("consumer_group_heartbeat", version, **fields)

    send_refused_beats(beat, known)
    if version >= 1:
        beat(member_id="")
        beat(subscribed_topic_names=None, subscribed_topic_regex="(")
        beat(subscribed_topic_names=None, subscribed_topic_regex="")
    first = beat()
    quiet = send_beats_of_member(broker, group, known, beat, first)
    if version >= 1:
        second = beat(member_id="second")
        beat(**{**quiet, "topic_partitions": [{"topic_id": known, "partitions": [0, 1, 2]}]})
        beat(**quiet)
        broker.ask("offset_fetch", 9, groups=[{"group_id": group, "member_id": "second", "member_epoch": 9}])
        beat(**{**quiet, "member_id": "second", "member_epoch": second.member_epoch})
        beat(member_id="patterns", group_id=f"{group}-p", subscribed_topic_names=None, subscribed_topic_regex=group)
    static = beat(group_id=f"{group}-s", member_id="" if version == 0 else "s1", instance_id="i")
    beat(group_id=f"{group}-s", member_id="" if version == 0 else "s2", instance_id="i")
    leaving = {"group_id": f"{group}-s", "member_id": static.member_id, "instance_id": "i"}
    beat(**{**quiet, **leaving, "member_epoch": -2})
    beat(group_id=f"{group}-s", member_id="" if version == 0 else "s3", instance_id="i")
    beat(**{**quiet, **leaving, "member_epoch": 1})
    beat(**{**quiet, "member_epoch": -1})
    broker.ask("consumer_group_describe", 1, group_ids=[f"{group}-s"])
    classic = join_stable_group(broker, f"{group}-classic", group)
    beat(group_id=f"{group}-classic", member_epoch=3, member_id=classic.member_id)
    broker.ask("describe_groups", 6, groups=[f"{group}-s"])
    broker.ask("join_group", 9, group_id=f"{group}-s", session_timeout_ms=30_000, protocol_type="x", protocols=[])
    broker.ask("delete_groups", 2, groups_names=[f"{group}-s", group])


def send_refused_beats(beat: Callable[..., Any], known: bytes) -> None:
    """Send heartbeats of a new member with fields that are wrong, missing or empty."""
    beat(group_id="")
    beat(group_id="  ")
    beat(rebalance_timeout_ms=-1)
    beat(subscribed_topic_names=None)
    beat(subscribed_topic_names=[])
    beat(topic_partitions=None)
    beat(topic_partitions=[{"topic_id": known, "partitions": [0]}])
    beat(server_assignor="nosuch")
    beat(server_assignor="")
    beat(instance_id="")
    beat(rack_id="")
    beat(member_epoch=-3)
    beat(member_epoch=5)
    beat(member_id="", member_epoch=1)


def send_beats_of_member(
    broker: Broker, group: str, known: bytes, beat: Callable[..., Any], first: Any
) -> dict[str, Any]:
    """Send valid and invalid heartbeats of the group's first member. Returns the fields of one that changes nothing."""
    kept = {"member_id": first.member_id, "member_epoch": first.member_epoch}
    quiet = {**kept, "rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
    beat(**quiet)
    beat(**{**kept, "topic_partitions": [{"topic_id": known, "partitions": [0, 1, 2]}]})
    beat(**{**quiet, "member_epoch": 99})
    beat(**{**quiet, "member_id": "unknown", "member_epoch": 1})
    beat(**{**quiet, "member_epoch": -1, "member_id": "unknown"})
    beat(**{**quiet, "member_epoch": -2})
    beat(**{**quiet, "group_id": f"{group}-none"})
    broker.ask("consumer_group_describe", 1, group_ids=[group])
    return quiet


@script("consumer_group_describe")
def consumer_group_describe(broker: Broker, version: int) -> None:
    group = f"cd{version}"
    create(broker, group, 2)
    join_stable_group(broker, f"{group}-classic", group)
    beat = {"member_id": "m", "rebalance_timeout_ms": 30_000, "subscribed_topic_names": [group], "topic_partitions": []}
    broker.ask_quietly("consumer_group_heartbeat", 1, group_id=group, member_epoch=0, rack_id="r", **beat)
    groups = [group, f"{group}-none", f"{group}-classic", ""]
    broker.ask("consumer_group_describe", version, group_ids=groups)
    broker.ask("consumer_group_describe", version, group_ids=[group], include_authorized_operations=True)
    broker.ask("consumer_group_describe", version, group_ids=[])
