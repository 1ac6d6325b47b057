"""The partition directories of a query: topics chosen by name, list or pattern, found below data directories.

A data directory holds ``<topic>-<partition>`` directories and usually ``meta.properties``. Directories being deleted
or moved (``-delete``, ``-stray``, ``-future``) are left out. A path that is missing, or holds neither, is refused: a
mistyped path must not look like an empty topic.

A stream finds its partitions again at every trigger, so a finder keeps what it found. It lists a data directory only
when that has changed, and parses only names that are new; assigned partitions are looked up by name. A trigger costs
one ``stat`` of ``partition.metadata`` per chosen partition, which shows a topic that was created again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.log.files.checkpoints import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    CheckpointCorruptError,
    read_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.errors import SelectionError, TopicRecreatedError
from tidelog.pipeline.files.stamps import Stamp, settled_stamp_of, stamp_of
from tidelog.pipeline.files.storage import files_at, for_each, is_directory, names_in, resolve_path
from tidelog.pipeline.options.options import TopicChoice
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.types import uuid_to_str

_GOING_SUFFIXES = ("-delete", "-stray", "-future")
_LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One partition's directory. ``topic_id`` is None if ``partition.metadata`` is missing, as from an old broker, or
    damaged and that is accepted."""

    topic: str
    topic_id: bytes | None
    partition: int
    path: str


class PartitionFinder:
    """Finder of the chosen partitions' directories; each call finds the current ones. One thread."""

    def __init__(self, paths: Iterable[str], choice: TopicChoice, *, accepts_damage: bool = False) -> None:
        """``accepts_damage``: a partition whose metadata cannot be read gets no topic id; otherwise it is an error.

        Raises OptionError for a path that is not valid.
        """
        self._data_directories = [
            _DataDirectory(resolve_path(path), choice, accepts_damage=accepts_damage) for path in paths
        ]
        self._choice = choice

    def find(self) -> list[PartitionDirectory]:
        """Find the current directories, by topic and partition, each in one of the paths.

        Raises as ``find_replicas``, and SelectionError when one partition lies in two of the paths.
        """
        for replicas in (found := self.find_replicas()):
            if len(replicas) > 1:
                name = f"{replicas[0].topic}-{replicas[0].partition}"
                raise SelectionError(f"{name} is in {replicas[0].path} and {replicas[1].path}")
        return [directory for (directory,) in found]

    def find_replicas(self) -> list[tuple[PartitionDirectory, ...]]:
        """Find the current directories, by topic and partition; the replicas of one partition in the order of the
        paths.

        Raises SelectionError when a path is not a readable data directory; when a named topic or partition is not
        there, or no topic matches the pattern; or when the directories of one partition have different topic ids.
        Raises RemoteError.
        """
        found: dict[tuple[str, int], list[PartitionDirectory]] = {}
        for data_directory in self._data_directories:
            for directory in data_directory.partitions():
                found.setdefault((directory.topic, directory.partition), []).append(directory)
        everything = [directory for replicas in found.values() for directory in replicas]
        _ensure_complete(everything, self._choice, [one.path for one in self._data_directories])
        for replicas in found.values():
            _ensure_one_topic(replicas)
        return [tuple(found[partition]) for partition in sorted(found)]


class _DataDirectory:
    """One data directory with the partitions found in it so far."""

    def __init__(self, path: str, choice: TopicChoice, *, accepts_damage: bool) -> None:
        self.path = path
        self._accepts_damage = accepts_damage
        self._choice = choice
        self._assigned = [TopicPartition(*one).directory_name for one in choice.partitions or ()]
        self._stamp: Stamp | None = None
        self._names: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._seen: dict[str, tuple[Stamp, PartitionDirectory]] = {}

    def partitions(self) -> list[PartitionDirectory]:
        """Find the chosen partitions. Raises SelectionError when this is not a data directory."""
        found = self._look_at(self._assigned)
        if found:
            return found
        self._list()
        found = self._look_at(self._wanted)
        if not found and META_PROPERTIES_FILE not in self._names:
            self._ensure_data_directory()
        return found

    def _look_at(self, names: Iterable[str]) -> list[PartitionDirectory]:
        found = for_each(list(names), lambda name: os.path.join(self.path, name), self._directory)
        return [directory for directory in found if directory is not None]

    def _directory(self, name: str) -> PartitionDirectory | None:
        stamp = stamp_of(os.path.join(self.path, name, PARTITION_METADATA_FILE))
        seen = self._seen.get(name)
        if stamp is not None and seen is not None and seen[0] == stamp:
            return seen[1]
        found = _partition_of(self.path, name, accepts_damage=self._accepts_damage)
        if found is not None and stamp is not None:
            self._seen[name] = stamp, found
        return found

    def _list(self) -> None:
        """List the data directory again if it has changed, and note which new names are chosen."""
        stamp = settled_stamp_of(self.path)
        if stamp is not None and stamp == self._stamp:
            return
        names = _names_in(self.path)
        for gone in self._names - names:
            self._wanted.pop(gone, None)
        self._wanted |= dict.fromkeys(name for name in sorted(names - self._names) if self._is_wanted(name))
        self._names, self._stamp = names, stamp

    def _is_wanted(self, name: str) -> bool:
        partition = _parse_name(name)
        return partition is not None and self._choice.matches(partition.topic, partition.partition)

    def _ensure_data_directory(self) -> None:
        if not any(_partition_of(self.path, name, accepts_damage=True) for name in self._names):
            raise SelectionError(
                f"path {self.path} is not a Kafka data directory: "
                f"expected {META_PROPERTIES_FILE} or TOPIC-PARTITION directories"
            )


