"""Creates, widens and deletes topics, each in an order of steps that survives a crash.

Order, and why a crash between two steps is harmless
  create   records committed -> logs are made -> MetadataCache shows it. Without its logs after a crash, a topic gets
           them when they are first asked for, empty as they were.
  widen    logs are made -> records committed -> MetadataCache shows it. Logs beyond a topic's partitions stay empty,
           and are used when it is widened.
  delete   record committed -> MetadataCache forgets it -> logs are renamed away. The log of the metadata tells the
           start which deletions may not be finished; a later record says which are.
A deleted topic's name can be used again when all three steps are done. The steps are here; ``changes`` does them one
after the other without holding up the loop. Loop thread only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.cordoned import cordoned_log_dirs
from tidelog.broker.controller.topic_changes import (
    USE_DEFAULT,
    Forget,
    NewTopic,
    TopicChanges,
)
from tidelog.broker.loop.deferred import completed
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
    topic_image,
    unreplicated,
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

MAX_TOPIC_NAME_LENGTH = (
    249  # a directory is called <name>-<partition>, or longer when it is being deleted; 255 is the most
)
MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka's bound for what one request may create
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
PLAIN_MARK = "..."
"""Stands before each field in the name of a virtual topic (``tidelog.broker.metadata.virtual_names``)."""


class TopicListener(Protocol):
    """Listener that makes and removes the logs; called on the loop thread after the records are committed."""

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        """Return the step that makes the first logs of partitions ``first_partition`` and above, for any thread; it may
        raise KafkaStorageError. The topic's name is held until it is done."""
        ...

    def topic_created(self, image: TopicImage, first_partition: int) -> None:
        """Hear that partitions ``first_partition`` and above of this topic exist from now on, and their first logs."""
        ...

    def remove_logs(self, image: TopicImage) -> Callable[[], None]:
        """Return the step that removes the logs of a topic that is gone, for any thread; it may raise
        KafkaStorageError. The topic's name is held until it is done."""
        ...

    def topic_deleted(self, image: TopicImage) -> bool:
        """Note that the topic's logs are gone, except those in offline directories. Returns whether there are none of
        these."""
        ...

    def topic_configs_changed(self, image: TopicImage) -> None:
        """Hear that the topic's own configs, or defaults below them, have changed."""
        ...


