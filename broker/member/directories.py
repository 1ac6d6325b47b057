"""Log directories of a member: formatted for its cluster, locked, without logs that are other brokers' now.

A member takes directories as ``tidelog format``, ``kafka-storage format`` or a stopped Java broker leave them. Nothing
is written before all of them are known to be this node's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog.broker.cluster.observing.metadata_position import NOWHERE, MetadataPosition
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.metadata.metadata_image import BrokerRegistration, MetadataImage
from tidelog.broker.replica.strays import STRAY_SUFFIX
from tidelog.broker.startup import ClaimedDirectories, claim_directory
from tidelog.log.directories.names import METADATA_DIRECTORY, name_aside, partition_of_name
from tidelog.log.files.checkpoints import (
    META_PROPERTIES_FILE,
    CheckpointCorruptError,
    MetaProperties,
    read_clean_shutdown_epoch,
    read_meta_properties,
    read_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem, LogStorageError, OsFileSystem
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.types import uuid_to_str

logger = logging.getLogger(__name__)

NO_EPOCH = -1
POSITION_FILE = "cluster-metadata-position"
"""Lies beside ``meta.properties`` of the first log directory: epoch, offset and time, in one line."""
POSITION_INTERVAL_S = 5.0


class MemberDirectories(NamedTuple):
    """Directories of a member. ``previous_epoch`` is the broker epoch of a clean stop of all of them, else -1."""

    claimed: ClaimedDirectories
    ids: tuple[bytes, ...]
    previous_epoch: int


def claim_member_directories(file_system: FileSystem, config: BrokerConfig) -> MemberDirectories:
    """Check and lock all log directories.

    Raises StartError, which names file and value, for a directory that is not formatted, or for another node.
    """
    identities = {directory: formatted_identity(file_system, directory) for directory in config.log_dirs}
    first_directory, first = next(iter(identities.items()))
    ids: dict[bytes, str] = {}
    for directory, identity in identities.items():
        path = os.path.join(directory, META_PROPERTIES_FILE)
        if identity.node_id != config.node_id:
            raise StartError(f"{path} has node.id={identity.node_id}, and this is node {config.node_id}")
        if identity.cluster_id != first.cluster_id:
            other = os.path.join(first_directory, META_PROPERTIES_FILE)
            raise StartError(f"{path} has cluster.id={identity.cluster_id}, and {other} has {first.cluster_id}")
        if identity.directory_id is None:
            raise StartError(f"{path} has no directory.id: format the directory with Kafka 3.7 or later, or tidelog")
        if identity.directory_id in ids:
            raise StartError(
                f"{path} has directory.id={uuid_to_str(identity.directory_id)}, as {ids[identity.directory_id]} has"
            )
        ids[identity.directory_id] = path
    configured = config.get("cluster.id")
    if configured not in (None, first.cluster_id):
        raise StartError(f"{first_directory} belongs to cluster {first.cluster_id}, and cluster.id is {configured}")
    try:
        locks = [claim_directory(file_system, directory) for directory in config.log_dirs]
        epochs = {read_clean_shutdown_epoch(file_system, directory) for directory in config.log_dirs}
    except LogStorageError as error:
        raise StartError(f"a log directory cannot be used: {error}") from error
    epoch = epochs.pop() if len(epochs) == 1 else None
    known = {one: identity.directory_id for one, identity in identities.items() if identity.directory_id is not None}
    claimed = ClaimedDirectories(first.cluster_id, locks, {}, directory_ids=known)
    return MemberDirectories(claimed, tuple(ids), NO_EPOCH if epoch is None else epoch)


def clean_stop_of(directories: MemberDirectories, registered: BrokerRegistration | None) -> int:
    """Return the broker epoch of a clean stop that lost nothing; -1 where this broker had a directory, when it
    registered last, that it has no more.

    The logs that lay there are made again, empty. By a clean stop they would stay eligible (KIP-966): the controller
    could elect one that has only begun to copy.
    """
    if registered is not None and not set(registered.directories) <= set(directories.ids):
        return NO_EPOCH
    return directories.previous_epoch


def formatted_identity(file_system: FileSystem, directory: str) -> MetaProperties:
    """Return the identity of a log directory. Raises StartError."""
    try:
        identity = read_meta_properties(file_system, directory)
    except KafkaStorageError as error:
        raise StartError(str(error)) from error
    if identity is None:
        path = os.path.join(directory, META_PROPERTIES_FILE)
        raise StartError(f"{path} is missing: tidelog format -t CLUSTER_ID -c FILE writes it")
    return identity


def move_strays(file_system: FileSystem, config: BrokerConfig, image: MetadataImage) -> dict[str, bytes]:
    """Rename the logs that are not this broker's by the image, so that none of them is served; return the topic ids of
    the others, by path.

    A log without a readable topic id was never appended to. Any thread. Raises KafkaStorageError.
    """
    own: dict[str, bytes] = {}
    for directory in map(os.path.abspath, config.log_dirs):
        moved = False
        for path, partition in partition_directories(file_system, directory):
            topic_id = own_topic_id(file_system, path, partition, config.node_id, image)
            if topic_id is not None:
                own[path] = topic_id
            else:
                aside = os.path.join(directory, name_aside(partition, STRAY_SUFFIX))
                file_system.rename(path, aside)
                moved = True
                logger.warning("%s is no replica of this broker any more; kept as %s", path, aside)
        if moved:
            file_system.sync_directory(directory)
    return own


def partition_directories(file_system: FileSystem, directory: str) -> Iterator[tuple[str, TopicPartition]]:
    """Yield the paths of the logs in a directory, and their partitions."""
    for name in file_system.list_names(directory):
        partition = partition_of_name(name)
        if partition is not None and name != METADATA_DIRECTORY:
            yield os.path.join(directory, name), partition


def own_topic_id(
    file_system: FileSystem, path: str, partition: TopicPartition, node_id: int, image: MetadataImage
) -> bytes | None:
    """Return the topic id of a log, None unless the image gives its partition a replica on this broker."""
    try:
        topic_id = read_partition_metadata(file_system, path)
    except CheckpointCorruptError:
        topic_id = None
    topic = None if topic_id is None else image.topics.get(topic_id)
    is_own = (
        topic is not None
        and topic.name == partition.topic
        and partition.partition < len(topic.partitions)
        and node_id in topic.partitions[partition.partition].replicas
    )
    return topic.topic_id if topic is not None and is_own else None


def read_position(file_system: FileSystem, directory: str) -> MetadataPosition:
    """Return the position in the metadata that this broker had reached when it ran last. Raises KafkaStorageError."""
    path = os.path.join(directory, POSITION_FILE)
    if not file_system.exists(path):
        return NOWHERE
    try:
        epoch, offset, timestamp_ms = file_system.read_file(path).split()
        return MetadataPosition(int(epoch), int(offset), int(timestamp_ms))
    except ValueError:
        logger.warning("%s cannot be read: should the controllers have lost metadata, this start does not notice", path)
        return NOWHERE


def write_position(file_system: FileSystem, directory: str, position: MetadataPosition, *, sync: bool = False) -> None:
    """Write the position in the metadata that this broker has reached. Any thread. Raises KafkaStorageError."""
    line = f"{position.epoch} {position.offset} {position.timestamp_ms}\n".encode()
    file_system.replace_file(os.path.join(directory, POSITION_FILE), line, sync=sync)


async def keep_position(directory: str, newest: Callable[[], MetadataPosition]) -> None:
    """Write the position of the newest image that was published, every few seconds, until cancelled."""
    loop, written = asyncio.get_running_loop(), NOWHERE
    while True:
        position = newest()
        if position != written:
            try:
                await loop.run_in_executor(None, write_position, OsFileSystem(), directory, position)
            except (KafkaStorageError, RuntimeError) as error:  # RuntimeError: no thread can be started
                logger.warning("the position in the metadata is not written: %s", error)
            else:
                written = position
        await asyncio.sleep(POSITION_INTERVAL_S)