def find_partitions(paths: Iterable[str], choice: TopicChoice) -> list[PartitionDirectory]:
    """Find the chosen partitions once. Raises SelectionError, OptionError, RemoteError."""
    return PartitionFinder(paths, choice).find()


def _names_in(path: str) -> set[str]:
    try:
        return set(names_in(path))
    except FileNotFoundError:
        raise SelectionError(f"path {path} does not exist: expected a data directory (log.dirs)") from None
    except OSError as error:
        raise SelectionError(f"path {path} cannot be listed: {error.strerror}") from error


def _parse_name(name: str) -> TopicPartition | None:
    try:
        return TopicPartition.parse(name)
    except ValueError:
        return None


def _partition_of(path: str, name: str, *, accepts_damage: bool) -> PartitionDirectory | None:
    directory = os.path.join(path, name)
    partition = _parse_name(name)
    if partition is None:
        return None
    if name.endswith(_GOING_SUFFIXES) or not is_directory(directory):
        return None
    try:
        # Names first: a broker writes the id before the first segment, so a new partition with a listed segment has its
        # id.
        names = names_in(directory)
        topic_id = read_partition_metadata(files_at(directory), directory)
    except CheckpointCorruptError as error:
        if not accepts_damage:
            raise SelectionError(str(error)) from error
        return PartitionDirectory(partition.topic, None, partition.partition, directory)
    except (OSError, KafkaStorageError) as error:
        if is_directory(directory):
            raise SelectionError(f"{directory} cannot be read: {error}") from error
        return None  # deleted this moment
    if topic_id is None and not any(entry.endswith(_LOG_SUFFIX) for entry in names):
        return None
    return PartitionDirectory(partition.topic, topic_id, partition.partition, directory)


def _ensure_one_topic(replicas: Sequence[PartitionDirectory]) -> None:
    """Raise SelectionError when directories of one name are of topics with different ids."""
    known = [replica for replica in replicas if replica.topic_id is not None]
    for replica in known[1:]:
        first = known[0]
        if replica.topic_id != first.topic_id:
            assert replica.topic_id is not None
            assert first.topic_id is not None
            raise SelectionError(
                f"{first.path} and {replica.path} are not replicas of one partition: the topic's id is "
                f"{uuid_to_str(first.topic_id)} in the first and {uuid_to_str(replica.topic_id)} in the second"
            )


def _ensure_complete(found: Iterable[PartitionDirectory], choice: TopicChoice, paths: Iterable[str]) -> None:
    """Raise SelectionError when a chosen topic or partition was not found, or no topic matches the pattern."""
    joined = ", ".join(paths)
    there = {(directory.topic, directory.partition) for directory in found}
    topics = {topic for topic, _ in there}
    for topic in choice.topics:
        if topic not in topics:
            raise SelectionError(f"topic {topic} has no partition below {joined}")
    for topic, partition in choice.partitions or ():
        if (topic, partition) not in there:
            raise SelectionError(f"partition {topic}-{partition} is not below {joined}")
    if choice.pattern is not None and not there:
        raise SelectionError(f"no topic below {joined} matches subscribePattern={choice.pattern}")


def ensure_same_topics(known: Sequence[tuple[str, bytes | None]], directories: Iterable[PartitionDirectory]) -> None:
    """Compare ``known`` pairs of topic and id with the directories' ids. Raises TopicRecreatedError when one has
    changed."""
    ids = dict(known)
    for directory in directories:
        before = ids.get(directory.topic)
        if before is not None and directory.topic_id is not None and before != directory.topic_id:
            raise recreated_error(directory.topic, before, directory.topic_id)


def recreated_error(topic: str, before: bytes, now: bytes) -> TopicRecreatedError:
    """Build the error for a topic whose id changed from ``before`` to ``now``."""
    return TopicRecreatedError(
        f"topic {topic} was deleted and created again: its id was {uuid_to_str(before)} and is {uuid_to_str(now)}; "
        "offsets of the old topic mean nothing in the new one"
    )
