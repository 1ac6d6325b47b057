"""Creates, widens and deletes topics: store first, then the picture in memory, then the logs.

Order, and why a crash between two steps is harmless
  create   store commits -> MetadataCache shows it -> logs are made. Without its logs after a crash, a topic gets them
           when they are first asked for, empty as they were.
  delete   store commits -> MetadataCache forgets it -> logs are renamed away. The commit also notes the topic's id as
           being deleted, so that the start knows logs that a crash left over and removes them
           (``broker/replica/strays.py``).
When a call returns, all three steps are done: a deleted topic's name can be used again at once. ``changes`` does the
same steps without holding up the loop.

A topic is one key of the store, ``/topics/<name>``: JSON with its id, partition count and own configs, written as a
whole. A deletion is ``/deleted-topics/<id>`` until the next one, or the start, has seen that it is done. Loop thread
only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.topic_changes import (
    USE_DEFAULT,
    CallSoon,
    InThread,
    NewTopic,
    TopicChanges,
    call_now,
    run_now,
)
from tidelog.broker.metadata.image import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataCache,
    TopicImage,
    unreplicated,
)
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.broker.metadata.store import Compare, KeyValue, MetadataStore, MetadataStoreError, Put
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
from tidelog.protocol.types import uuid_from_str, uuid_to_str

TOPICS_PREFIX = "/topics/"
DELETED_PREFIX = "/deleted-topics/"
MAX_TOPIC_NAME_LENGTH = (
    249  # a directory is called <name>-<partition>, or longer when it is being deleted; 255 is the most
)
MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka's bound for what one request may create
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
PLAIN_MARK = "..."
"""Stands before each field in the name of a virtual topic (``tidelog.broker.metadata.virtual_names``)."""


class TopicListener(Protocol):
    """Listener that makes and removes the logs; called on the loop thread after the store has committed."""

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        """Return the step that makes the first logs of partitions ``first_partition`` and above, for any thread; it may
        raise KafkaStorageError. The topic's name is held until it is done."""
        ...

    def topic_created(self, image: TopicImage, first_partition: int) -> None:
        """Partitions ``first_partition`` and above of this topic exist from now on, and their first logs."""
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
        """The topic's own configs, or defaults below them, are others now."""
        ...


