"""``tidelog metadata describe``: prints the metadata of a KRaft cluster, from its controllers or from a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.client import ClientError, parse_bootstrap
from tidelog.commands.frame.commands import Group
from tidelog.commands.frame.options import Seconds, json_option
from tidelog.commands.frame.output import number_text, print_json, visible_text

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import MetadataImage

DEFAULT_TIMEOUT_S = 10.0
_LISTS = ("replicas", "isr", "adding", "removing", "elr", "lastKnownElr")
_ALWAYS_SHOWN = ("replicas", "isr")


@click.group(cls=Group)
def command() -> None:
    """Describe the metadata of a KRaft cluster."""


@command.command("describe")
@click.option(
    "--bootstrap-controller", metavar="HOST:PORT[,...]", help="controllers of a running cluster, separated by commas"
)
@click.option("--directory", metavar="PATH", help="a __cluster_metadata-0, or the log directory it is in")
@json_option
@click.option(
    "--timeout",
    type=Seconds(),
    default=DEFAULT_TIMEOUT_S,
    metavar="SECONDS",
    show_default=True,
    help="give up after this",
)
def describe(*, bootstrap_controller: str | None, directory: str | None, as_json: bool, timeout: float) -> None:
    """Print brokers, topics, configs, users and ACLs.

    Passwords are not printed, and no values of configs that this version does not know.
    """
    if (bootstrap_controller is None) == (directory is None):
        raise click.UsageError("expected one of --bootstrap-controller and --directory")
    description = describe_source(bootstrap_controller, directory, timeout)
    if as_json:
        print_json(description)
        return
    for line in text_lines(description):
        print(line)


def describe_source(controllers: str | None, directory: str | None, timeout_s: float) -> dict[str, Any]:
    """Build the description of the image in a directory or at controllers. Raises ClientError, KafkaError, OSError."""
    from tidelog.broker.cluster.observing.metadata_tail import MetadataLostError
    from tidelog.broker.cluster.observing.observer import ObserverError
    from tidelog.broker.config.resources import is_shown
    from tidelog.broker.metadata.image_description import describe_image
    from tidelog.metadata_follower import CatchUpError, NotAControllerError

    if directory is not None:
        return describe_image(read_directory(directory), is_shown)
    try:
        return describe_image(ask_controllers(controllers or "", timeout_s), is_shown)
    except (ObserverError, MetadataLostError, CatchUpError, NotAControllerError) as error:
        raise ClientError(str(error)) from error


def read_directory(path: str) -> MetadataImage:
    """Read the metadata image from a directory. Raises OSError, and what ``read_metadata_image`` raises."""
    from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.protocol.errors import KafkaStorageError

    inner = os.path.join(path, METADATA_DIRECTORY)
    directory = inner if os.path.isdir(inner) else path
    if not os.path.isdir(directory):
        raise KafkaStorageError(f"{path}: there is no such directory")
    if not any(name.endswith((".log", ".checkpoint")) for name in os.listdir(directory)):
        raise KafkaStorageError(f"{path}: neither a {METADATA_DIRECTORY} nor a directory that holds one")
    return read_metadata_image(OsFileSystem(), directory)


def ask_controllers(controllers: str, timeout_s: float) -> MetadataImage:
    """Follow the controllers until the image has all committed metadata, and return it.

    Raises ClientError, ObserverError, MetadataLostError, CatchUpError, NotAControllerError, KafkaError.
    """
    from tidelog.broker.cluster.observing.observer import ObserverConfig
    from tidelog.broker.cluster.quorum import Address
    from tidelog.metadata_follower import MetadataFollower

    listed = controllers.split(",")
    bootstrap = tuple(Address(*parse_bootstrap(one.strip(), "--bootstrap-controller")) for one in listed)
    with MetadataFollower(ObserverConfig(bootstrap)) as follower:
        return follower.catch_up(timeout_s)


def text_lines(description: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a description for people; empty sections are left out."""
    yield f"offset {description['offset']}, epoch {description['epoch']}, {_time_text(description['timestamp'])}"
    yield f"next producer id {description['nextProducerId']}"
    yield from _section("features", [f"{name} {level}" for name, level in description["features"].items()])
    yield from _section("controllers", [_node_text(one) for one in description["controllers"]])
    yield from _section("brokers", [_broker_text(one) for one in description["brokers"]])
    yield from _section("topics", [line for topic in description["topics"] for line in _topic_lines(topic)])
    yield from _section("configs", [_config_text(one) for one in description["configs"]])
    yield from _section("quotas", [_quota_text(one) for one in description["quotas"]])
    yield from _section(
        "users", [f"{one['name']}  {one['mechanism']}  {one['iterations']} iterations" for one in description["users"]]
    )
    yield from _section("acls", ["  ".join(str(value) for value in one.values()) for one in description["acls"]])
    yield from _section("tokens", description["tokens"])


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"{title}:"
        yield from (f"  {visible_text(line)}" for line in lines)


def _time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "no records"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # after the year 9999
        return f"{timestamp_ms} ms"


def _node_text(node: dict[str, Any]) -> str:
    endpoints = (f"{one['name']}://{_host_text(one['host'])}:{one['port']}" for one in node["endpoints"])
    return "  ".join((str(node["id"]), *endpoints))


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _broker_text(broker: dict[str, Any]) -> str:
    parts = [_node_text(broker), f"epoch {broker['epoch']}"]
    parts += [f"rack {broker['rack']}"] if broker["rack"] is not None else []
    parts += ["fenced"] if broker["fenced"] else []
    parts += ["in controlled shutdown"] if broker["inControlledShutdown"] else []
    return "  ".join(parts)


def _topic_lines(topic: dict[str, Any]) -> Iterator[str]:
    yield f"{topic['name']}  id {topic['id']}  {len(topic['partitions'])} partitions"
    for one in topic["partitions"]:
        summary = f"  {one['partition']}  leader {one['leader']}  epoch {one['leaderEpoch']}"
        lists = (f"{key} {_list_text(one[key])}" for key in _LISTS if one[key] or key in _ALWAYS_SHOWN)
        yield "  ".join((summary, *lists))


def _list_text(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "none"


def _config_text(configs: dict[str, Any]) -> str:
    values = ", ".join(f"{key}={value}" for key, value in configs["values"].items())
    return f"{configs['type']} {configs['name'] or '(all)'}: {values}"


def _quota_text(quota: dict[str, Any]) -> str:
    entity = ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in quota["entity"].items())
    return f"{entity}: " + ", ".join(f"{key}={number_text(value)}" for key, value in quota["values"].items())
