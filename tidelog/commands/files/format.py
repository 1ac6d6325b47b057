"""``tidelog format``: formats the log directories of a node for a cluster, as ``kafka-storage format`` does.

Each directory of ``log.dirs`` gets a ``meta.properties``: ``version=1``, ``cluster.id``, ``node.id`` and a random
``directory.id`` of its own (KIP-858). All directories and options are checked before anything is written; only a
directory that cannot be created or written is found later, when those before it are formatted.

A single node (without ``process.roles``, or with both roles) also gets a ``bootstrap.checkpoint``, which is written
before the ``meta.properties`` of its first directory. It has feature levels (of a given release of Kafka, or the
default ones) and the first users; the node's first start commits them to its metadata log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_USAGE
from tidelog.commands.frame.options import json_option
from tidelog.commands.frame.output import print_json

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.commands.frame.scram import FirstUser
    from tidelog.log.files.checkpoints import MetaProperties
    from tidelog.log.system.file_system import FileSystem

CLUSTER_ID_BYTES = 16


class FormatError(Exception):
    """The directories cannot be formatted with these options."""


class FormatOptionError(FormatError):
    """The value of an option is wrong."""


@click.command(cls=Command)
@click.option(
    "-t", "--cluster-id", required=True, metavar="ID", help="the cluster's id, as kafka-storage random-uuid prints"
)
@click.option("-c", "--config", "config_file", required=True, metavar="FILE", help="the node's server.properties")
@click.option("-g", "--ignore-formatted", is_flag=True, help="leave out directories that are formatted already")
@click.option(
    "-S",
    "--add-scram",
    "arguments",
    multiple=True,
    metavar="MECHANISM=[...]",
    help="a first user of a lone node, may be repeated: 'SCRAM-SHA-512=[name=admin,password-file=FILE]', with name; "
    "password, password-file or saltedpassword; salt and iterations",
)
@click.option(
    "-r",
    "--release-version",
    "release",
    metavar="RELEASE",
    help="the oldest Kafka that may take over a lone node's directory, such as 4.1 or 4.1-IV1; 3.9 to 4.3, default 4.2",
)
@json_option
def command(
    *,
    cluster_id: str,
    config_file: str,
    ignore_formatted: bool,
    arguments: tuple[str, ...],
    release: str | None,
    as_json: bool,
) -> int:
    """Format a node's log directories for a cluster.

    Writes meta.properties: the cluster, the node's id, and an id for each log directory. A lone node's first users go
    into bootstrap.checkpoint, which its first start reads, with the levels of its features.
    """
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.protocol.config_def import ConfigError
    from tidelog.protocol.errors import KafkaStorageError

    try:
        config = BrokerConfig.load(config_file, os.environ)
        check_cluster_id(cluster_id, config)
        check_node_id(config_file, config)
        first = FirstRecords(parse_release(release), parse_users(arguments))
        formatted = format_directories(OsFileSystem(), config, cluster_id, first, ignore_formatted=ignore_formatted)
    except (ConfigError, FormatOptionError) as error:
        print(f"tidelog format: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (FormatError, KafkaStorageError) as error:
        print(f"tidelog format: {error}", file=sys.stderr)
        return EXIT_FAILED
    if as_json:
        users = [{"name": user.name, "mechanism": user.mechanism} for user in first.users]
        print_json({"cluster_id": cluster_id, "node_id": config.node_id, "formatted": formatted, "users": users})
    else:
        tell(formatted, f"node {config.node_id} of cluster {cluster_id}", first.users)
    return 0


def tell(formatted: Sequence[str], node: str, users: Sequence[FirstUser]) -> None:
    """Print what was formatted."""
    for directory in formatted:
        print(f"formatted {directory} for {node}")
    for user in users:
        print(f"user {user.name} has a password for {user.mechanism} from the first start on")
    if not formatted:
        print("all log directories are formatted already")


def check_cluster_id(cluster_id: str, config: BrokerConfig) -> None:
    """Raise FormatError unless this is a valid cluster id, and equal to the configured one, if any."""
    from tidelog.protocol.types import uuid_from_str, uuid_to_str

    try:
        uuid = uuid_from_str(cluster_id)
    except ValueError:
        uuid = b""
    if len(uuid) != CLUSTER_ID_BYTES or uuid_to_str(uuid) != cluster_id:
        raise FormatOptionError(
            f"the cluster id {cluster_id!r} is not a UUID in base64 (22 characters), such as kafka-storage "
            "random-uuid prints"
        )
    configured = config.get("cluster.id")
    if configured not in (None, cluster_id):
        raise FormatOptionError(f"cluster.id is configured as {configured}, and {cluster_id} is given")


def check_node_id(path: str, config: BrokerConfig) -> None:
    """Raise FormatError if the configuration does not set the node's id."""
    if not {"node.id", "broker.id"} & config.static_texts.keys():
        raise FormatOptionError(f"{path} does not set node.id, which must be unique in the cluster")


def parse_users(arguments: Sequence[str]) -> list[FirstUser]:
    """Return the users of ``--add-scram``; of two with the same name and mechanism the last one is used.

    Raises FormatError.
    """
    from tidelog.commands.frame.scram import ScramArgumentError, parse_first_user

    try:
        return [parse_first_user(argument) for argument in arguments]
    except ScramArgumentError as error:
        raise FormatOptionError(f"--add-scram: {error}") from error


