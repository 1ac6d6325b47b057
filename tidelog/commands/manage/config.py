"""``tidelog config``: configurations of topics, brokers, groups and client metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option, key_values
from tidelog.commands.frame.output import print_json, print_rows

if TYPE_CHECKING:
    from tidelog.client.admin.configs import Resource

TYPES = ("topic", "broker", "broker-logger", "client-metrics", "group")
"""The resource types of ``tidelog.client.admin.configs``, which is not imported for a help text."""
ALL_BROKERS = "default"

type_argument = click.argument("kind", metavar="TYPE", type=click.Choice(TYPES))
name_argument = click.argument("name", metavar="NAME")


@click.group(cls=Group)
def command() -> None:
    """Show and change configs of topics, brokers and groups."""


@command.command("get")
@type_argument
@name_argument
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="show all keys: also those in the file, and defaults")
@click.option("--doc", is_flag=True, help="the documentation of each key")
@json_option
@client_options()
def get(
    *,
    settings: ClientSettings,
    kind: str,
    name: str,
    keys: tuple[str, ...],
    everything: bool,
    doc: bool,
    as_json: bool,
) -> None:
    """Show a configuration, and where each value comes from.

    TYPE is topic, broker, broker-logger, client-metrics or group. NAME of a broker is its id, or "default" for what is
    set for all brokers. Without KEY, keys that requests have set are shown, and none from a
    broker's configuration file.
    """
    from tidelog.client.admin.configs import OWN_SOURCES, check_known, describe_configs
    from tidelog.client.cluster import Cluster

    resource = resource_of(kind, name)
    with Cluster.open(settings) as cluster:
        entries = describe_configs(cluster, resource, keys or None, documentation=doc)
    check_known(resource, keys, entries)
    shown = [entry for entry in entries if everything or keys or entry.source in OWN_SOURCES[kind]]
    rows = [entry._asdict() for entry in shown]
    if as_json:
        print_json(rows)
    else:
        print_rows(["key", "value", "source", *(["documentation"] if doc else [])], rows)


@command.command("set")
@type_argument
@name_argument
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="let the broker check it, change nothing")
@json_option
@client_options()
def set_values(
    *, settings: ClientSettings, kind: str, name: str, pairs: tuple[str, ...], dry_run: bool, as_json: bool
) -> None:
    """Set keys of a configuration; the others stay."""
    change(settings, kind, name, dict(key_values(pairs, "argument")), dry_run=dry_run, as_json=as_json)


@command.command("unset")
@type_argument
@name_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="let the broker check it, change nothing")
@json_option
@client_options()
def unset(
    *, settings: ClientSettings, kind: str, name: str, keys: tuple[str, ...], dry_run: bool, as_json: bool
) -> None:
    """Unset keys of a configuration; what is set elsewhere, or the default, applies then."""
    change(settings, kind, name, dict.fromkeys(keys), dry_run=dry_run, as_json=as_json)


def change(
    settings: ClientSettings, kind: str, name: str, values: dict[str, str | None], *, dry_run: bool, as_json: bool
) -> None:
    """Change a configuration and print what was changed. Raises ClientError, KafkaError."""
    from tidelog.client.admin.configs import alter_configs
    from tidelog.client.cluster import Cluster

    resource = resource_of(kind, name)
    with Cluster.open(settings) as cluster:
        alter_configs(cluster, resource, values, validate_only=dry_run)
    if as_json:
        print_json({"type": kind, "name": name, "configs": values, "changed": not dry_run})
        return
    for key, value in values.items():
        verb = "unset" if value is None else "set"
        told = key if value is None else f"{key}={value}"
        print(f"{resource}: would {verb} {told}" if dry_run else f"{resource}: {verb} {told}")


def resource_of(kind: str, name: str) -> Resource:
    """Return the resource of a type and a name."""
    from tidelog.client.admin.configs import Resource

    return Resource(kind, "" if kind == "broker" and name == ALL_BROKERS else name)
