"""Log directories of a member: checked, locked, and without logs that are not replicas of this broker any more.

A member takes directories as ``tidelog format``, ``kafka-storage format`` or a stopped Java broker leave them. Nothing
is written before all readable ones are known to belong to this node.

    one whose files cannot be read or opened        offline until the next start. It is not registered, so that the
                                                    controller elects no leader for the replicas in it
    the first one is offline, or all are            no start: the first has the position in the metadata
    another node's, or without meta.properties      no start: an empty mount point is not a failed disk
    locked by another process                       no start

While a directory is offline, no log is created that may lie in it, and the last stop counts as unclean (KIP-966).

Source: MetaPropertiesEnsemble, KafkaRaftServer.initializeLogDirs and LogManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tidelog.broker.cluster.observing.metadata_position import NOWHERE, MetadataPosition
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.metadata.metadata_image import BrokerRegistration, MetadataImage, PartitionState
from tidelog.broker.replica.strays import STRAY_SUFFIX
from tidelog.broker.startup import ClaimedDirectories, claim_directory, describe_failure
from tidelog.log.directories.log_directory import LogDirectory
from tidelog.log.directories.names import METADATA_DIRECTORY, name_aside, partition_of_name
from tidelog.log.files.checkpoints import (
    META_PROPERTIES_FILE,
    UNKNOWN_BROKER_EPOCH,
    CheckpointCorruptError,
    MetaProperties,
    read_clean_shutdown_epoch,
    read_meta_properties,
    read_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile, OsFileSystem
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.types import uuid_to_str

logger = logging.getLogger(__name__)

POSITION_FILE = "cluster-metadata-position"
"""File beside ``meta.properties`` in the first log directory: epoch, offset and time, in one line."""
POSITION_INTERVAL_S = 5.0


class MemberDirectories(NamedTuple):
    """Directories of a member. ``previous_epoch`` is the broker epoch at the last clean stop, -1 if a directory has no
    marker of that stop, or failed.
    """

    claimed: ClaimedDirectories
    ids: tuple[bytes, ...]
    """Ids of the directories that work."""
    previous_epoch: int


def claim_member_directories(file_system: FileSystem, config: BrokerConfig) -> MemberDirectories:
    """Check and lock all log directories. One that cannot be read or written is offline, and the others serve. The
    first one must work, as the directory of the metadata log must in Kafka's broker.

    Raises StartError, which names file and value, for a directory that is not formatted, is another node's, or is
    locked by another process. It is also raised if the first directory cannot be used.
    """
    identities: dict[str, MetaProperties] = {}
    failures: dict[str, KafkaStorageError] = {}
    for directory in config.log_dirs:
        try:
            identities[directory] = formatted_identity(file_system, directory)
        except KafkaStorageError as error:
            failures[directory] = error
    check_failures(failures, config)
    check_identities(identities, config)
    locks: list[OpenFile] = []
    epochs = set()
    for directory in identities:
        try:
            locks.append(claim_directory(file_system, directory))
            epochs.add(read_clean_shutdown_epoch(file_system, directory))
        except LogStorageError as error:
            failures[directory] = error
    check_failures(failures, config)
    ids = {one: given.directory_id for one, given in identities.items() if given.directory_id and one not in failures}
    claimed = ClaimedDirectories(identities[config.log_dirs[0]].cluster_id, locks, failures, directory_ids=ids)
    epoch = epochs.pop() if len(epochs) == 1 and not failures else None
    return MemberDirectories(claimed, tuple(ids.values()), UNKNOWN_BROKER_EPOCH if epoch is None else epoch)


def check_failures(failures: Mapping[str, KafkaStorageError], config: BrokerConfig) -> None:
    """Raise StartError if this broker cannot run without the failed directories."""
    first = config.log_dirs[0]
    if len(failures) == len(config.log_dirs):
        reasons = "; ".join(describe_failure(directory, error) for directory, error in failures.items())
        raise StartError(f"no log directory can be used: {reasons}")
    if first in failures:
        raise StartError(
            f"the first log directory, {first}, holds what this broker knows of its cluster and cannot be used: "
            f"{describe_failure(first, failures[first])}"
        )


def check_identities(identities: Mapping[str, MetaProperties], config: BrokerConfig) -> None:
    """Raise StartError if a directory belongs to another node or cluster, has no id, or is a copy of another one."""
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


def clean_stop_of(directories: MemberDirectories, registered: BrokerRegistration | None) -> int:
    """Return the broker epoch of the last stop if that was clean, else -1; also -1 if this broker lacks a directory
    that it had at its last registration.

    The logs of the missing directory are created again, empty. After a clean stop they would stay eligible leaders
    (KIP-966): the controller could elect one that has only begun to copy.
    """
    if registered is not None and not set(registered.directories) <= set(directories.ids):
        return UNKNOWN_BROKER_EPOCH
    return directories.previous_epoch


def formatted_identity(file_system: FileSystem, directory: str) -> MetaProperties:
    """Return the identity of a log directory. Raises StartError if it has none, KafkaStorageError if it cannot be
    read.
    """
    identity = read_meta_properties(file_system, directory)
    if identity is None:
        path = os.path.join(directory, META_PROPERTIES_FILE)
        raise StartError(f"{path} is missing: tidelog format -t CLUSTER_ID -c FILE writes it")
    return identity


def move_strays(manager: LogManager, node_id: int, image: MetadataImage) -> dict[str, bytes]:
    """Rename the logs that are not replicas of this broker in the image, and surplus copies of a log, so that none of
    them is served. Return the topic ids of this broker's logs, by their paths before that; surplus copies are among
    them. A directory that fails meanwhile goes offline. Any thread.

    A log without a readable topic id has no synced record: a log's first sync includes its topic id. Two copies exist
    if a directory failed, its logs were created in another one while ``log.dirs`` lacked it, and it is back. The copy
    in the directory that the image names is kept.
    """
    file_system = manager.environment.file_system
    own: dict[TopicPartition, list[LogDirectory]] = {}
    ids: dict[str, bytes] = {}
    for directory in (one for one in manager.directories if one.is_online):
        with taking_offline(directory):
            for partition, topic_id in move_strays_of(file_system, directory.path, node_id, image).items():
                own.setdefault(partition, []).append(directory)
                ids[os.path.join(directory.path, partition.directory_name)] = topic_id
    for partition, copies in own.items():
        if len(copies) > 1:
            put_older_aside(file_system, partition, copies, state_of(image, partition).directory_of(node_id))
    return ids


def put_older_aside(
    file_system: FileSystem, partition: TopicPartition, copies: Iterable[LogDirectory], directory_id: bytes | None
) -> None:
    """Rename all copies of a log but the one in the directory ``directory_id``. If no copy is in that directory, rename
    nothing.
    """
    if any(directory.directory_id == directory_id for directory in copies):
        for directory in copies:
            if directory.directory_id != directory_id and directory.is_online:
                with taking_offline(directory):
                    put_aside(file_system, directory.path, partition, "is an older copy of a log in another directory")
                    file_system.sync_directory(directory.path)


@contextlib.contextmanager
def taking_offline(directory: LogDirectory) -> Iterator[None]:
    """Return a context in which a KafkaStorageError takes a directory offline."""
    try:
        yield
    except KafkaStorageError as error:
        directory.state.mark_offline(error)


def move_strays_of(
    file_system: FileSystem, directory: str, node_id: int, image: MetadataImage
) -> dict[TopicPartition, bytes]:
    """Rename the stray logs of one directory; return the topic ids of the others. Raises KafkaStorageError."""
    own, moved = {}, False
    for path, partition in partition_directories(file_system, directory):
        topic_id = own_topic_id(file_system, path, partition, node_id, image)
        if topic_id is not None:
            own[partition] = topic_id
        else:
            put_aside(file_system, directory, partition, "is not a replica of this broker any more")
            moved = True
    if moved:
        file_system.sync_directory(directory)
    return own


def put_aside(file_system: FileSystem, directory: str, partition: TopicPartition, reason: str) -> None:
    """Rename a log, so that it is kept and not served. Raises KafkaStorageError."""
    path = os.path.join(directory, partition.directory_name)
    aside = os.path.join(directory, name_aside(partition, STRAY_SUFFIX))
    file_system.rename(path, aside)
    logger.warning("%s %s; kept as %s", path, reason, aside)


def partition_directories(file_system: FileSystem, directory: str) -> Iterator[tuple[str, TopicPartition]]:
    """Yield the paths of the logs in a directory, and their partitions."""
    for name in file_system.list_names(directory):
        partition = partition_of_name(name)
        if partition is not None and name != METADATA_DIRECTORY:
            yield os.path.join(directory, name), partition


def state_of(image: MetadataImage, partition: TopicPartition) -> PartitionState:
    """Return the state of a partition that is in the image."""
    topic = image.topic_by_name(partition.topic)
    assert topic is not None, "looked up by its id before"
    return topic.partitions[partition.partition]


def own_topic_id(
    file_system: FileSystem, path: str, partition: TopicPartition, node_id: int, image: MetadataImage
) -> bytes | None:
    """Return the topic id of a log. None if the log has no readable id, or if the image has no replica of its
    partition on this broker. Raises KafkaStorageError.
    """
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
    """Return the position in the metadata that this broker had reached when it ran last; NOWHERE if the file is missing
    or damaged. Raises KafkaStorageError.
    """
    path = os.path.join(directory, POSITION_FILE)
    try:
        epoch, offset, timestamp_ms = file_system.read_file(path).split()
        return MetadataPosition(int(epoch), int(offset), int(timestamp_ms))
    except LogStorageError as error:
        if error.os_errno != errno.ENOENT:
            raise
        return NOWHERE
    except ValueError:
        logger.warning("%s is damaged: this start cannot notice if the controllers have lost metadata", path)
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
                logger.warning("cannot write the position in the metadata, trying again: %s", error)
            else:
                written = position
        await asyncio.sleep(POSITION_INTERVAL_S)
