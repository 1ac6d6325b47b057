"""Checkpoint and metadata files beside the logs, in Kafka's text forms, each replaced as a whole.

offset checkpoints (``recovery-point-offset-checkpoint``, ``log-start-offset-checkpoint``,
``replication-offset-checkpoint``, ``cleaner-offset-checkpoint``)::

    0                      version
    2                      number of lines
    topic 0 42             topic, partition, offset

``leader-epoch-checkpoint``: the same with ``epoch start_offset`` per line. ``partition.metadata``: ``version: 0`` and
``topic_id: <base64url>``. ``meta.properties``: Java properties, version 1. ``.kafka_cleanshutdown``: JSON with the
broker epoch (KIP-966); its mere existence says that every log was flushed.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import NamedTuple

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem, LogStorageError, ReadableFiles
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.types import uuid_from_str, uuid_to_str

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
REPLICATION_OFFSET_FILE = "replication-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
UNKNOWN_BROKER_EPOCH = -1
"""Epoch in a clean-shutdown marker that no broker ever has: the controller takes the shutdown for unclean (KIP-966)."""
_VERSION = 0


class CheckpointCorruptError(KafkaStorageError):
    """A checkpoint file does not have the form it must have."""


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class MetaProperties(NamedTuple):
    """Cluster, node and id of a log directory.

    ``directory_id`` is a 16-byte uuid or None where an old broker wrote none.
    """

    cluster_id: str
    node_id: int
    directory_id: bytes | None


def encode_lines(lines: Iterable[str]) -> bytes:
    """Encode the content of a checkpoint: version, number of lines, lines."""
    body = list(lines)
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(body)), *body)).encode()


def decode_lines(data: bytes, path: str, fields: int) -> Iterator[list[str]]:
    """Yield the fields of each line of a checkpoint; each line has ``fields`` of them. An empty file has no lines:
    Kafka creates it before it has lines to write.

    Raises CheckpointCorruptError, which names the file, and the line if that has a wrong number of fields.
    """
    if not data:
        return
    try:
        lines = data.decode().splitlines()
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError) as error:
        raise CheckpointCorruptError(f"{path} does not begin with a version and a count") from error
    if version != _VERSION:
        raise CheckpointCorruptError(f"{path} has version {version}, only {_VERSION} is known")
    if len(lines) - 2 != count:
        raise CheckpointCorruptError(f"{path} promises {count} lines and has {len(lines) - 2}")
    for number, line in enumerate(lines[2:], 3):
        found = line.split()
        if len(found) != fields:
            raise CheckpointCorruptError(f"{path} line {number} has {len(found)} fields, expected {fields}")
        yield found


def read_if_there(file_system: ReadableFiles, path: str) -> bytes | None:
    """Read a small file as a whole; None when there is none. Raises KafkaStorageError."""
    try:
        return file_system.read_file(path)
    except LogStorageError as error:
        if error.is_missing:
            return None
        raise


def read_offset_checkpoint(
    file_system: ReadableFiles, path: str, known: dict[str, TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Read the offsets by partition; empty when the file is missing. Raises CheckpointCorruptError, and what
    ``file_system`` raises.

    ``known`` has partitions by directory name; those of this file are added. So several files of ten thousand lines
    share one object for each partition.
    """
    if not file_system.exists(path):
        return {}
    offsets, known = {}, {} if known is None else known
    for topic, number, offset in decode_lines(file_system.read_file(path), path, 3):
        try:
            partition = known.get(f"{topic}-{number}") or _note_partition(known, topic, number)
            offsets[partition] = int(offset)
        except ValueError as error:
            raise CheckpointCorruptError(f"{path}: not a number in {topic} {number} {offset}") from error
    return offsets


def _note_partition(known: dict[str, TopicPartition], topic: str, number: str) -> TopicPartition:
    """Return a partition. Add it to ``known``, unless the number is written in an unusual way, such as ``007``: then
    the text is not that of the directory's name. Raises ValueError."""
    partition = TopicPartition(intern(topic), int(number))
    if number == str(partition.partition):
        known[partition.directory_name] = partition
    return partition


