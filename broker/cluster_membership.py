"""Check, before anything is written, that this node is alone in its cluster and can serve its metadata.

A lone node that started on the directory of a cluster's broker would lead every partition, and overwrite logs that the
cluster relies on. A member (``process.roles=broker``) is checked by ``tidelog.broker.member`` instead. Three things
show that there is a cluster:

    process.roles, controller.quorum.voters   the configuration of a broker or controller among others
    __cluster_metadata-0/quorum-state         the last voters and leader that a KRaft node knew
    __cluster_metadata-0/*.log, *.checkpoint  voters (kraft.version 1), brokers that registered, replicas of partitions

The start uses the metadata that were read here, so the log is read only once. Source: KIP-595, KIP-631, KIP-853.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from tidelog.broker.config.keys.authorizer import AUTHORIZER_CLASS
from tidelog.broker.controller.activation import refusal
from tidelog.broker.errors import StartError
from tidelog.broker.metadata.image import LAST_RESERVED_DIRECTORY
from tidelog.broker.metadata.log_reader import LoadedMetadata, read_metadata_log
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.quorum_state import NO_LEADER, read_quorum_state
from tidelog.log.directories.names import METADATA_DIRECTORY
from tidelog.log.files.checkpoints import read_meta_properties
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

METADATA_LOG_DIR = "metadata.log.dir"
REPLICATION_FACTOR = "default.replication.factor"


def check_is_alone(config: BrokerConfig, file_system: FileSystem) -> LoadedMetadata | None:
    """Return the content of the metadata log in the first directory, None if there is none.

    Raises StartError if the configuration or a data directory shows other nodes of the cluster, or if ``log.dirs``
    lacks a directory that has partitions. Raises StartError also if the metadata log is not in the first directory,
    cannot be read, or has something that this broker does not serve. Raises ConfigError for a
    ``default.replication.factor`` above 1.
    """
    check_configured_roles(config)
    check_metadata_directory(config)
    found: LoadedMetadata | None = None
    for number, directory in enumerate(config.log_dirs):
        path = os.path.join(directory, METADATA_DIRECTORY)
        try:
            if file_system.exists(path):
                loaded = check_directory(file_system, path, config)
                found = first_log(path, loaded, config) if number == 0 or found is None else found
        except KafkaStorageError as error:
            raise StartError(
                f"{path} cannot be read, so it is not known who else is in its cluster: {error}"
            ) from error
    return found


def is_member(config: BrokerConfig) -> bool:
    """Return whether this node is to be a broker of a cluster whose controllers are other nodes."""
    return set(config.get_list("process.roles")) == {"broker"}


def check_configured_roles(config: BrokerConfig) -> None:
    """Raise StartError if ``process.roles`` is set, but not to broker and controller, or if a voter is another node.
    Raise ConfigError for a replication factor that needs other nodes.
    """
    factor = config.get_int(REPLICATION_FACTOR)
    if factor > 1:
        raise ConfigError(f"{REPLICATION_FACTOR}={factor}: this node is alone, expected 1")
    roles = set(config.get_list("process.roles"))
    if roles and roles != {"broker", "controller"}:
        raise StartError(
            f"process.roles={','.join(sorted(roles))}: a node is a lone node (process.roles=broker,controller, or "
            "nothing) or a member of a cluster (process.roles=broker); controllers of a cluster are Apache Kafka's"
        )
    voters = config.get_list("controller.quorum.voters")
    if {voter.partition("@")[0] for voter in voters} - {"", str(config.node_id)}:
        raise StartError(
            f"controller.quorum.voters={','.join(voters)} names other nodes than {config.node_id}: a lone node is its "
            "own quorum. A broker of that quorum has process.roles=broker"
        )


def check_metadata_directory(config: BrokerConfig) -> None:
    """Raise StartError if ``metadata.log.dir`` is not the first data directory."""
    first, named = config.log_dirs[0], config.get(METADATA_LOG_DIR)
    if named is not None and os.path.abspath(named) != os.path.abspath(first):
        raise StartError(f"{METADATA_LOG_DIR}={named}: the metadata log lies in the first of log.dirs, {first}")


def first_log(path: str, loaded: LoadedMetadata, config: BrokerConfig) -> LoadedMetadata:
    """Return ``loaded``, the first metadata log that was found, whose directory is ``path``. Raises StartError if it is
    not in the first data directory: the start would create an empty log there.
    """
    first = config.log_dirs[0]
    if os.path.abspath(os.path.dirname(path)) != os.path.abspath(first):
        raise StartError(f"{path} is the metadata log, and the first of log.dirs is {first}: name its directory first")
    return loaded


def check_directory(file_system: FileSystem, path: str, config: BrokerConfig) -> LoadedMetadata:
    """Return the content of the metadata log in the directory ``path``.

    Raises StartError if it names other nodes or has something that this broker does not serve, KafkaStorageError if it
    cannot be read.
    """
    node_id = config.node_id
    state = read_quorum_state(file_system, path)
    voters = set() if state is None else {*state.voters, state.leader_id} - {NO_LEADER}
    refuse_others(path, voters - {node_id})
    loaded = read_metadata_log(file_system, path)
    refuse_others(path, (loaded.voters.ids | members_of(loaded.image)) - {node_id})
    reason = refusal(loaded.image, loaded.voters, enforces_acls=bool(config.get_str(AUTHORIZER_CLASS)))
    if reason is not None:
        raise StartError(f"{path}: {reason}")
    if state is not None and not state.is_ours:
        refuse_missing_directories(file_system, path, loaded.image, config)
        logger.warning("taking over Apache Kafka's metadata log in %s with %d topics", path, len(loaded.image.topics))
    return loaded


def refuse_missing_directories(file_system: FileSystem, path: str, image: MetadataImage, config: BrokerConfig) -> None:
    """Raise StartError if partitions lie in log directories of Kafka that ``log.dirs`` does not name: they would be
    served as empty. This is not checked unless all directories have ids.
    """
    try:
        identities = [read_meta_properties(file_system, directory) for directory in config.log_dirs]
    except KafkaStorageError:  # the directory will be offline, or a later check ends the start
        return
    ids = {None if identity is None else identity.directory_id for identity in identities}
    if None in ids:
        return
    missing = [
        f"{topic.name}-{number}"
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
        if not ids.issuperset(one for one in state.directories if one > LAST_RESERVED_DIRECTORY)
    ]
    if missing:
        raise StartError(
            f"{path}: {len(missing)} partitions lie in log directories that log.dirs does not name, {missing[0]} "
            "among them: name all directories that Kafka had"
        )


def refuse_others(path: str, others: set[int]) -> None:
    """Raise StartError if there are other nodes."""
    if others:
        listed = ", ".join(map(str, sorted(others)))
        raise StartError(
            f"{os.path.dirname(path)} belongs to a Kafka cluster with other nodes ({listed}): a lone node would write "
            "over its logs. To move a whole cluster over, see tidelog adopt"
        )


def members_of(image: MetadataImage) -> set[int]:
    """Return the brokers that an image names: those that registered, and those that have replicas."""
    replicas = {replica for topic in image.topics.values() for state in topic.partitions for replica in state.replicas}
    return replicas | set(image.brokers)