class TopicManager:
    """Topics of this node: created, widened, deleted and configured here alone. Loop thread only."""

    creates_topics = True
    """True where topics are made by this node itself, and not by another's controller."""

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
        forget: Forget = lambda _: completed(None),
    ) -> None:
        """``validate_configs`` raises InvalidConfigError, ``new_topic_id`` draws ids. ``listener`` is told of changes:
        the replica manager. ``threads`` run what waits for the disk. ``directory`` is the id of the directory of new
        logs, where there is but one. ``forget`` has coordinators forget a deleted topic."""
        self._config = config
        self._controller = controller
        self._metadata = metadata
        self._validate_configs = validate_configs
        self._new_topic_id = new_topic_id
        self._listener = listener
        self._collision_keys: dict[str, str] = {}
        self._done_deletions: list[bytes] = []
        self.in_transit: set[str] = set()
        """Names that are held by a topic that is being made or deleted."""
        self.unsynced: set[bytes] = set()
        """Ids of internal topics that are in use and may not be durable yet."""
        self._call_soon = threads.call_soon
        self._directory = directory
        self.changes = TopicChanges(self, controller, listener, threads, forget)
        """Whole changes, for the handlers: each step after the one before it, none waited for on the loop."""

    def load(self) -> None:
        """Show all topics of the metadata log; called once, before the first request."""
        image = self._controller.image
        for topic in image.topics.values():
            self._metadata.put(topic_image(image, topic))
            self._collision_keys[collision_key(topic.name)] = topic.name

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Take over committed topics: names are held, deleted topics hidden, configs in force. What waits for the disk
        (logs that come and go, and the picture for clients after them) follows in ``changes``."""
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

    def deletions_finished(self, topic_ids: Iterable[bytes]) -> None:
        """Note that nothing is left of these topics; the metadata log may forget them."""
        self._done_deletions += topic_ids

    def begin_create(self, new: NewTopic) -> TopicImage:
        """Commit the topic, which holds its name: the first step. ``finish_create`` follows, or its deletion.

        With ``validate_only`` the topic is described and not made (its id is zero then). Raises InvalidTopicError,
        TopicAlreadyExistsError, InvalidPartitionsError, InvalidReplicationFactorError, InvalidConfigError,
        PolicyViolationError. Source: CreateTopics.
        """
        name = new.name
        validate_topic_name(name)
        check_is_new(name, name in self._metadata.topics or name in self.in_transit, self._collision_keys)
        count = partition_count(self._config, new.partitions)
        partitions = unreplicated(self._config.node_id, count, directory=self._directory)
        check_replication_factor(replication_factor_of(self._config, new.replication_factor))
        self._check_has_room()
        configs = dict(new.configs or {})
        self._validate_configs(configs)
        is_internal = name in INTERNAL_TOPICS
        if new.validate_only:
            return TopicImage(name, bytes(16), partitions, configs, is_internal)
        image = TopicImage(name, self._new_topic_id(), partitions, configs, is_internal)
        self._controller.commit(creation_records(image, self._controller.level))
        return image

    def _check_has_room(self) -> None:
        """Raise InvalidReplicationFactorError while all log directories are cordoned (KIP-1066)."""
        if self._controller.level >= WITH_CORDONED and cordoned_log_dirs(self._config) == self._config.log_dirs:
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

        It is used at once, for the coordinator's first record. Clients hear of that record when the topic, too, is
        durable: ``InternalTopicLog.uncommitted``. Raises KafkaStorageError.
        """
        existing = self._metadata.topics.get(name)
        if existing is not None:
            return existing
        partitions, replication_factor, configs = internal_topic_settings(self._config, name)
        image = self.begin_create(NewTopic(name, partitions, replication_factor, configs))
        try:
            with opening_expected():  # the coordinator's first record waits for it, on the loop
                self._listener.first_logs(image, 0)()
        except KafkaError:
            self.changes.undo_create(image)
            raise
        self.unsynced.add(image.topic_id)
        self.finish_create(image)
        self._make_log_of(image, 1)
        return image

    def _make_log_of(self, image: TopicImage, partition: int) -> None:
        """Make an internal topic's logs one in a turn: all fifty take 50 ms."""
        if self._metadata.topics.get(image.name) is not image:
            return
        if partition < image.partition_count:
            with contextlib.suppress(KafkaError), opening_expected():  # they are made when touched
                self._listener.first_logs(image, partition)()
            self._call_soon(partial(self._make_log_of, image, partition + 1))

    def begin_delete(self, name: str) -> TopicImage:
        """Commit the deletion and hide the topic: the first step; its name is held until ``finish_delete``.

        Raises UnknownTopicOrPartitionError, TopicDeletionDisabledError. Source: DeleteTopics.
        """
        if not self._config.get_bool("delete.topic.enable"):
            raise TopicDeletionDisabledError
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        return self.commit_deletion(image)

    def finish_delete(self, image: TopicImage, *, removed: bool) -> None:
        """Free the name: the last step. Where logs may be left, in a directory that is offline or takes no rename, the
        metadata log keeps the topic's id for the start that finds them.
        """
        self.in_transit.discard(image.name)
        self._collision_keys.pop(collision_key(image.name), None)
        is_whole = self._listener.topic_deleted(image)
        if removed and is_whole:
            self._done_deletions.append(image.topic_id)

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
                f"The topic {name} currently has {image.partition_count} partition(s); {count} would be no increase."
            )
        check_partition_limit(count - image.partition_count)
        self._check_has_room()
        more = unreplicated(self._config.node_id, count - image.partition_count, directory=self._directory)
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
        """Put these overrides, already validated, in place of a topic's own: in force at once, durable with the
        metadata log's next sync.

        Raises UnknownTopicOrPartitionError. Source: AlterConfigs, IncrementalAlterConfigs.
        """
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        self._controller.commit(config_records((TOPIC_RESOURCE, name), image.configs, configs))
        return self._metadata.topics[name]

    def _show_configs(self, name: str, image: MetadataImage) -> None:
        """Put committed overrides in force, unless the topic is not shown yet, or shown no more."""
        shown, topic = self._metadata.topics.get(name), image.topic_named(name)
        if shown is not None and topic is not None and shown.topic_id == topic.topic_id:
            changed = shown._replace(configs=topic_image(image, topic).configs)
            self._metadata.put(changed)
            self._listener.topic_configs_changed(changed)

    def broker_defaults_changed(self) -> None:
        """Have every log read its configs again: a dynamic broker config that topics inherit has changed."""
        for image in self._metadata.topics.values():
            self._listener.topic_configs_changed(image)

    def commit_deletion(self, image: TopicImage) -> TopicImage:
        """Commit the deletion of a topic and hide it; its name is held. Raises KafkaStorageError."""
        records = [VersionedRecord(RemoveTopicRecord(topic_id=image.topic_id))]
        if self._done_deletions:
            records.append(VersionedRecord(NoOpRecord(finished_deletions=self._done_deletions)))
        self._controller.commit(records)
        self._done_deletions = []
        return image

    def _hold(self, name: str) -> None:
        """Let no other topic have a name until ``finish_create`` or ``finish_delete``."""
        self.in_transit.add(name)
        self._collision_keys[collision_key(name)] = name


def check_is_new(name: str, is_taken: bool, collisions: Mapping[str, str]) -> None:
    """Raise TopicAlreadyExistsError for a name that is taken, InvalidTopicError for one like another's: ``collisions``
    are the names by collision key.
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
    """Return the replication factor asked for a new topic."""
    return config.get_int("default.replication.factor") if replication_factor == USE_DEFAULT else replication_factor


def validate_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless ``name`` may be a topic's."""
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
        raise InvalidTopicError(f"Topic name is invalid: '{name}' is how a virtual topic is spelled")


def is_virtual_spelling(name: str) -> bool:
    """Return whether this name means a virtual topic as soon as its base is there."""
    from tidelog.broker.metadata.virtual_names import split_name  # only names with three dots need it

    try:
        split_name(name)
    except InvalidTopicError:
        return False
    return True


def collision_key(name: str) -> str:
    """Return the form of a name that no two topics may share: metrics write ``.`` as ``_``."""
    return name.replace(".", "_")


def check_partition_limit(count: int) -> None:
    """Raise PolicyViolationError for more new partitions than one request may make."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolationError(
            f"Unable to create {count} partitions at once: the most in one request are {MAX_PARTITIONS_PER_REQUEST}."
        )


def check_replication_factor(replication_factor: int) -> None:
    """Raise InvalidReplicationFactorError unless this one broker can hold so many replicas."""
    if replication_factor < 1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0.")
    if replication_factor > 1:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only 1 broker(s) are registered."
        )


def internal_topic_settings(config: BrokerConfig, name: str) -> tuple[int, int, dict[str, str]]:
    """Return partitions, replication factor and configs an internal topic is made with.

    Raises InvalidRequestError for a name that is no internal topic made here.
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
            "cleanup.policy": "delete",  # the coordinator cuts off what no state needs any more
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
