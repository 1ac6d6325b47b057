"""The plan for taking over a stopped Apache Kafka's directories. Everything is checked, nothing is written.

A source is one entry of Kafka's ``log.dirs``; all entries of a broker are given together. The checks, in this order:

1. no process uses the sources (``.lock``) or the target; ``meta.properties`` agree on one cluster;
2. ``__cluster_metadata``, if there is one: topics, ids, configs, quotas, users, ACLs, tokens, producer ids.
   Without it (a broker that used ZooKeeper) ids come from ``partition.metadata``, configs from the caller;
3. the sources have all partitions of every topic, each once, with one topic id, and the target has no other topic of
   the same name;
4. ``tidelog.log.check`` finds no damage in a partition that recovery cannot repair. Recovery repairs the copy: indices,
   snapshots, and in a source without the clean-shutdown marker everything after the recovery point;
5. the target's disk has enough free space.

A topic whose configs are unknown gets unlimited retention, so that nothing is deleted before its owner decides. If the
source's cleaner has cleaned it, its cleanup policy is ``compact``. The topics of group offsets and of transactions get
their usual configs instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from tidelog.broker.adoption.source import SourcePartition, check_partition, is_of_kraft, list_source, producer_ids
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.config.resources import CONFIG_DEFS
from tidelog.broker.config.resources import validate as validate_resource
from tidelog.broker.controller.activation import has_remote_storage
from tidelog.broker.controller.conversion import image_of_directory
from tidelog.broker.controller.topics import internal_topic_settings, validate_topic_name
from tidelog.broker.metadata.image import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicImage
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, MetadataImage, TopicState
from tidelog.log.config import TOPIC_CONFIG_DEF, LogConfig
from tidelog.log.files.checkpoints import MetaProperties, read_meta_properties
from tidelog.log.system.file_system import FileSystem, OpenFile
from tidelog.log.system.time import Time
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import InvalidConfigError, InvalidTopicError, KafkaError
from tidelog.protocol.types import uuid_to_str

LOCK_FILE = ".lock"
KEEP_EVERYTHING = {"retention.ms": "-1", "retention.bytes": "-1"}
SPARE_BYTES = 64 * 1024 * 1024
"""Disk space for files that are not in the plan: the metadata log and rebuilt indices."""
MAX_LISTED = 20
"""Largest number of partitions that a problem names."""


class AdoptionError(Exception):
    """The adoption cannot be carried out, and no topic was added. The message has the reason."""


@dataclass(frozen=True, slots=True)
class AdoptionOptions:
    """Sources to take over, and the target.

    ``topic_configs`` has the configs of topics by topic name, for sources without a metadata log. If there is one, they
    replace its configs key by key.
    """

    sources: tuple[str, ...]
    target: str
    node_id: int = 1
    link: bool = False
    leave_out: frozenset[str] = frozenset()
    topic_configs: Mapping[str, Mapping[str, str]] | None = None


class PlannedTopic(NamedTuple):
    """A topic to take over, with its id (None: it gets a new one) and its next leader epoch."""

    name: str
    topic_id: bytes | None
    partitions: list[SourcePartition]
    configs: dict[str, str]
    leader_epoch: int

    @property
    def size_bytes(self) -> int:
        """Bytes to copy."""
        return sum(partition.size_bytes for partition in self.partitions)


@dataclass(slots=True)
class AdoptionPlan:
    """The topics and other metadata to take over, the list of what is left out, and the problems that forbid the
    adoption. ``notes`` are lines for the operator.

    It holds the locks of the sources and the target until ``close``.
    """

    options: AdoptionOptions
    identity: MetaProperties | None = None
    metadata: MetadataImage | None = None
    topics: list[PlannedTopic] = field(default_factory=list)
    resource_configs: dict[tuple[ResourceType, str], dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    locks: list[OpenFile] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes to copy."""
        return sum(topic.size_bytes for topic in self.topics)

    def close(self) -> None:
        """Release the locks."""
        for lock in self.locks:
            lock.close()
        self.locks.clear()


def make_plan(file_system: FileSystem, time: Time, options: AdoptionOptions) -> AdoptionPlan:
    """Check the sources and the target, and return the plan, with all problems found. Raises KafkaStorageError if a
    file cannot be read."""
    plan = AdoptionPlan(options)
    try:
        Planner(file_system, time, plan).run()
    except BaseException:
        plan.close()
        raise
    return plan


