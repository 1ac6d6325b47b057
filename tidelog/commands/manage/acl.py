"""``tidelog acl``: the ACLs of any Kafka cluster."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import ClientSettings, client_options, json_option
from tidelog.commands.frame.output import print_json, print_rows

if TYPE_CHECKING:
    from tidelog.client.admin.acls import Acl

_Function = TypeVar("_Function", bound=Callable[..., Any])

CLUSTER_NAME = "kafka-cluster"
NAMED_TYPES = ("topic", "group", "transactional-id", "delegation-token", "user")
OPERATIONS = (
    "all", "read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs",
    "alter-configs", "idempotent-write", "create-tokens", "describe-tokens", "two-phase-commit",
)  # fmt: skip
"""Operations of ``tidelog.client.admin.acls``, which is not imported for a help text."""


@click.group(cls=Group)
def command() -> None:
    """List, create and delete ACLs."""


def resource_options(default_pattern: str) -> Callable[[_Function], _Function]:
    """Return the decorator that adds the options that name a resource; ``default_pattern`` is for the help."""

    def decorate(function: _Function) -> _Function:
        decorated = click.option("--cluster", is_flag=True, help="on the cluster itself")(function)
        for kind in reversed(NAMED_TYPES):
            decorated = click.option(f"--{kind}", metavar="NAME", help=f"on this {kind}; '*' is every one")(decorated)
        return click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(["literal", "prefixed"]),
            help=f"prefixed: for all names that begin with NAME; default: {default_pattern}",
        )(decorated)

    return decorate


def resource_of(named: dict[str, Any]) -> tuple[str, str] | None:
    """Return type and name of the resource in the options; None without any. Raises UsageError."""
    found = [(kind, named[kind.replace("-", "_")]) for kind in NAMED_TYPES if named[kind.replace("-", "_")] is not None]
    found += [("cluster", CLUSTER_NAME)] if named["cluster"] else []
    if len(found) > 1:
        raise click.UsageError(f"expected one resource, not --{found[0][0]} and --{found[1][0]}")
    return found[0] if found else None


@command.command("list")
@resource_options("both types")
@click.option("--principal", metavar="TYPE:NAME", help="ACLs of this principal alone, such as User:alice")
@json_option
@client_options()
def list_all(
    *, settings: ClientSettings, principal: str | None, pattern: str | None, as_json: bool, **named: Any
) -> None:
    """List ACLs: all, or those of a resource or a principal."""
    from tidelog.client.admin.acls import Acl, list_acls
    from tidelog.client.cluster import Cluster

    kind, name = resource_of(named) or (None, None)
    with Cluster.open(settings) as cluster:
        found = list_acls(cluster, Acl(kind, name, pattern, principal))
    print_acls(found, as_json=as_json)


@command.command("create")
@resource_options("literal")
@click.option("--allow-principal", "allowed", multiple=True, metavar="TYPE:NAME", help="such as User:alice, or User:*")
@click.option("--deny-principal", "denied", multiple=True, metavar="TYPE:NAME", help="wins over what is allowed")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="ADDRESS",
              help="client address of what is allowed; default: all")  # fmt: skip
@click.option("--deny-host", "denied_hosts", multiple=True, metavar="ADDRESS",
              help="client address of what is denied; default: all")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="as both --allow-host and --deny-host")
@click.option("--operation", "operations", type=click.Choice(OPERATIONS), multiple=True, required=True,
              help="may be repeated")  # fmt: skip
@json_option
@client_options()
def create(
    *,
    settings: ClientSettings,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    denied_hosts: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    pattern: str | None,
    as_json: bool,
    **named: Any,
) -> None:
    """Create ACLs: one for each principal, each host of its kind and each operation."""
    from tidelog.client.admin.acls import Acl, create_acls
    from tidelog.client.cluster import Cluster

    resource = resource_of(named)
    if resource is None:
        raise click.UsageError(f"expected a resource: --cluster, --{', --'.join(NAMED_TYPES)}")
    if not allowed and not denied:
        raise click.UsageError("expected --allow-principal or --deny-principal")
    parties = parties_of("allow", allowed, allowed_hosts, hosts) + parties_of("deny", denied, denied_hosts, hosts)
    acls = [
        Acl(*resource, pattern or "literal", principal, host, operation, permission)
        for (principal, host, permission), operation in product(parties, operations)
    ]
    with Cluster.open(settings) as cluster:
        create_acls(cluster, acls)
    print_acls(acls, as_json=as_json)


def parties_of(
    permission: str, principals: tuple[str, ...], own_hosts: tuple[str, ...], hosts: tuple[str, ...]
) -> list[tuple[str, str, str]]:
    """Return each principal with each host (``*`` if none is given) and the permission. Raises UsageError."""
    if own_hosts and not principals:
        raise click.UsageError(f"--{permission}-host: expected it with --{permission}-principal")
    for principal in principals:
        if ":" not in principal:
            raise click.UsageError(f"principal {principal!r}: expected TYPE:NAME, such as User:{principal}")
    return [(principal, host, permission) for principal in principals for host in (*own_hosts, *hosts) or ("*",)]


@command.command("delete")
@resource_options("both types")
@click.option("--principal", metavar="TYPE:NAME", help="ACLs of this principal alone")
@click.option("--host", metavar="ADDRESS", help="ACLs of this host alone")
@click.option("--operation", type=click.Choice(OPERATIONS), help="ACLs for this operation alone")
@click.option("--permission", type=click.Choice(["allow", "deny"]), help="ACLs of this kind alone")
@json_option
@client_options()
def delete(
    *,
    settings: ClientSettings,
    principal: str | None,
    host: str | None,
    operation: str | None,
    permission: str | None,
    pattern: str | None,
    as_json: bool,
    **named: Any,
) -> None:
    """Delete the ACLs of a resource or a principal that match all that is given."""
    from tidelog.client.admin.acls import Acl, delete_acls
    from tidelog.client.cluster import Cluster

    resource = resource_of(named)
    if resource is None and principal is None:
        raise click.UsageError("expected a resource or --principal: without them all ACLs would be deleted")
    kind, name = resource or (None, None)
    with Cluster.open(settings) as cluster:
        deleted = delete_acls(cluster, Acl(kind, name, pattern, principal, host, operation, permission))
    print_acls(deleted, as_json=as_json)


def print_acls(acls: list[Acl], *, as_json: bool) -> None:
    """Print ACLs as a table or as JSON."""
    rows = [acl._asdict() for acl in acls]
    if as_json:
        print_json(rows)
    else:
        columns = ["resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"]
        print_rows(columns, rows)
