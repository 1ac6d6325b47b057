"""``tidelog group``: lists and describes groups of any Kafka cluster with their lag, resets their offsets, deletes
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.commands.frame.commands import Group as CommandGroup
from tidelog.commands.frame.completing import complete_groups
from tidelog.commands.frame.options import ClientSettings, Moment, client_options, each_of, json_option
from tidelog.commands.frame.output import print_json, print_rows, visible_text

if TYPE_CHECKING:
    from tidelog.client.admin.groups import Group
    from tidelog.client.admin.offsets import TopicPartition
    from tidelog.client.cluster import Cluster


TYPES = ("classic", "consumer", "share", "streams")
STATES = (
    "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling", "NotReady",
)  # fmt: skip
"""Kafka's types and states of groups."""
_MAX_DIGITS = 10
"""Digits of the number of a partition, which is below 2^31."""


@click.group(cls=CommandGroup)
def command() -> None:
    """List, describe, reset and delete groups."""


@command.command("list")
@click.option(
    "--state",
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help="groups in this state alone, such as Stable or Empty",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(TYPES, case_sensitive=False),
    metavar="TYPE",
    help="groups of this type alone: classic, consumer, share or streams",
)
@json_option
@client_options()
def list_all(*, settings: ClientSettings, state: str | None, kind: str | None, as_json: bool) -> None:
    """List the groups of all coordinators."""
    from tidelog.client.admin.groups import list_groups
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        found = list_groups(cluster)
    rows = [
        one._asdict() for one in found if (state is None or one.state == state) and (kind is None or one.type == kind)
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(["group", "type", "state", "protocol"], rows)


@command.command("describe")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@json_option
@client_options()
def describe(*, settings: ClientSettings, names: tuple[str, ...], as_json: bool) -> int:
    """Describe groups: members, committed offsets, lag."""
    from tidelog.client.admin.groups import describe_group
    from tidelog.client.cluster import Cluster

    found: list[Group] = []
    with Cluster.open(settings) as cluster:
        code = each_of(names, lambda name: found.append(describe_group(cluster, name)))
    if as_json:
        print_json([as_object(group) for group in found])
        return code
    for number, group in enumerate(found):
        if number:
            print()
        print_group(group)
    return code


def as_object(group: Group) -> dict[str, Any]:
    """Build the JSON object of a group. ``lag`` is null unless ``is_lag_known``; ``lag_at_least`` is the known part."""
    members = [
        {**one._asdict(), "partitions": [f"{topic}-{number}" for topic, number in one.partitions]}
        for one in group.members
    ]
    partitions = [one._asdict() for one in group.partitions]
    lag = group.lag if group.is_lag_known else None
    return {**group._asdict(), "lag": lag, "lag_at_least": group.lag, "members": members, "partitions": partitions}


def print_group(group: Group) -> None:
    """Print a group for people."""
    assignor = f", {group.assignor}" if group.assignor else ""
    print(visible_text(f"group: {group.group} ({group.type}{assignor})"))
    print(f"state: {group.state}, {len(group.members)} members")
    print(f"lag: {group.lag_text}")
    if group.partitions:
        columns = ["topic", "partition", "committed", "end", "lag", "member"]
        print_rows(columns, [one._asdict() for one in group.partitions])
    others = [one for one in group.members if not one.partitions]  # idle ones, and those that have tasks
    if others:
        columns = ["member", "client_id", "host", *(["tasks"] if any(one.tasks for one in others) else [])]
        print_rows(columns, [{**one._asdict(), "member": one.id, "tasks": ", ".join(one.tasks)} for one in others])


class Target(NamedTuple):
    """The options of ``reset`` that choose the new offsets: exactly one is set."""

    to_earliest: bool
    to_latest: bool
    to_current: bool
    to_offset: int | None
    shift_by: int | None
    to_datetime: int | None


@command.command("reset")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:N,...]", help="offsets of this topic, or of these partitions"
)
@click.option("--all-topics", is_flag=True, help="offsets of all topics that the group has offsets of")
@click.option("--to-earliest", is_flag=True, help="to the start of each log")
@click.option("--to-latest", is_flag=True, help="to the end of each log")
@click.option("--to-current", is_flag=True, help="to the committed offsets, which stay as they are")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="to this offset, or as near as the log has it")
@click.option("--shift-by", type=int, metavar="N", help="by N records on, or back with -N")
@click.option(
    "--to-datetime",
    type=Moment(),
    metavar="TIME",
    help="to the first record of this time or later: ms, ISO 8601, 09:00, or 15m for 15 minutes ago",
)
@click.option("--dry-run", is_flag=True, help="show the offsets, commit none")
@json_option
@client_options()
def reset(
    *,
    settings: ClientSettings,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    as_json: bool,
    **target: Any,
) -> None:
    """Move the committed offsets of a group that has no members."""
    from tidelog.client import ClientError
    from tidelog.client.admin.groups import committed_offsets
    from tidelog.client.cluster import Cluster
    from tidelog.client.records.member import commit_offsets

    wanted = Target(**target)
    if sum(value is not None and value is not False for value in wanted) != 1:
        raise click.UsageError(
            "expected one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by and --to-datetime"
        )
    if bool(topics) == all_topics:
        raise click.UsageError("expected one of --topic and --all-topics")
    with Cluster.open(settings) as cluster:
        committed = committed_offsets(cluster, name)
        if all_topics and not committed:
            raise ClientError(f"group {name} has no committed offsets: expected --topic")
        partitions = sorted(committed) if all_topics else parse_partitions(cluster, topics)
        offsets = new_offsets(cluster, partitions, committed, wanted)
        if not dry_run:
            commit_offsets(cluster, name, offsets)
    rows = [
        {"topic": topic, "partition": number, "before": committed.get((topic, number)), "offset": offset}
        for (topic, number), offset in sorted(offsets.items())
    ]
    if as_json:
        print_json({"group": name, "changed": not dry_run, "partitions": rows})
    else:
        print_rows(["topic", "partition", "before", "offset"], rows)


