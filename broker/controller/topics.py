"""Creation, widening (more partitions) and deletion of topics, each in an order of steps that survives a crash.

Order, and why a crash between two steps is harmless
  create   records committed -> first logs created -> shown by MetadataCache. Other logs, and those that a crash has
           left out, are created at their first use: nothing was written to them before.
  widen    first logs created -> records committed -> shown by MetadataCache. A crash may leave logs beyond the topic's
           partitions; they stay empty, and are used when the topic is widened again.
  delete   record committed -> removed from MetadataCache -> logs renamed. The metadata log tells a start which
           deletions may be unfinished; a later record names those that are finished.
A deleted topic's name can be used again when all three steps are done. The steps are here; ``TopicChanges`` runs them
one after the other without blocking the loop. Loop thread only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.topic_changes import (
    USE_DEFAULT,
    Forget,
    NewTopic,
    TopicChanges,
)
from tidelog.broker.loop.deferred import deferred_value
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.loop.threads import NO_LOOP, Threads
from tidelog.broker.metadata.image import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    UNASSIGNED_DIRECTORY,
    MetadataCache,
    TopicImage,
    single_replica_states,
    topic_image,
)
from tidelog.broker.metadata.image_records import (
    WITH_CORDONED,
    VersionedRecord,
    config_records,
    record_of_partition,
    records_of_topic,
)
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, TopicState
from tidelog.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.metadata_records.records import NoOpRecord, RemoveTopicRecord

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController
    from tidelog.broker.metadata.delta import MetadataDelta
    from tidelog.broker.metadata.metadata_image import MetadataImage

MAX_TOPIC_NAME_LENGTH = 249
"""Kafka's limit: names of directories (<name>-<partition>, and longer ones during deletion) may have 255
characters."""
MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka's limit
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
PLAIN_MARK = "..."
"""Mark before each field in the plain form of a virtual topic's name (``tidelog.broker.metadata.virtual_names``)."""


class TopicListener(Protocol):
    """Listener that creates and removes the logs. It is called on the loop thread, after the records are committed;
    only ``first_logs`` of a widening is called before that.
    """

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        """Return a function for any thread that creates some logs of partitions ``first_partition`` and above; the
        others are created at their first use. This method and the function may raise KafkaStorageError. The topic's
        name is reserved until the function is done.
        """
        ...

    def topic_created(self, image: TopicImage, first_partition: int) -> None:
        """Note that partitions ``first_partition`` and above of this topic exist from now on, and their first logs."""
        ...

    def remove_logs(self, image: TopicImage) -> Callable[[], None]:
        """Return a function for any thread that removes the logs of a deleted topic, and may raise KafkaStorageError.
        The topic's name is reserved until the function is done.
        """
        ...

    def topic_deleted(self, image: TopicImage) -> bool:
        """Note that the removal of the topic's logs has ended, even if it failed. Return False if a directory is
        offline, which may have some of them.
        """
        ...

    def topic_configs_changed(self, image: TopicImage) -> None:
        """Note that the topic's own configs, or the defaults that they override, have changed."""
        ...


