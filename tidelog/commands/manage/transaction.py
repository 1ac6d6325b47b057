"""``tidelog transaction``: lists, describes and aborts transactions of any Kafka cluster."""

from __future__ import annotations

import time

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json, print_rows

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip
"""Kafka's states of transactions."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@click.group(cls=Group)
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help="transactions in this state alone, such as Ongoing",
)
@json_option
@client_options()
def list_all(*, settings: ClientSettings, states: tuple[str, ...], as_json: bool) -> None:
    """List transactional ids and the states of their transactions."""
    from tidelog.client.admin.transactions import list_transactions
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        rows = [one._asdict() for one in list_transactions(cluster, states)]
    if as_json:
        print_json(rows)
    else:
        print_rows(["transactional_id", "producer_id", "state"], rows)


@command.command("describe")
@click.argument("name", metavar="TRANSACTIONAL-ID")
@json_option
@client_options()
def describe(*, settings: ClientSettings, name: str, as_json: bool) -> None:
    """Describe a transactional id: state, age, partitions."""
    from tidelog.client.admin.transactions import describe_transaction
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        found = describe_transaction(cluster, name)
    partitions = [f"{topic}-{number}" for topic, number in found.partitions]
    if as_json:
        print_json({**found._asdict(), "partitions": partitions})
        return
    print(f"transactional id: {found.transactional_id}")
    print(f"state: {found.state}")
    if found.state in OPEN_STATES:  # a finished transaction keeps its start
        print(f"open for: {max(0.0, time.time() - found.start / 1000):.0f} s, at most {found.timeout_ms / 1000:g} s")
    print(f"producer: {found.producer_id}, epoch {found.producer_epoch}")
    print(f"partitions: {', '.join(partitions) or '-'}")


@command.command("abort")
@click.argument("name", metavar="[TRANSACTIONAL-ID]", required=False)
@click.option("--topic", metavar="TOPIC", help="a transaction that its coordinator no longer knows: its topic")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="its partition")
@click.option("--start-offset", type=click.IntRange(0), metavar="N", help="the offset of its first record")
@json_option
@client_options()
def abort(
    *,
    settings: ClientSettings,
    name: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    as_json: bool,
) -> None:
    """Abort the open transaction of a transactional id, and fence its producer.

    With --topic, --partition and --start-offset a marker ends a transaction that hangs in one partition.
    """
    from tidelog.client.admin.transactions import abort_in_partition, abort_transaction
    from tidelog.client.cluster import Cluster

    if name is not None and topic is None and partition is None and start_offset is None:
        with Cluster.open(settings) as cluster:
            before = abort_transaction(cluster, name)
        if as_json:
            print_json({"transactional_id": name, "state_before": before.state, "producer_id": before.producer_id})
        else:
            print(f"transactional id {name} was {before.state}; its producer is fenced")
    elif name is None and topic is not None and partition is not None and start_offset is not None:
        with Cluster.open(settings) as cluster:
            producer = abort_in_partition(cluster, (topic, partition), start_offset)
        if as_json:
            print_json({"topic": topic, "partition": partition, "producer_id": producer.producer_id})
        else:
            print(f"aborted the transaction of producer {producer.producer_id} in {topic}-{partition}")
    else:
        raise click.UsageError("expected a transactional id, or --topic, --partition and --start-offset")
