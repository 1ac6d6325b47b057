"""``tidelog cluster``: the id, the brokers and the features of a cluster; ``start`` runs one for development."""

from __future__ import annotations

from pathlib import Path

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option, key_values
from tidelog.commands.frame.output import print_json, print_rows

MAX_NODES = 20


@click.group(cls=Group, invoke_without_command=True)
@json_option
@client_options()
@click.pass_context
def command(context: click.Context, /, *, settings: ClientSettings, as_json: bool) -> None:
    """Show a cluster's id, brokers and features; run one for development."""
    if context.invoked_subcommand is not None:
        return
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


@command.command("start")
@click.option(
    "--nodes", type=click.IntRange(1, MAX_NODES), default=3, show_default=True, help="number of Tidelog brokers"
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("cluster"),
    show_default=True,
    metavar="DIR",
    help="where the nodes' directories, configurations and logs are; a later start goes on with them",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    default=9092,
    show_default=True,
    metavar="N",
    help="port of the first broker; the other brokers and the controller have the next ones; 0 takes free ports",
)
@click.option(
    "--kafka",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="an unpacked release of Apache Kafka 4, or its jars; default: jars from --maven, kept in ~/.cache/tidelog",
)
@click.option("--maven", metavar="URL", help="the Maven repository for the controller's jars; default: Maven Central")
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="a key of the brokers; may be given many times"
)
@json_option
def start(
    *,
    nodes: int,
    data_dir: Path,
    port: int,
    kafka: Path | None,
    maven: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run a cluster on this machine until Ctrl-C, for development.

    A controller of Apache Kafka in a JVM (Java 17 or later) and Tidelog brokers, each a process of its own.
    """
    from tidelog.broker.config.broker_config import check_override_keys
    from tidelog.development_cluster.run import StartOptions, run
    from tidelog.protocol.config_def import ConfigError

    keys = key_values(overrides, "--override")
    try:
        check_override_keys(keys)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return run(StartOptions(nodes, data_dir.absolute(), port, kafka, maven, keys, as_json))
