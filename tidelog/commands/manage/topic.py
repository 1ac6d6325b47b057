"""``tidelog topic``: lists, describes, creates, changes and deletes topics of any Kafka cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.completing import complete_topics
from tidelog.commands.frame.options import ClientSettings, client_options, each_of, json_option, key_values
from tidelog.commands.frame.output import print_json, print_rows

if TYPE_CHECKING:
    from tidelog.client.admin.topics import Topic
    from tidelog.client.cluster import Cluster

PARTITIONS = click.IntRange(1, 2**31 - 1)
MAX_REPLICAS = 2**15 - 1
"""The numbers that CreateTopics and CreatePartitions can carry: 32 and 16 bits."""


@click.group(cls=Group)
def command() -> None:
    """List, describe, create, change and delete topics."""


@command.command("list")
@click.option("--internal", is_flag=True, help="the cluster's own topics as well")
@json_option
@client_options()
def list_all(*, settings: ClientSettings, internal: bool, as_json: bool) -> None:
    """List the topics."""
    from tidelog.client.admin.topics import list_topics
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        topics = [topic for topic in list_topics(cluster) if internal or not topic.internal]
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replicas": topic.replication_factor,
            "internal": topic.internal,
            "id": topic.id,
        }
        for topic in topics
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(["name", "partitions", "replicas", *(["internal"] if internal else [])], rows)


@command.command("describe")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--all-configs", is_flag=True, help="show keys that have their default value, too")
@json_option
@client_options()
def describe(*, settings: ClientSettings, names: tuple[str, ...], all_configs: bool, as_json: bool) -> int:
    """Describe topics: partitions, offsets, configuration."""
    from tidelog.client.admin.topics import describe_topics
    from tidelog.client.cluster import Cluster

    found: list[dict[str, Any]] = []

    def describe_one(name: str) -> None:
        (topic,) = describe_topics(cluster, [name])
        found.append(describe_with_offsets(cluster, topic, all_configs))

    with Cluster.open(settings) as cluster:
        code = each_of(names, describe_one)
    if as_json:
        print_json(found)
        return code
    for number, topic in enumerate(found):
        if number:
            print()
        print_topic(topic)
    return code


def describe_with_offsets(cluster: Cluster, topic: Topic, all_configs: bool) -> dict[str, Any]:
    """Build the description of a topic, with the offsets of its logs. Raises ClientError, KafkaError."""
    from tidelog.client.admin.configs import OWN_SOURCES, Resource, describe_configs
    from tidelog.client.admin.offsets import log_ends, log_starts

    led = [(topic.name, one.partition) for one in topic.partitions if one.leader >= 0]
    starts, ends = log_starts(cluster, led), log_ends(cluster, led)
    configs = describe_configs(cluster, Resource("topic", topic.name))
    return {
        "name": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "replicas": topic.replication_factor,
        "partitions": [
            {
                **one._asdict(),
                "start_offset": starts.get((topic.name, one.partition)),
                "end_offset": ends.get((topic.name, one.partition)),
            }
            for one in topic.partitions
        ],
        "configs": [
            {"key": entry.key, "value": entry.value, "source": entry.source}
            for entry in configs
            if all_configs or entry.source in OWN_SOURCES["topic"]
        ],
    }


def print_topic(topic: Mapping[str, Any]) -> None:
    """Print a description for people."""
    for key in ("name", "id", "replicas"):
        print(f"{key}: {topic[key]}")
    columns = ["partition", "leader", "leader_epoch", "replicas", "isr", "start_offset", "end_offset"]
    print_rows(columns, topic["partitions"])
    if topic["configs"]:
        print_rows(["key", "value", "source"], topic["configs"])


@command.command("create")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-p", "--partitions", type=PARTITIONS, metavar="N", help="default: the broker's num.partitions")
@click.option(
    "-r",
    "--replication-factor",
    "--replicas",
    "replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    metavar="N",
    help="default: the broker's default.replication.factor",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="a configuration; may be repeated")
@click.option("--if-not-exists", is_flag=True, help="a topic that is there already is not a failure")
@click.option("--dry-run", is_flag=True, help="let the broker check it, create nothing")
@json_option
@client_options()
def create(
    *,
    settings: ClientSettings,
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Create topics."""
    from tidelog.client.admin.topics import NewTopic, create_topic
    from tidelog.client.cluster import Cluster
    from tidelog.protocol.errors import TopicAlreadyExistsError

    texts = key_values(configs, "--config")
    results: list[dict[str, Any]] = []

    def create_one(name: str) -> None:
        asked = NewTopic(name, partitions or -1, replicas or -1, texts)
        try:
            made = create_topic(cluster, asked, validate_only=dry_run)
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            results.append({"name": name, "created": False})
            return
        results.append(
            {"name": name, "created": not dry_run, "partitions": len(made.partitions) or None,
             "replicas": made.replication_factor or None}
        )  # fmt: skip

    with Cluster.open(settings) as cluster:
        code = each_of(names, create_one)
    print_results(results, as_json, lambda row: _created_text(row, dry_run))
    return code


