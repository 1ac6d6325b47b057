"""``tidelog quota``: client quotas of any Kafka cluster, by user, client id and address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option, key_values
from tidelog.commands.frame.output import number_text, print_json, print_rows

_Function = TypeVar("_Function", bound=Callable[..., Any])

ENTITY_TYPES = ("user", "client-id", "ip")
"""The types of ``tidelog.client.admin.quotas``, which is not imported for a help text."""


@click.group(cls=Group)
def command() -> None:
    """List, set and unset client quotas."""


def entity_options(function: _Function) -> _Function:
    """Add the options that name an entity."""
    decorated = click.option("--user", metavar="NAME", help="quotas of this user")(function)
    decorated = click.option("--client-id", metavar="ID", help="quotas of this client id")(decorated)
    decorated = click.option("--ip", metavar="ADDRESS", help="quotas of this address")(decorated)
    return click.option(
        "--default",
        "defaults",
        type=click.Choice(ENTITY_TYPES),
        multiple=True,
        help="default quotas of this type, for entities without quotas of their own; may be repeated",
    )(decorated)


def entity_of(
    user: str | None, client_id: str | None, ip: str | None, defaults: tuple[str, ...]
) -> dict[str, str | None]:
    """Build the entity of a command line. Raises UsageError."""
    given = {"user": user, "client-id": client_id, "ip": ip}
    entity = {kind: name for kind, name in given.items() if name is not None}
    twice = [kind for kind in defaults if kind in entity]
    if twice:
        raise click.UsageError(f"--default {twice[0]}: expected it without --{twice[0]}")
    return {**entity, **dict.fromkeys(defaults)}


def entity_text(entity: dict[str, str | None]) -> str:
    """Format an entity for people."""
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in sorted(entity.items()))


@command.command("list")
@entity_options
@json_option
@client_options()
def list_all(*, settings: ClientSettings, as_json: bool, **named: Any) -> None:
    """List all quotas, or those of entities that include the given names and defaults."""
    from tidelog.client.admin.quotas import list_quotas
    from tidelog.client.cluster import Cluster

    with Cluster.open(settings) as cluster:
        found = list_quotas(cluster, entity_of(**named))
    if as_json:
        print_json([quota._asdict() for quota in found])
        return
    print_rows(
        ["entity", "limit", "value"],
        [
            {"entity": entity_text(quota.entity), "limit": key, "value": number_text(value)}
            for quota in found
            for key, value in quota.limits.items()
        ],
    )


@command.command("set")
@click.argument("pairs", metavar="LIMIT=VALUE...", nargs=-1, required=True)
@entity_options
@json_option
@client_options()
def set_limits(*, settings: ClientSettings, pairs: tuple[str, ...], as_json: bool, **named: Any) -> None:
    """Set limits of an entity, such as producer_byte_rate=1048576."""
    limits: dict[str, float | None] = {}
    for key, text in key_values(pairs, "argument").items():
        try:
            limits[key] = float(text)
        except ValueError:
            raise click.UsageError(f"argument '{key}={text}': expected a number") from None
    change(settings, entity_of(**named), limits, as_json=as_json)


@command.command("unset")
@click.argument("keys", metavar="LIMIT...", nargs=-1, required=True)
@entity_options
@json_option
@client_options()
def unset(*, settings: ClientSettings, keys: tuple[str, ...], as_json: bool, **named: Any) -> None:
    """Remove limits of an entity."""
    change(settings, entity_of(**named), dict.fromkeys(keys), as_json=as_json)


def change(
    settings: ClientSettings, entity: dict[str, str | None], limits: dict[str, float | None], *, as_json: bool
) -> None:
    """Change the limits of an entity and print them. Raises UsageError, ClientError, KafkaError."""
    from tidelog.client.admin.quotas import alter_quota
    from tidelog.client.cluster import Cluster

    if not entity:
        raise click.UsageError("expected --user, --client-id, --ip or --default")
    with Cluster.open(settings) as cluster:
        alter_quota(cluster, entity, limits)
    if as_json:
        print_json({"entity": entity, "limits": limits})
        return
    for key, value in limits.items():
        print(f"{entity_text(entity)}: {f'unset {key}' if value is None else f'set {key}={number_text(value)}'}")