class Planner:
    """Fills one plan. Used once, by one thread."""

    def __init__(self, file_system: FileSystem, time: Time, plan: AdoptionPlan) -> None:
        self._file_system = file_system
        self._time = time
        self._plan = plan
        self._options = plan.options
        self._without_configs = 0
        """Number of topics whose configs are unknown."""
        self._is_kraft = False

    def run(self) -> None:
        """Check the sources, and add to the plan all that is to be taken over, and every problem."""
        if not self._claim():
            return
        self._read_identity()
        self._read_metadata()
        found = self._find_partitions()
        existing = self._existing_topics()
        for name, partitions in sorted(found.items()):
            self._plan_topic(name, partitions, existing)
        self._report_missing_topics(found)
        plan_resource_configs(self._plan)
        self._plan_producer_ids()
        self._check_space()
        self._note_what_is_left_out()

    def _add_problem(self, text: str) -> None:
        self._plan.problems.append(text)

    # ---- locks, identity, metadata

    def _claim(self) -> bool:
        """Lock the sources and, if it exists, the target. Returns whether that succeeded; problems are in the plan."""
        target = self._options.target
        for source in self._options.sources:
            if not self._file_system.exists(source):
                self._add_problem(f"{source} does not exist")
            elif _is_same_or_below(source, target) or _is_same_or_below(target, source):
                self._add_problem(
                    f"{source} and the data directory {target} contain one another; adopt into another directory"
                )
            else:
                self._lock(source, shared=True)
        if self._file_system.exists(target):
            self._lock(target, shared=False)
        return not self._plan.problems

    def _lock(self, directory: str, *, shared: bool) -> None:
        path = os.path.join(directory, LOCK_FILE)
        if not self._file_system.exists(path):
            return  # no broker has used it, or it is a copy
        lock = self._file_system.lock_file(path, shared=shared)
        if lock is None:
            self._add_problem(f"{directory} is in use by a running broker: stop it first ({path} is locked)")
        else:
            self._plan.locks.append(lock)

    def _read_identity(self) -> None:
        identities = {}
        for source in self._options.sources:
            identity = read_meta_properties(self._file_system, source)
            if identity is not None:
                identities[source] = identity
                self._plan.identity = identity
        if len({identity.cluster_id for identity in identities.values()}) > 1:
            listed = ", ".join(f"{source}: {identity.cluster_id}" for source, identity in identities.items())
            self._add_problem(f"the directories belong to several clusters ({listed})")

    def _read_metadata(self) -> None:
        for source in self._options.sources:
            path = os.path.join(source, METADATA_DIRECTORY)
            if self._file_system.exists(path):
                self._plan.metadata = read_metadata_image(self._file_system, path)
        self._is_kraft = self._plan.metadata is not None or any(
            is_of_kraft(self._file_system, source) for source in self._options.sources
        )
        if self._is_without_its_metadata():
            self._add_problem(
                f"this is a KRaft broker, but {METADATA_DIRECTORY} is not in these directories; give its "
                "metadata.log.dir too, or the topics' configs (--topic-configs)"
            )

    def _is_without_its_metadata(self) -> bool:
        """Return whether the topics' configs are in a metadata log that is not in the sources, and the caller gave
        none."""
        return self._is_kraft and self._plan.metadata is None and self._options.topic_configs is None

    # ---- partitions and topics

    def _find_partitions(self) -> dict[str, list[SourcePartition]]:
        found: dict[str, list[SourcePartition]] = {}
        for source in self._options.sources:
            listing = list_source(self._file_system, source)
            if not listing.clean:
                self._plan.notes.append(
                    f"{source} was not shut down cleanly: the copy is recovered as Kafka would recover it"
                )
            self._plan.left_out += [f"{path}: {reason}" for path, reason in listing.others.items()]
            for partition in listing.partitions:
                found.setdefault(partition.partition.topic, []).append(partition)
        if not found:
            self._add_problem(
                f"no partition directories in {', '.join(self._options.sources)}: is this Kafka's log.dirs?"
            )
        return found

    def _existing_topics(self) -> dict[str, TopicImage]:
        """Return the target's topics by name."""
        return existing_topics(image_of_directory(self._file_system, self._options.target, self._options.node_id))

    # ---- one topic

    def _plan_topic(self, name: str, partitions: list[SourcePartition], existing: Mapping[str, TopicImage]) -> None:
        """Check a topic of the sources, and add it to the plan, or to what is left out."""
        if name in self._options.leave_out:
            self._plan.left_out.append(f"topic {name}: by --leave-out")
            return
        known = self._plan.metadata.topic_by_name(name) if self._plan.metadata else None
        if self._plan.metadata is not None and known is None:
            self._plan.left_out.append(f"topic {name}: deleted in Kafka, its directories were not removed yet")
            return
        topic_id = self._topic_id(name, partitions, known)
        if name in existing:
            self._compare_with_existing(existing[name], topic_id)
            return
        partitions.sort(key=lambda partition: partition.partition)
        self._check_complete(name, partitions, known)
        for partition in partitions:
            repaired, wrong = check_partition(self._file_system, partition)
            self._plan.notes += [f"rebuilt: {finding}" for finding in repaired]
            self._plan.problems += map(str, wrong)
        leader_epoch = max((state.leader_epoch for state in (known.partitions if known else ())), default=-1) + 1
        configs = self._configs(name, partitions)
        self._plan.topics.append(PlannedTopic(name, topic_id, partitions, configs, leader_epoch))

    def _topic_id(self, name: str, partitions: list[SourcePartition], known: TopicState | None) -> bytes | None:
        """Return the id of a topic; None if the sources have none. Several ids, and an invalid name, are problems."""
        try:
            validate_topic_name(name)
        except InvalidTopicError as error:
            self._add_problem(f"topic {name}: {error}")
        ids = {partition.topic_id for partition in partitions if partition.topic_id is not None}
        if known is not None:
            ids.add(known.topic_id)
        if len(ids) > 1:
            listed = ", ".join(sorted(map(uuid_to_str, ids)))
            self._add_problem(f"topic {name}: its partitions belong to topics with different ids ({listed})")
        return next(iter(ids), None)

    def _compare_with_existing(self, image: TopicImage, topic_id: bytes | None) -> None:
        """Leave out a topic that the target has already; another topic of the same name is a problem."""
        if topic_id == image.topic_id:
            self._plan.left_out.append(f"topic {image.name}: the data directory has it already, with the same id")
        elif topic_id is None:
            self._plan.left_out.append(
                f"topic {image.name}: the data directory has a topic of that name already; Kafka's has no id to compare"
            )
        else:
            self._add_problem(
                f"topic {image.name}: the data directory has another topic of that name; adopt into an empty "
                f"directory, or leave the topic out (--leave-out {image.name})"
            )

    def _check_complete(self, name: str, partitions: list[SourcePartition], known: TopicState | None) -> None:
        """Add a problem for partitions that are missing, and one for partitions that are in several sources."""
        here = [partition.partition.partition for partition in partitions]
        twice = sorted({index for index in here if here.count(index) > 1})
        if twice:
            self._add_problem(f"topic {name}: partitions {_format_numbers(twice)} are in several of the directories")
        count = len(known.partitions) if known else max(here) + 1
        present = set(here)
        # A directory such as backup-20261128 is a partition by its name, and would be one of 20 million.
        missing = list(islice((index for index in range(count) if index not in present), MAX_LISTED + 1))
        if missing:
            self._add_problem(
                f"topic {name}: partitions {_format_numbers(missing)} of {count} are not in these directories; give "
                f"all of log.dirs of a broker that has them, or leave the topic out (--leave-out {name})"
            )

    # ---- configs

    def _configs(self, name: str, partitions: list[SourcePartition]) -> dict[str, str]:
        """Return the configs that a topic gets. If the sources have no metadata log and the caller gave none, the
        topics of group offsets and of transactions get their usual configs, another topic unlimited retention."""
        given = (self._options.topic_configs or {}).get(name)
        if self._plan.metadata is not None:
            texts = self._plan.metadata.configs.get((TOPIC_RESOURCE, name), {})
            return self._valid_configs(name, {**texts, **(given or {})})
        if given is not None:
            return self._valid_configs(name, given)
        if name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            return internal_topic_settings(BrokerConfig({}), name)[2]
        self._without_configs += 1
        was_compacted = any(partition.cleaner_offset is not None for partition in partitions)
        return {**KEEP_EVERYTHING, **({"cleanup.policy": "compact"} if was_compacted else {})}

    def _valid_configs(self, name: str, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the configs that a topic of Tidelog can have; the others are added to what is left out. Remote storage
        is a problem."""
        if has_remote_storage(texts):
            self._add_problem(f"topic {name}: part of it is in remote storage, which these directories do not hold")
        valid: dict[str, str] = {}
        for key, text in texts.items():
            if key not in TOPIC_CONFIG_DEF:
                self._plan.left_out.append(f"config {key}={text} of topic {name}: Tidelog has no such key")
                continue
            try:
                LogConfig({key: text})
            except (ConfigError, InvalidConfigError) as error:
                self._plan.left_out.append(f"config {key}={text} of topic {name}: {error}")
            else:
                valid[key] = text
        return valid

    # ---- all topics together

    def _report_missing_topics(self, found: Mapping[str, list[SourcePartition]]) -> None:
        for topic in self._plan.metadata.topics.values() if self._plan.metadata else ():
            if topic.name not in found and topic.name not in self._options.leave_out:
                self._add_problem(
                    f"topic {topic.name}: none of its {len(topic.partitions)} partitions is in these directories; "
                    f"give all of log.dirs, or leave the topic out (--leave-out {topic.name})"
                )

    def _plan_producer_ids(self) -> None:
        """Plan the next producer id, which must be larger than all producer ids in the logs."""
        if self._plan.metadata is not None:
            self._plan.next_producer_id = self._plan.metadata.producer_ids
            return
        for topic in self._plan.topics:
            for partition in topic.partitions:
                highest = max(producer_ids(self._file_system, partition), default=-1)
                self._plan.next_producer_id = max(self._plan.next_producer_id, highest + 1)

    def _check_space(self) -> None:
        if self._options.link:
            return
        parent = os.path.abspath(self._options.target)
        while not self._file_system.exists(parent):
            parent = os.path.dirname(parent)
        _, usable = self._file_system.disk_space(parent)
        if self._plan.size_bytes + SPARE_BYTES > usable:
            self._add_problem(
                f"{self._options.target} has {usable:,} bytes of free space, but {self._plan.size_bytes:,} would be "
                "copied; --link copies only files that may change, if source and target are on one file system"
            )

    def _note_what_is_left_out(self) -> None:
        metadata = self._plan.metadata
        if metadata is None:
            reason = (
                f"they are in {METADATA_DIRECTORY}, which is not in these directories"
                if self._is_kraft
                else "a broker that used ZooKeeper does not keep them in log.dirs"
            )
            configs = "topic configs, " if self._options.topic_configs is None else ""
            self._plan.left_out.append(f"{configs}quotas, ACLs, SCRAM credentials: {reason}")
            if self._without_configs and not self._is_without_its_metadata():
                self._plan.notes.append(
                    f"topics without known configs: {self._without_configs}; they get unlimited retention, and those "
                    "that Kafka compacted stay compacted; --topic-configs sets their configs"
                )
            return
        for kind, count, key in (
            ("ACLs", len(metadata.acls), "authorizer.class.name"),
            ("delegation tokens", len(metadata.tokens), "delegation.token.secret.key, the same as in Kafka"),
        ):
            if count:
                self._plan.notes.append(f"{kind}: {count}; they take effect with {key}")
        self._plan.notes.append(
            "Kafka's server.properties is not in its directories: start with tidelog serve --config FILE for its values"
        )


def existing_topics(image: MetadataImage) -> dict[str, TopicImage]:
    """Return the topics of a metadata image by name."""
    return {
        topic.name: TopicImage(
            topic.name,
            topic.topic_id,
            topic.partitions,
            image.configs.get((TOPIC_RESOURCE, topic.name), {}),
            topic.name in INTERNAL_TOPICS,
        )
        for topic in image.topics.values()
    }


def plan_resource_configs(plan: AdoptionPlan) -> None:
    """Add the configs of groups and of client-metrics subscriptions to a plan."""
    for (number, name), texts in plan.metadata.configs.items() if plan.metadata else ():
        if number not in CONFIG_DEFS:
            continue
        kind = ResourceType(number)
        valid = plan.resource_configs.setdefault((kind, name), {})
        for key, text in texts.items():
            try:
                validate_resource(kind, {key: text}, BrokerConfig({}))
            except KafkaError as error:
                named = f"{kind.name.lower().replace('_', ' ')} {name}"
                plan.left_out.append(f"config {key}={text} of {named}: {error.message}")
            else:
                valid[key] = text


def _is_same_or_below(path: str, parent: str) -> bool:
    path, parent = os.path.realpath(path), os.path.realpath(parent)
    return os.path.commonpath([path, parent]) == parent


def _format_numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:MAX_LISTED])) + (", ..." if len(numbers) > MAX_LISTED else "")