def parse_release(release: str | None) -> dict[str, int] | None:
    """Return the feature levels of ``--release-version``. Raises FormatError."""
    from tidelog.broker.controller.features import levels_of_release

    try:
        return None if release is None else levels_of_release(release)
    except ValueError as error:
        raise FormatOptionError(f"--release-version: {error}") from error


class FirstRecords(NamedTuple):
    """First records of a single node's metadata log: feature levels (None: the default ones), and users."""

    levels: dict[str, int] | None = None
    users: Sequence[FirstUser] = ()

    @property
    def option(self) -> str | None:
        """The option that was given, for errors; ``--add-scram`` if both were, None if neither was."""
        return "--add-scram" if self.users else None if self.levels is None else "--release-version"


def format_directories(
    file_system: FileSystem,
    config: BrokerConfig,
    cluster_id: str,
    records: FirstRecords,
    *,
    ignore_formatted: bool,
) -> list[str]:
    """Format each log directory; return those that were not formatted before. ``records`` are for a single node.

    Raises FormatError and KafkaStorageError. With FormatError nothing was written, unless a directory cannot be
    created: then those before it are formatted.
    """
    from tidelog.log.files.checkpoints import MetaProperties, read_meta_properties, write_meta_properties
    from tidelog.protocol.types import SystemRandom, random_uuid

    found = {directory: read_meta_properties(file_system, directory) for directory in config.log_dirs}
    for directory, properties in found.items():
        if properties is not None:
            check_formatted(directory, properties, MetaProperties(cluster_id, config.node_id, None), ignore_formatted)
    missing = [directory for directory, properties in found.items() if properties is None]
    first = config.log_dirs[0]
    reason = explain_no_records(file_system, config, is_formatted=first not in missing)
    if records.option and reason:
        raise FormatError(f"{records.option}: {reason}")
    for directory in missing:
        make_directory(file_system, directory, config)
        if directory == first and reason is None:
            write_first_records(file_system, directory, records)
        identity = MetaProperties(cluster_id, config.node_id, random_uuid(SystemRandom()))
        write_meta_properties(file_system, directory, identity)
    return missing


def explain_no_records(file_system: FileSystem, config: BrokerConfig, *, is_formatted: bool) -> str | None:
    """Return why the node's first start would not read first records, None if it would."""
    from tidelog.broker.controller.conversion import STORE_FILE
    from tidelog.log.directories.names import METADATA_DIRECTORY

    roles, first = config.get_list("process.roles"), config.log_dirs[0]
    if roles and set(roles) != {"broker", "controller"}:
        return f"process.roles={','.join(roles)}: this option is for the format of the cluster's controllers"
    change = "users and levels are changed in the running broker (tidelog user create, kafka-features)"
    if is_formatted:
        return f"{first} is formatted already; {change}"
    if any(file_system.exists(os.path.join(first, name)) for name in (METADATA_DIRECTORY, STORE_FILE)):
        return f"{first} has been used already; {change}"
    return None


def write_first_records(file_system: FileSystem, directory: str, first: FirstRecords) -> None:
    """Write the first records of a single node's metadata log. Raises KafkaStorageError."""
    from tidelog.broker.controller.features import first_levels, level_record
    from tidelog.broker.metadata.bootstrap import write_bootstrap
    from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE
    from tidelog.log.system.time import SystemTime

    if first.levels is None:
        levels = first_levels(EMPTY_IMAGE)
    else:
        levels = [level_record(name, level) for name, level in first.levels.items()]
    records = [*levels, *(user.record for user in first.users)]
    write_bootstrap(file_system, directory, records, SystemTime().milliseconds())


def check_formatted(directory: str, found: MetaProperties, wanted: MetaProperties, ignore_formatted: bool) -> None:
    """Raise FormatError for a formatted directory of another cluster or node; without ``ignore_formatted`` for any."""
    from tidelog.log.files.checkpoints import META_PROPERTIES_FILE

    path = os.path.join(directory, META_PROPERTIES_FILE)
    if found.cluster_id != wanted.cluster_id:
        raise FormatError(f"{path} has cluster.id={found.cluster_id}, not {wanted.cluster_id}")
    if found.node_id != wanted.node_id:
        raise FormatError(f"{path} has node.id={found.node_id}, not {wanted.node_id}")
    if not ignore_formatted:
        raise FormatError(
            f"{path} exists: {directory} is formatted already; --ignore-formatted skips it and formats the others"
        )


def make_directory(file_system: FileSystem, directory: str, config: BrokerConfig) -> None:
    """Create a log directory durably, with the mode that a broker uses. Raises FormatError, KafkaStorageError."""
    from tidelog.broker.startup import make_data_directory
    from tidelog.log.system.file_system import LogStorageError

    if os.path.isdir(directory):
        return
    try:
        make_data_directory(file_system, os.path.abspath(directory))
    except LogStorageError as error:
        raise FormatError(f"{directory} cannot be created: {os.strerror(error.os_errno)}") from error
    os.chmod(directory, int(config.get_str("log.dirs.mode"), 8))