class TopicManager:
    """Topics of a lone node: creates and deletes them, adds partitions, and changes their configs. Loop thread only."""

    creates_topics = True
    """True if this node creates topics itself; in a member, the active controller does."""

    __slots__ = (
        "_call_soon",
        "_collision_keys",
        "_config",
        "_controller",
        "_directory",
        "_done_deletions",
        "_listener",
        "_metadata",
        "_new_topic_id",
        "_validate_configs",
        "_without_logs",
        "changes",
        "in_transit",
        "unsynced",
    )

    def __init__(
        self,
        config: BrokerConfig,
        controller: MetadataController,
        metadata: MetadataCache,
        *,
        validate_configs: Callable[[Mapping[str, str]], None],
        new_topic_id: Callable[[], bytes],
        listener: TopicListener,
        threads: Threads = NO_LOOP,
        directory: bytes = UNASSIGNED_DIRECTORY,
        forget: Forget = lambda _: deferred_value(None),
    ) -> None:
        """``validate_configs`` raises InvalidConfigError, ``new_topic_id`` draws ids. ``listener``, the replica
        manager, is called with each change. ``threads`` run what waits for the disk. ``directory`` is the id of the log
        directory if there is only one. ``forget`` makes the coordinators forget a deleted topic.
        """
        self._config = config
        self._controller = controller
        self._metadata = metadata
        self._validate_configs = validate_configs
        self._new_topic_id = new_topic_id
        self._listener = listener
        self._collision_keys: dict[str, str] = {}
        self._without_logs: set[bytes] = set()
        """Ids of deleted topics of which no log is left, but perhaps committed offsets or states of share groups."""
        self._done_deletions: list[bytes] = []
        """Ids of deleted topics of which nothing is left. The record of the next deletion says so."""
        self.in_transit: set[str] = set()
        """Names of topics that are being created or deleted; no other topic can get them."""
        self.unsynced: set[bytes] = set()
        """Ids of internal topics that are in use and may not be durable yet."""
        self._call_soon = threads.call_soon
        self._directory = directory
        self.changes = TopicChanges(self, controller, listener, threads, forget)
        """Changes with all their steps, for the handlers."""

    def load(self) -> None:
        """Put all topics of the metadata log into the cache; called once, before the first request."""
        image = self._controller.image
        for topic in image.topics.values():
            self._metadata.put(topic_image(image, topic))
            self._collision_keys[collision_key(topic.name)] = topic.name

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply committed changes: reserve names, hide deleted topics, put configs in force. ``changes`` does what
        waits for the disk: it creates and removes logs, and then shows new topics to clients.
        """
        for topic_id, deleted in delta.deletions.items():
            if deleted is not None:
                if topic_id in self._metadata.topic_names:
                    self._metadata.remove(deleted)
                self._hold(deleted)
        for topic_id, topic in delta.topics.changed.items():
            if topic is not None and topic_id not in self._metadata.topic_names:
                self._hold(topic.name)
        for kind, name in delta.configs.changed:
            if kind == TOPIC_RESOURCE:
                self._show_configs(name, image)

    def logs_removed(self, topic_ids: Iterable[bytes]) -> None:
        """Note that no log is left of these deleted topics. Without internal topics, the coordinators have nothing of
        them, either."""
        if INTERNAL_TOPICS.isdisjoint(self._metadata.topics):
            self._done_deletions += topic_ids
        else:
            self._without_logs.update(topic_ids)

    def state_removed(self, topic_id: bytes) -> None:
        """Note that the coordinators have nothing left of a deleted topic. If no log is left, either, the metadata log
        need not list it any more; else the next start removes the rest."""
        if topic_id in self._without_logs:
            self._without_logs.remove(topic_id)
            self._done_deletions.append(topic_id)

    def begin_create(self, new: NewTopic) -> TopicImage:
        """Commit a new topic, which reserves its name: the first step. ``finish_create`` follows, or a deletion.

        With ``validate_only`` the topic is checked and not created (its id is zero then). Raises InvalidTopicError,
        TopicAlreadyExistsError, InvalidPartitionsError, InvalidReplicationFactorError, InvalidConfigError,
        PolicyViolationError, and what the controller's ``commit`` raises. Source: CreateTopics.
        """
        name = new.name
        validate_topic_name(name)
        check_is_new(name, name in self._metadata.topics or name in self.in_transit, self._collision_keys)
        count = partition_count(self._config, new.partitions)
        partitions = single_replica_states(self._config.node_id, count, directory=self._directory)
        check_replication_factor(replication_factor_of(self._config, new.replication_factor))
        self._check_placement()
        configs = dict(new.configs or {})
        self._validate_configs(configs)
        is_internal = name in INTERNAL_TOPICS
        if new.validate_only:
            return TopicImage(name, bytes(16), partitions, configs, is_internal)
        image = TopicImage(name, self._new_topic_id(), partitions, configs, is_internal)
        self._controller.commit(creation_records(image, self._controller.level))
        return image

    def _check_placement(self) -> None:
        """Raise InvalidReplicationFactorError while all log directories are cordoned (KIP-1066)."""
        if self._controller.level >= WITH_CORDONED and self._config.cordoned_log_dirs == self._config.log_dirs:
            raise InvalidReplicationFactorError(
                "Unable to replicate the partition 1 time(s): all log directories of this broker are cordoned."
            )

    def finish_create(self, image: TopicImage, first_partition: int = 0) -> None:
        """Show the topic's partitions from ``first_partition`` on to every client: the last step."""
        self.in_transit.discard(image.name)
        self._metadata.put(image)
        self._listener.topic_created(image, first_partition)

    def ensure_internal_topic(self, name: str) -> TopicImage:
        """Return the internal topic of this name, created if it does not exist yet.

        The coordinator appends its first record at once. Clients get their answer when the topic is durable too
        (``InternalTopicLog.when_committed``). Raises what ``begin_create`` raises, and InvalidRequestError for a topic
        that is not internal.
        """
        existing = self._metadata.topics.get(name)
        if existing is not None:
            return existing
        partitions, replication_factor, configs = internal_topic_settings(self._config, name)
        image = self.begin_create(NewTopic(name, partitions, replication_factor, configs))
        try:
            with opening_expected():  # the coordinator's first record waits for the log, on the loop
                self._listener.first_logs(image, 0)()
        except KafkaError:
            self.changes.undo_create(image)
            raise
        self.unsynced.add(image.topic_id)
        self.finish_create(image)
        self._make_log_of(image, 1)
        return image

    def _make_log_of(self, image: TopicImage, partition: int) -> None:
        """Create an internal topic's logs, one in each turn of the loop: all fifty take 50 ms."""
        if self._metadata.topics.get(image.name) is not image:
            return
        if partition < image.partition_count:
            with contextlib.suppress(KafkaError), opening_expected():  # else created at their first use
                self._listener.first_logs(image, partition)()
            self._call_soon(partial(self._make_log_of, image, partition + 1))

    def begin_delete(self, name: str) -> TopicImage:
        """Commit the deletion and hide the topic: the first step. Its name is reserved until ``finish_delete``.

        Raises UnknownTopicOrPartitionError, TopicDeletionDisabledError, KafkaStorageError. Source: DeleteTopics.
        """
        if not self._config.get_bool("delete.topic.enable"):
            raise TopicDeletionDisabledError
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        return self.commit_deletion(image)

    def finish_delete(self, image: TopicImage, *, removed: bool) -> None:
        """Free the name: the last step. If logs may be left, because a directory is offline or a rename failed, the
        metadata log keeps the topic's id, so that a later start removes them.
        """
        self.in_transit.discard(image.name)
        self._collision_keys.pop(collision_key(image.name), None)
        is_gone = self._listener.topic_deleted(image)
        if removed and is_gone:
            self.logs_removed([image.topic_id])

    def check_widening(self, name: str, count: int) -> tuple[TopicImage, TopicImage]:
        """Return the topic as it is, and as it will be with ``count`` partitions in all.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError, InvalidReplicationFactorError,
        PolicyViolationError.
        """
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        if count <= image.partition_count:
            raise InvalidPartitionsError(
                f"The topic {name} currently has {image.partition_count} partition(s), which {count} does not increase."
            )
        check_partition_limit(count - image.partition_count)
        self._check_placement()
        more = single_replica_states(self._config.node_id, count - image.partition_count, directory=self._directory)
        return image, image._replace(partitions=image.partitions + more)

    def commit_widening(self, image: TopicImage, first_partition: int) -> None:
        """Commit the partitions from ``first_partition`` on; ``finish_create`` shows them. Raises
        KafkaStorageError."""
        level = self._controller.level
        self._controller.commit(
            record_of_partition(image.topic_id, number, image.partitions[number], level)
            for number in range(first_partition, image.partition_count)
        )

    def set_configs(self, name: str, configs: Mapping[str, str]) -> TopicImage:
        """Replace a topic's own configs by these, which the caller has validated. They are in force at once, and
        durable with the metadata log's next sync.

        Raises UnknownTopicOrPartitionError, and what the controller's ``commit`` raises. Source: AlterConfigs,
        IncrementalAlterConfigs.
        """
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        self._controller.commit(config_records((TOPIC_RESOURCE, name), image.configs, configs))
        return self._metadata.topics[name]

    def _show_configs(self, name: str, image: MetadataImage) -> None:
        """Put a topic's committed configs in force, unless clients do not see the topic yet, or any more."""
        shown, topic = self._metadata.topics.get(name), image.topic_by_name(name)
        if shown is not None and topic is not None and shown.topic_id == topic.topic_id:
            changed = shown._replace(configs=topic_image(image, topic).configs)
            self._metadata.put(changed)
            self._listener.topic_configs_changed(changed)

    def broker_defaults_changed(self) -> None:
        """Make every log read its configs again, as a dynamic broker config that topics inherit may have changed."""
        for image in self._metadata.topics.values():
            self._listener.topic_configs_changed(image)

    def commit_deletion(self, image: TopicImage) -> TopicImage:
        """Commit the deletion of a topic and hide it; its name stays reserved. Raises KafkaStorageError."""
        records = [VersionedRecord(RemoveTopicRecord(topic_id=image.topic_id))]
        if self._done_deletions:
            records.append(VersionedRecord(NoOpRecord(finished_deletions=self._done_deletions)))
        self._controller.commit(records)
        self._done_deletions = []
        return image

    def _hold(self, name: str) -> None:
        """Reserve a name until ``finish_create`` or ``finish_delete``."""
        self.in_transit.add(name)
        self._collision_keys[collision_key(name)] = name