def parse_partitions(cluster: Cluster, texts: tuple[str, ...]) -> list[TopicPartition]:
    """Parse ``TOPIC`` and ``TOPIC:0,1``. Raises UsageError, ClientError, and KafkaError, also if a partition does not
    exist.
    """
    from tidelog.client.admin.offsets import partitions_of
    from tidelog.client.cluster import ensure_partition

    partitions: list[TopicPartition] = []
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not colon:
            partitions += partitions_of(cluster, topic)
            continue
        for number in numbers.split(","):
            if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
                raise click.UsageError(f"--topic {text!r}: expected TOPIC or TOPIC:0,1")
            ensure_partition(cluster, topic, int(number))
            partitions.append((topic, int(number)))
    return partitions


def new_offsets(
    cluster: Cluster, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int], wanted: Target
) -> dict[TopicPartition, int]:
    """Compute the offset of each partition, within its log unless it stays. Raises ClientError, KafkaError."""
    from tidelog.client import ClientError
    from tidelog.client.admin.offsets import log_ends, log_starts, offsets_from

    starts, ends = log_starts(cluster, partitions), log_ends(cluster, partitions)
    if wanted.to_earliest:
        return starts
    if wanted.to_latest:
        return ends
    if wanted.to_datetime is not None:
        found = offsets_from(cluster, partitions, wanted.to_datetime)
        return {
            topic_partition: ends[topic_partition] if found[topic_partition] < 0 else found[topic_partition]
            for topic_partition in partitions
        }
    if wanted.to_offset is not None:
        moved = dict.fromkeys(partitions, wanted.to_offset)
    else:
        without = [f"{topic}-{number}" for topic, number in partitions if (topic, number) not in committed]
        if without:
            raise ClientError(f"no offset is committed for {', '.join(without)}")
        if wanted.shift_by is None:  # --to-current
            return {topic_partition: committed[topic_partition] for topic_partition in partitions}
        moved = {topic_partition: committed[topic_partition] + wanted.shift_by for topic_partition in partitions}
    return {
        topic_partition: min(max(moved[topic_partition], starts[topic_partition]), ends[topic_partition])
        for topic_partition in partitions
    }


@command.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@json_option
@client_options()
def delete(*, settings: ClientSettings, names: tuple[str, ...], as_json: bool) -> int:
    """Delete groups that have no members, with their offsets."""
    from tidelog.client.admin.groups import delete_group
    from tidelog.client.cluster import Cluster

    deleted: list[str] = []

    def delete_one(name: str) -> None:
        delete_group(cluster, name)
        deleted.append(name)

    with Cluster.open(settings) as cluster:
        code = each_of(names, delete_one)
    if as_json:
        print_json([{"group": name, "deleted": True} for name in deleted])
    else:
        for name in deleted:
            print(f"deleted group {name}")
    return code


@command.command("delete-offsets")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:N,...]",
              help="offsets of this topic, or of these partitions; may be repeated")  # fmt: skip
@json_option
@client_options()
def delete_offsets(*, settings: ClientSettings, name: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Delete a group's offsets of topics that no member reads."""
    from tidelog.client.admin.groups import delete_offsets as delete_them
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        partitions = parse_partitions(cluster, topics)
        delete_them(cluster, name, partitions)
    if as_json:
        print_json(
            {"group": name, "partitions": [f"{topic}-{number}" for topic, number in partitions], "deleted": True}
        )
    else:
        for topic, number in partitions:
            print(f"deleted the offset of {topic}-{number}")
