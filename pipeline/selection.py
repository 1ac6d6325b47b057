"""Which partition directories a query reads: topics chosen by name, list or pattern, found below data directories.

A data directory holds ``<topic>-<partition>`` directories and usually ``meta.properties``. What is being deleted or
moved (``-delete``, ``-stray``, ``-future``) is passed over. A path that is missing, or holds neither, is refused: a
mistyped path must not look like an empty topic.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from log.checkpoints import META_PROPERTIES_FILE, CheckpointCorruptError, read_partition_metadata
from log.file_system import OsFileSystem
from log.topic_partition import TopicPartition
from pipeline.errors import SelectionError, TopicRecreatedError
from pipeline.options import TopicChoice
from protocol.errors import KafkaStorageError
from protocol.types import uuid_to_str

_GOING_SUFFIXES = ("-delete", "-stray", "-future")
_LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One partition's directory. ``topic_id`` is None where an old broker wrote no ``partition.metadata``."""

    topic: str
    topic_id: bytes | None
    partition: int
    path: str


def find_partitions(paths: Iterable[str], choice: TopicChoice) -> list[PartitionDirectory]:
    """The directories of the chosen partitions, by topic and partition.

    Raises SelectionError when a path is no data directory, when a topic or partition that was named is not there, or
    when one partition lies in two of the directories.
    """
    found: dict[tuple[str, int], PartitionDirectory] = {}
    for path in paths:
        for directory in list_partitions(path, choice):
            other = found.setdefault((directory.topic, directory.partition), directory)
            if other is not directory:
                raise SelectionError(f"{directory.topic}-{directory.partition} is in {other.path} and {directory.path}")
    _ensure_complete(found.values(), choice, paths)
    return sorted(found.values(), key=lambda directory: (directory.topic, directory.partition))


def list_partitions(path: str, choice: TopicChoice | None = None) -> list[PartitionDirectory]:
    """The chosen (or all) partition directories of one data directory. Raises SelectionError when it is none."""
    path = path.removeprefix("file://")
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        raise SelectionError(f"path {path} does not exist: expected a data directory (log.dirs)") from None
    except OSError as error:
        raise SelectionError(f"path {path} cannot be listed: {error.strerror}") from error
    partitions = [found for name in names if (found := _partition_of(path, name, choice)) is not None]
    if META_PROPERTIES_FILE not in names and not (partitions or any(_partition_of(path, name) for name in names)):
        raise SelectionError(
            f"path {path} is no Kafka data directory: expected {META_PROPERTIES_FILE} or TOPIC-PARTITION directories"
        )
    return partitions


def _partition_of(path: str, name: str, choice: TopicChoice | None = None) -> PartitionDirectory | None:
    directory = os.path.join(path, name)
    try:
        partition = TopicPartition.parse(name)
    except ValueError:
        return None
    if choice is not None and not choice.wants(partition.topic, partition.partition):
        return None
    if name.endswith(_GOING_SUFFIXES) or not os.path.isdir(directory):
        return None
    try:
        topic_id = read_partition_metadata(OsFileSystem(), directory)
        names = os.listdir(directory)
    except CheckpointCorruptError as error:
        raise SelectionError(str(error)) from error
    except (FileNotFoundError, KafkaStorageError) as error:
        if os.path.isdir(directory):
            raise SelectionError(f"{directory} cannot be read: {error}") from error
        return None  # deleted this moment
    if topic_id is None and not any(entry.endswith(_LOG_SUFFIX) for entry in names):
        return None
    return PartitionDirectory(partition.topic, topic_id, partition.partition, directory)


def _ensure_complete(found: Iterable[PartitionDirectory], choice: TopicChoice, paths: Iterable[str]) -> None:
    places = ", ".join(paths)
    there = {(directory.topic, directory.partition) for directory in found}
    topics = {topic for topic, _ in there}
    for topic in choice.topics:
        if topic not in topics:
            raise SelectionError(f"topic {topic} has no partition below {places}")
    for topic, partition in choice.partitions or ():
        if (topic, partition) not in there:
            raise SelectionError(f"partition {topic}-{partition} is not below {places}")
    if choice.pattern is not None and not there:
        raise SelectionError(f"no topic below {places} matches subscribePattern={choice.pattern}")


def ensure_same_topics(known: Sequence[tuple[str, bytes | None]], directories: Iterable[PartitionDirectory]) -> None:
    """``known`` (topic, id) pairs are what a query saw before: raises TopicRecreatedError when an id is another now."""
    ids = dict(known)
    for directory in directories:
        before = ids.get(directory.topic)
        if before is not None and directory.topic_id is not None and before != directory.topic_id:
            raise recreated(directory.topic, before, directory.topic_id)


def recreated(topic: str, before: bytes, now: bytes) -> TopicRecreatedError:
    """The error for a topic whose id changed from ``before`` to ``now``."""
    return TopicRecreatedError(
        f"topic {topic} was deleted and made anew: its id was {uuid_to_str(before)} and is {uuid_to_str(now)}; "
        "offsets of the old topic mean nothing in the new one"
    )