def check_is_new(name: str, is_taken: bool, collisions: Mapping[str, str]) -> None:
    """Raise TopicAlreadyExistsError for a name that is taken, and InvalidTopicError for one that collides with another.
    ``collisions`` has the names by collision key.
    """
    if is_taken:
        raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
    other = collisions.get(collision_key(name))
    if other is not None:
        raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {other}")


def partition_count(config: BrokerConfig, partitions: int) -> int:
    """Return the partition count of a new topic. Raises InvalidPartitionsError, PolicyViolationError."""
    if partitions == USE_DEFAULT:
        return config.get_int("num.partitions")
    if partitions < 1:
        raise InvalidPartitionsError("Number of partitions was set to an invalid non-positive value.")
    check_partition_limit(partitions)
    return partitions


def replication_factor_of(config: BrokerConfig, replication_factor: int) -> int:
    """Return the replication factor of a new topic: the given one, or the broker's default for USE_DEFAULT."""
    return config.get_int("default.replication.factor") if replication_factor == USE_DEFAULT else replication_factor


def validate_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless a topic may have this name."""
    if not name:
        raise InvalidTopicError("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopicError("Topic name is invalid: '.' or '..' is not allowed")
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopicError(
            f"Topic name is invalid: the length of '{name[:MAX_TOPIC_NAME_LENGTH]}...' is longer than the max allowed "
            f"length {MAX_TOPIC_NAME_LENGTH}"
        )
    if not _LEGAL.issuperset(name):
        raise InvalidTopicError(
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'"
        )
    if PLAIN_MARK in name and is_virtual_spelling(name):
        raise InvalidTopicError(f"Topic name is invalid: '{name}' has the form of a virtual topic's name")


def is_virtual_spelling(name: str) -> bool:
    """Return whether a name has the form of a virtual topic's name; its base topic need not exist."""
    from tidelog.broker.metadata.virtual_names import split_name  # only names with three dots need it

    try:
        split_name(name)
    except InvalidTopicError:
        return False
    return True