def _created_text(row: Mapping[str, Any], dry_run: bool) -> str:
    if "partitions" not in row:
        return f"topic {row['name']} is there already"
    if dry_run:
        return f"topic {row['name']} would be created"
    size = f": {row['partitions']} partitions, {row['replicas']} replicas" if row["partitions"] else ""
    return f"created topic {row['name']}{size}"


@command.command("delete")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="a topic that is not there is not a failure")
@json_option
@client_options()
def delete(*, settings: ClientSettings, names: tuple[str, ...], if_exists: bool, as_json: bool) -> int:
    """Delete topics with all their records."""
    from tidelog.client.admin.topics import delete_topic
    from tidelog.client.cluster import Cluster
    from tidelog.protocol.errors import UnknownTopicOrPartitionError

    results: list[dict[str, Any]] = []

    def delete_one(name: str) -> None:
        try:
            delete_topic(cluster, name)
        except UnknownTopicOrPartitionError:
            if not if_exists:
                raise
            results.append({"name": name, "deleted": False})
        else:
            results.append({"name": name, "deleted": True})

    with Cluster.open(settings) as cluster:
        code = each_of(names, delete_one)
    print_results(
        results,
        as_json,
        lambda row: f"deleted topic {row['name']}" if row["deleted"] else f"there is no topic {row['name']}",
    )
    return code


@command.command("alter")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="a configuration; may be repeated")
@click.option(
    "--delete-config", "unset", multiple=True, metavar="KEY", help="set this key back to its default; may be repeated"
)
@click.option("-p", "--partitions", type=PARTITIONS, metavar="N", help="number of partitions after the change")
@json_option
@client_options()
def alter(
    *,
    settings: ClientSettings,
    name: str,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    partitions: int | None,
    as_json: bool,
) -> None:
    """Change a topic's configuration or its number of partitions."""
    from tidelog.client import ClientError
    from tidelog.client.admin.configs import Resource, alter_configs
    from tidelog.client.admin.topics import add_partitions
    from tidelog.client.cluster import Cluster
    from tidelog.protocol.errors import KafkaError

    changes: dict[str, str | None] = {**key_values(configs, "--config"), **dict.fromkeys(unset)}
    if not changes and partitions is None:
        raise click.UsageError("expected --config, --delete-config or --partitions")
    with Cluster.open(settings) as cluster:
        if changes:
            alter_configs(cluster, Resource("topic", name), changes)
        if partitions is not None:
            try:
                add_partitions(cluster, name, partitions)
            except (ClientError, KafkaError):
                if changes:
                    _print_changed(name, changes, None, as_json, f"the configuration of topic {name}")
                raise
    _print_changed(name, changes, partitions, as_json, f"topic {name}")


def _print_changed(
    name: str, changes: Mapping[str, str | None], partitions: int | None, as_json: bool, what: str
) -> None:
    if as_json:
        print_json({"name": name, "configs": changes, "partitions": partitions})
    else:
        print(f"changed {what}")


@command.command("add-partitions")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("-n", "--num", type=PARTITIONS, metavar="N", help="number of partitions to add")
@click.option("-p", "--partitions", "total", type=PARTITIONS, metavar="N", help="number of partitions after the change")
@click.option("--dry-run", is_flag=True, help="let the broker check it, add none")
@json_option
@client_options()
def add(
    *, settings: ClientSettings, name: str, num: int | None, total: int | None, dry_run: bool, as_json: bool
) -> None:
    """Add partitions to a topic; records of a key may then go to another partition."""
    from tidelog.client.admin.topics import add_partitions, describe_topics
    from tidelog.client.cluster import Cluster

    if (num is None) == (total is None):
        raise click.UsageError("expected one of --num and --partitions")
    with Cluster.open(settings) as cluster:
        (topic,) = describe_topics(cluster, [name])
        before = len(topic.partitions)
        after = total if total is not None else before + (num or 0)
        add_partitions(cluster, name, after, validate_only=dry_run)
    if as_json:
        print_json({"name": name, "before": before, "partitions": after, "added": not dry_run})
    else:
        print(f"topic {name} {'would go' if dry_run else 'went'} from {before} to {after} partitions")


def print_results(results: Sequence[Mapping[str, Any]], as_json: bool, line: Any) -> None:
    """Print the result for each topic: a JSON list, or a line each."""
    if as_json:
        print_json(results)
        return
    for row in results:
        print(line(row))
