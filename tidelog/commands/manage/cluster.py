"""``tidelog cluster``: the id, the brokers and the features of a cluster."""

from __future__ import annotations

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json, print_rows


@click.command(cls=Command)
@json_option
@client_options()
def command(*, settings: ClientSettings, as_json: bool) -> None:
    """Show a cluster's id, brokers and features."""
    from tidelog.client.admin.nodes import describe_cluster
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        found = describe_cluster(cluster)
    brokers = [broker._asdict() for broker in found.brokers]
    if as_json:
        print_json({**found._asdict(), "brokers": brokers})
        return
    print(f"cluster: {found.id}")
    print(f"controller: {found.controller}")
    if found.features:
        print(f"features: {', '.join(f'{name} {level}' for name, level in found.features.items())}")
    print_rows(["id", "host", "port", "rack"], brokers)