def write_offset_checkpoint(file_system: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file. Raises KafkaStorageError."""
    lines = (f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items())
    file_system.replace_file(path, encode_lines(lines))


def read_leader_epochs(file_system: ReadableFiles, path: str) -> list[EpochEntry]:
    """Read the entries in the order of the file; empty when the file is missing. Raises CheckpointCorruptError,
    and what ``file_system`` raises.
    """
    data = read_if_there(file_system, path)
    if data is None:
        return []
    try:
        return [EpochEntry(int(e), int(o)) for e, o in decode_lines(data, path, 2)]
    except ValueError as error:
        raise CheckpointCorruptError(f"{path} has a line that is not two numbers") from error


def read_partition_metadata(file_system: ReadableFiles, directory: str) -> bytes | None:
    """Read the topic id of a partition directory; None when it has no ``partition.metadata``. Raises
    CheckpointCorruptError, and what ``file_system`` raises.
    """
    path = os.path.join(directory, PARTITION_METADATA_FILE)
    data = read_if_there(file_system, path)
    if data is None:
        return None
    values = dict(line.split(": ", 1) for line in data.decode(errors="replace").splitlines() if ": " in line)
    try:
        return uuid_from_str(values["topic_id"])
    except (KeyError, ValueError) as error:
        raise CheckpointCorruptError(f"{path} has no readable topic_id") from error


def write_partition_metadata(file_system: FileSystem, directory: str, topic_id: bytes, *, sync: bool = True) -> None:
    """Replace ``partition.metadata``. Raises KafkaStorageError."""
    text = f"version: 0\ntopic_id: {uuid_to_str(topic_id)}"
    file_system.replace_file(os.path.join(directory, PARTITION_METADATA_FILE), text.encode(), sync=sync)


def sync_partition_metadata(file_system: FileSystem, directory: str) -> None:
    """Make the content of ``partition.metadata`` durable, but not its name. Raises KafkaStorageError."""
    file = file_system.open_file(os.path.join(directory, PARTITION_METADATA_FILE))
    try:
        file.sync()
    finally:
        file.close()


def read_meta_properties(file_system: FileSystem, log_directory: str) -> MetaProperties | None:
    """Read ``meta.properties``; None when the directory has none, or does not exist.

    Raises CheckpointCorruptError, LogStorageError: a disk that cannot be read is not taken for an empty one.
    """
    path = os.path.join(log_directory, META_PROPERTIES_FILE)
    try:
        data = file_system.read_file(path)
    except LogStorageError as error:
        if error.os_errno != errno.ENOENT:
            raise
        return None
    values: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            values[key.strip()] = value.strip()
    try:
        directory_id = uuid_from_str(values["directory.id"]) if "directory.id" in values else None
        return MetaProperties(values["cluster.id"], int(values.get("node.id") or values["broker.id"]), directory_id)
    except (KeyError, ValueError) as error:
        raise CheckpointCorruptError(f"{path} lacks a readable cluster.id, node.id or directory.id") from error


def write_meta_properties(file_system: FileSystem, log_directory: str, properties: MetaProperties) -> None:
    """Replace ``meta.properties`` (version 1). Raises KafkaStorageError."""
    lines = ["#"]
    if properties.directory_id is not None:
        lines.append(f"directory.id={uuid_to_str(properties.directory_id)}")
    lines += [f"node.id={properties.node_id}", "version=1", f"cluster.id={properties.cluster_id}"]
    text = "".join(f"{line}\n" for line in lines)
    file_system.replace_file(os.path.join(log_directory, META_PROPERTIES_FILE), text.encode())


def write_clean_shutdown(file_system: FileSystem, log_directory: str, broker_epoch: int) -> None:
    """Write the marker that every log of the directory was flushed. Raises KafkaStorageError. Source: KIP-966."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    file_system.replace_file(os.path.join(log_directory, CLEAN_SHUTDOWN_FILE), content.encode())


def read_clean_shutdown_epoch(file_system: ReadableFiles, log_directory: str) -> int | None:
    """Read the broker epoch of the clean-shutdown marker; None if there is no marker, or no epoch in it. Raises
    KafkaStorageError."""
    path = os.path.join(log_directory, CLEAN_SHUTDOWN_FILE)
    if not file_system.exists(path):
        return None
    try:
        epoch = decode_json(file_system.read_file(path))["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return None  # an older Kafka writes an empty file
    return epoch if type(epoch) is int else None


def take_clean_shutdown(file_system: FileSystem, log_directory: str) -> bool:
    """Remove the marker of a clean shutdown and return whether it existed. The removal is made durable, because the
    marker is untrue from the first append on. Raises KafkaStorageError.
    """
    path = os.path.join(log_directory, CLEAN_SHUTDOWN_FILE)
    if not file_system.exists(path):
        return False
    file_system.unlink(path)
    file_system.sync_directory(log_directory)
    return True