class TopicManager:
    """The one that changes which topics there are. Loop thread only."""

    __slots__ = (
        "_collision_keys",
        "_config",
        "_done_deletions",
        "_listener",
        "_metadata",
        "_new_topic_id",
        "_store",
        "_validate_configs",
        "changes",
        "in_transit",
    )

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        metadata: MetadataCache,
        *,
        validate_configs: Callable[[Mapping[str, str]], None],
        new_topic_id: Callable[[], bytes],
        listener: TopicListener,
        in_thread: InThread = run_now,
        call_soon: CallSoon = call_now,
    ) -> None:
        """``validate_configs`` raises InvalidConfigError, ``new_topic_id`` draws ids. ``listener`` is told of changes:
        the replica manager. ``in_thread`` runs what waits for the disk."""
        self._config = config
        self._store = store
        self._metadata = metadata
        self._validate_configs = validate_configs
        self._new_topic_id = new_topic_id
        self._listener = listener
        self._collision_keys: dict[str, str] = {}
        self._done_deletions: list[str] = []
        self.in_transit: set[str] = set()
        """Names that are held by a topic that is being made or deleted."""
        self.changes = TopicChanges(self, store.sync, listener, in_thread, call_soon)
        """For who must not wait for the disk: the handlers."""

    def load(self) -> None:
        """Read all topics from the store into the cache; called once, before the first request."""
        for entry in self._store.list(TOPICS_PREFIX):
            self._show(decode_topic(entry, self._config.node_id))

    def unfinished_deletions(self) -> dict[bytes, str]:
        """Ids and names of deleted topics whose logs may still be there; for the start."""
        entries = self._store.list(DELETED_PREFIX)
        return {uuid_from_str(entry.key[len(DELETED_PREFIX) :]): entry.value.decode() for entry in entries}

    def deletions_finished(self, topic_ids: Iterable[bytes]) -> None:
        """Nothing is left of these topics; the store may forget them."""
        self._done_deletions += [DELETED_PREFIX + uuid_to_str(topic_id) for topic_id in topic_ids]

    def create_topic(
        self,
        name: str,
        partitions: int = USE_DEFAULT,
        replication_factor: int = USE_DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic here and now, or with ``validate_only`` only say what it would be (its id is zero then).

        Raises InvalidTopicError, TopicAlreadyExistsError, InvalidPartitionsError, InvalidReplicationFactorError,
        InvalidConfigError, PolicyViolationError; KafkaStorageError when the logs cannot be made, and then there is no
        topic. Source: CreateTopics.
        """
        new = NewTopic(name, partitions, replication_factor, configs, validate_only)
        image = self.begin_create(new, sync=True)
        if not validate_only:
            try:
                self.changes.first_logs(image)()
            except KafkaError:
                self.undo_create(image)
                raise
            self.finish_create(image)
        return image

    def begin_create(self, new: NewTopic, *, sync: bool) -> TopicImage:
        """The first step: commit the topic, which holds its name. ``finish_create`` or ``undo_create`` follows.

        Raises what ``create_topic`` raises, but for the logs.
        """
        name = new.name
        validate_topic_name(name)
        self._check_is_new(name)
        partitions = unreplicated(self._config.node_id, partition_count(self._config, new.partitions))
        check_replication_factor(replication_factor_of(self._config, new.replication_factor))
        configs = dict(new.configs or {})
        self._validate_configs(configs)
        is_internal = name in INTERNAL_TOPICS
        if new.validate_only:
            return TopicImage(name, bytes(16), partitions, configs, is_internal)
        image = TopicImage(name, self._new_topic_id(), partitions, configs, is_internal)
        put = Put(TOPICS_PREFIX + name, encode_topic(image))
        if self._store.txn([Compare(put.key, 0)], [put], [], sync=sync) is None:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
        self.in_transit.add(name)
        self._collision_keys[collision_key(name)] = name
        return image

    def finish_create(self, image: TopicImage, first_partition: int = 0) -> None:
        """The last step: the topic's partitions from ``first_partition`` on are there, for every client."""
        self.in_transit.discard(image.name)
        self._show(image)
        self._listener.topic_created(image, first_partition)

    def undo_create(self, image: TopicImage) -> None:
        """The last step of a creation whose logs could not be made, so that the client may try again."""
        with contextlib.suppress(KafkaError, MetadataStoreError):  # the disk that took no log may take nothing else
            remove_now(self, self._commit_deletion(image, sync=True))

    def ensure_internal_topic(self, name: str) -> TopicImage:
        """The internal topic of this name, created if it does not exist yet."""
        existing = self._metadata.topics.get(name)
        if existing is not None:
            return existing
        partitions, replication_factor, configs = internal_topic_settings(self._config, name)
        image = self.create_topic(name, partitions, replication_factor, configs)
        self._make_log_of(image, 1)
        return image

    def _make_log_of(self, image: TopicImage, partition: int) -> None:
        """Make an internal topic's logs one in a turn: all fifty take 50 ms."""
        if self._listener is None or self._metadata.topics.get(image.name) is not image:
            return
        if partition < image.partition_count:
            with contextlib.suppress(KafkaError):  # they are made when touched
                self._listener.first_logs(image, partition)()
            self.changes.call_soon(partial(self._make_log_of, image, partition + 1))

    def delete_topic(self, name: str) -> TopicImage:
        """Delete a topic and its logs here and now; when this returns the name is free.

        Raises UnknownTopicOrPartitionError, TopicDeletionDisabledError; KafkaStorageError for logs that stay: the next
        start removes them. Source: DeleteTopics.
        """
        image = self.begin_delete(name, sync=True)
        remove_now(self, image)
        return image

    def begin_delete(self, name: str, *, sync: bool) -> TopicImage:
        """The first step: commit the deletion and hide the topic; its name is held until ``finish_delete``.

        Raises UnknownTopicOrPartitionError, TopicDeletionDisabledError.
        """
        if not self._config.get_bool("delete.topic.enable"):
            raise TopicDeletionDisabledError
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        return self._commit_deletion(image, sync=sync)

    def finish_delete(self, image: TopicImage, *, removed: bool) -> None:
        """The last step: the name is free. Where logs may be left, in a directory that is offline or takes no rename,
        the store keeps the topic's id for the start that finds them."""
        self.in_transit.discard(image.name)
        self._collision_keys.pop(collision_key(image.name), None)
        is_whole = self._listener.topic_deleted(image)
        if removed and is_whole:
            self._done_deletions.append(DELETED_PREFIX + uuid_to_str(image.topic_id))

    def begin_widen(self, name: str, count: int, *, validate_only: bool = False) -> tuple[TopicImage, TopicImage]:
        """Commit, without syncing, that a topic has ``count`` partitions in all; it is shown by ``finish_create``.

        Returns the topic as it is and as it will be. Raises UnknownTopicOrPartitionError, InvalidPartitionsError,
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
        wider = image._replace(partitions=image.partitions[:1] * count)
        if not validate_only:
            self.store_image(wider)
        return image, wider

    def set_configs(self, name: str, configs: Mapping[str, str]) -> TopicImage:
        """Put these overrides, already validated, in place of a topic's own: in force at once, durable with the
        store's next sync.

        Raises UnknownTopicOrPartitionError. Source: AlterConfigs, IncrementalAlterConfigs.
        """
        image = self._metadata.topics.get(name)
        if image is None:
            raise UnknownTopicOrPartitionError
        changed = image._replace(configs=dict(configs))
        self.store_image(changed)
        self._metadata.put(changed)
        self._listener.topic_configs_changed(changed)
        return changed

    def broker_defaults_changed(self) -> None:
        """A dynamic broker config that topics inherit has changed: every log reads its configs again."""
        for image in self._metadata.topics.values():
            self._listener.topic_configs_changed(image)

    def _commit_deletion(self, image: TopicImage, *, sync: bool) -> TopicImage:
        """Out of the store and the picture. Raises MetadataStoreError."""
        deletion = Put(DELETED_PREFIX + uuid_to_str(image.topic_id), image.name.encode())
        self._store.txn([], [deletion], [TOPICS_PREFIX + image.name, *self._done_deletions], sync=sync)
        self._done_deletions.clear()
        if image.name in self._metadata.topics:
            self._metadata.remove(image.name)
        self.in_transit.add(image.name)
        return image

    def store_image(self, image: TopicImage, *, sync: bool = False) -> None:
        """Commit a topic as it is to be. Raises MetadataStoreError."""
        self._store.txn([], [Put(TOPICS_PREFIX + image.name, encode_topic(image))], [], sync=sync)

    def _show(self, image: TopicImage) -> None:
        self._metadata.put(image)
        self._collision_keys[collision_key(image.name)] = image.name

    def _check_is_new(self, name: str) -> None:
        if name in self._metadata.topics or name in self.in_transit:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
        other = self._collision_keys.get(collision_key(name))
        if other is not None:
            raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {other}")


def remove_now(topics: TopicManager, image: TopicImage) -> None:
    """Both last steps of a deletion, without a thread. Raises KafkaStorageError for logs that stay."""
    removed = False
    try:
        topics.changes.last_logs(image)()
        removed = True
    finally:
        topics.finish_delete(image, removed=removed)


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
    """Raises InvalidTopicError unless ``name`` may be a topic's."""
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
    """Names with an equal key may not both exist: metrics write ``.`` as ``_``."""
    return name.replace(".", "_")


def check_partition_limit(count: int) -> None:
    """Raises PolicyViolationError for more new partitions than one request may make."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolationError(
            f"Unable to create {count} partitions at once: the most in one request are {MAX_PARTITIONS_PER_REQUEST}."
        )


def check_replication_factor(replication_factor: int) -> None:
    """Raises InvalidReplicationFactorError unless this one broker can hold so many replicas."""
    if replication_factor < 1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0.")
    if replication_factor > 1:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only 1 broker(s) are registered."
        )


def internal_topic_settings(config: BrokerConfig, name: str) -> tuple[int, int, dict[str, str]]:
    """Partitions, replication factor and configs an internal topic is made with.

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


def encode_topic(image: TopicImage) -> bytes:
    """The value of a topic's key in the store."""
    topic: dict[str, object] = {
        "id": uuid_to_str(image.topic_id),
        "partitions": image.partition_count,
        "configs": dict(image.configs),
    }
    leader_epoch = image.partitions[0].leader_epoch
    if leader_epoch:
        topic["leader_epoch"] = leader_epoch
    return json.dumps(topic, separators=(",", ":"), sort_keys=True).encode()


def decode_topic(entry: KeyValue, node_id: int = NO_LEADER) -> TopicImage:
    """The topic a key of the store describes, on the node whose store it is."""
    name = entry.key[len(TOPICS_PREFIX) :]
    topic = json.loads(entry.value)
    return TopicImage(
        name,
        uuid_from_str(topic["id"]),
        unreplicated(node_id, topic["partitions"], topic.get("leader_epoch", 0)),
        topic["configs"],
        name in INTERNAL_TOPICS,
    )
