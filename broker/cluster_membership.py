"""Refuses to start where this node is one of several of a Kafka cluster.

Tidelog serves as a lone node. On the directory of a broker that others replicate with, it would lead every partition
and write over logs that the cluster still counts on. Three things tell of a cluster; each is looked at before anything
is written:

    process.roles, controller.quorum.voters   the configuration of a broker or controller among others
    __cluster_metadata-0/quorum-state         the voters and the leader that a KRaft node knew last
    __cluster_metadata-0/*.log, *.checkpoint  brokers that registered, replicas of partitions

The metadata log is read only where there is one, and Tidelog makes none: a start on its own directory costs nothing.
Source: KIP-595, KIP-631, KIP-853.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tidelog.broker.errors import StartError
from tidelog.log.manager import METADATA_DIRECTORY
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig

QUORUM_STATE_FILE = "quorum-state"
NO_LEADER = -1


def check_is_alone(config: BrokerConfig, file_system: FileSystem) -> None:
    """Raises StartError when the configuration or a data directory names other nodes of the cluster."""
    check_configured_roles(config)
    for directory in config.log_dirs:
        place = os.path.join(directory, METADATA_DIRECTORY)
        try:
            if file_system.exists(place):
                check_directory(file_system, place, config.node_id)
        except KafkaStorageError as error:
            raise StartError(
                f"{place} cannot be read, so it is not known who else is in its cluster: {error}"
            ) from error


def check_configured_roles(config: BrokerConfig) -> None:
    """Raises StartError unless this node is broker and controller, and the only voter."""
    roles = {role.strip() for role in config.static_texts.get("process.roles", "").split(",")} - {""}
    if roles and roles != {"broker", "controller"}:
        raise StartError(
            f"process.roles={','.join(sorted(roles))}: this would be one node of a cluster, and Tidelog serves as a "
            "lone node (process.roles=broker,controller, or nothing)"
        )
    voters = config.static_texts.get("controller.quorum.voters", "")
    others = {voter.strip().partition("@")[0] for voter in voters.split(",")} - {"", str(config.node_id)}
    if others:
        raise StartError(
            f"controller.quorum.voters={voters} names other nodes than {config.node_id}, and Tidelog serves as a lone "
            "node"
        )


def check_directory(file_system: FileSystem, place: str, node_id: int) -> None:
    """Raises StartError when the metadata of a KRaft node name others, KafkaStorageError when they cannot be read."""
    others = (quorum_of(file_system, place) | members_of(file_system, place)) - {node_id}
    if others:
        listed = ", ".join(map(str, sorted(others)))
        raise StartError(
            f"{os.path.dirname(place)} belongs to a Kafka cluster with other nodes ({listed}): a lone node would write "
            "over its logs. To move a whole cluster over, see tidelog adopt"
        )


def quorum_of(file_system: FileSystem, place: str) -> set[int]:
    """The voters and the leader in ``quorum-state``; empty without that file. Raises KafkaStorageError."""
    path = os.path.join(place, QUORUM_STATE_FILE)
    if not file_system.exists(path):
        return set()
    try:
        state: Any = json.loads(file_system.read_file(path))
        voters = {int(voter["voterId"]) for voter in state.get("currentVoters") or ()}
        return (voters | {int(state["leaderId"])}) - {NO_LEADER}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KafkaStorageError(f"{path} is no quorum state: {error!r}") from error


def members_of(file_system: FileSystem, place: str) -> set[int]:
    """The brokers that the metadata log names. Raises KafkaStorageError."""
    from tidelog.broker.metadata.log_reader import read_metadata_image  # only on the directory of a KRaft node

    image = read_metadata_image(file_system, place)
    replicas = {replica for topic in image.topics.values() for state in topic.partitions for replica in state.replicas}
    return replicas | set(image.brokers)