def collision_key(name: str) -> str:
    """Return a name as metrics write it, with ``_`` for ``.``; no two topics may have the same."""
    return name.replace(".", "_")


def check_partition_limit(count: int) -> None:
    """Raise PolicyViolationError for more new partitions than one request may create."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolationError(
            f"Unable to create {count} partitions at once: one request may create {MAX_PARTITIONS_PER_REQUEST} at most."
        )


def check_replication_factor(replication_factor: int) -> None:
    """Raise InvalidReplicationFactorError unless the factor is 1: this broker is the only one."""
    if replication_factor < 1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0.")
    if replication_factor > 1:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only 1 broker(s) are registered."
        )


def internal_topic_settings(config: BrokerConfig, name: str) -> tuple[int, int, dict[str, str]]:
    """Return the partition count, replication factor and configs of an internal topic that is to be created.

    Raises InvalidRequestError for any other name.
    """
    if name == GROUP_METADATA_TOPIC:
        count, replicas = "offsets.topic.num.partitions", "offsets.topic.replication.factor"
        configs = {"segment.bytes": str(config.get_int("offsets.topic.segment.bytes"))}
    elif name == TRANSACTION_STATE_TOPIC:
        count, replicas = "transaction.state.log.num.partitions", "transaction.state.log.replication.factor"
        configs = {
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "unclean.leader.election.enable": "false",
        }
    elif name == SHARE_GROUP_STATE_TOPIC:
        prefix = "share.coordinator.state.topic"
        configs = {
            "segment.bytes": str(config.get_int(f"{prefix}.segment.bytes")),
            "min.insync.replicas": str(config.get_int(f"{prefix}.min.isr")),
            "cleanup.policy": "delete",  # the coordinator deletes records that no state needs any more
            "retention.ms": "-1",
            "compression.type": "producer",
        }
        return config.get_int(f"{prefix}.num.partitions"), config.get_int(f"{prefix}.replication.factor"), configs
    else:
        raise InvalidRequestError(f"{name} is not an internal topic of this broker")
    configs |= {"cleanup.policy": "compact", "compression.type": "producer"}
    return config.get_int(count), config.get_int(replicas), configs


def creation_records(image: TopicImage, level: int) -> Iterator[VersionedRecord]:
    """Yield the records of a new topic, of its partitions and of its own configs."""
    yield from records_of_topic(TopicState(image.name, image.topic_id, image.partitions), level)
    yield from config_records((TOPIC_RESOURCE, image.name), {}, image.configs)
