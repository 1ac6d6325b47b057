"""``tidelog log-dirs``: the log directories of each broker, and the bytes of each partition in them."""

from __future__ import annotations

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json, print_rows


@click.command(cls=Command)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="this topic alone; may be repeated")
@json_option
@client_options()
def command(*, settings: ClientSettings, topics: tuple[str, ...], as_json: bool) -> None:
    """Show brokers' log directories, and the bytes of each partition."""
    from tidelog.client.admin.nodes import describe_log_dirs
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        found = describe_log_dirs(cluster, list(topics) or None)
    if as_json:
        print_json([{**one._asdict(), "partitions": [part._asdict() for part in one.partitions]} for one in found])
        return
    rows = [{**one._asdict(), "size": sum(part.size for part in one.partitions)} for one in found]
    print_rows(["broker", "directory", "size", "usable", "total"], rows)
    partitions = [part._asdict() for one in found for part in one.partitions]
    if partitions:
        print()
        print_rows(["broker", "topic", "partition", "size", "offset_lag"], partitions)
