"""Delta between two metadata images: records are replayed into it, and it builds the next image.

``replay`` alone says what each metadata record changes. A delta belongs to one thread until ``build`` has returned its
image. The old image does not change, and the new one shares every part that no record changed.

Source: MetadataDelta and its parts of Kafka 4.3, KIP-631; KIP-966 for eligible leader replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tidelog.broker.metadata.metadata_image import (
    TOPIC_RESOURCE,
    AccessRule,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    QuotaEntity,
    Resource,
    ScramState,
    TokenState,
    TopicState,
)
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.metadata_records import records
from tidelog.protocol.schema.fields import Message

K = TypeVar("K")
V = TypeVar("V")

_FENCED, _UNFENCED = 1, -1
_RECOVERING, _RECOVERED = 1, 0


class MapChanges(Generic[K, V]):
    """A mapping of the old image, and the keys that were set and removed since."""

    __slots__ = ("changed", "old")

    def __init__(self, old: Mapping[K, V]) -> None:
        self.old = old
        self.changed: dict[K, V | None] = {}
        """Key -> its new value, None where it was removed."""

    def get(self, key: K) -> V | None:
        """Return the present value, or None."""
        return self.changed[key] if key in self.changed else self.old.get(key)

    def put(self, key: K, value: V) -> None:
        """Set a value."""
        self.changed[key] = value

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        if key in self.old:
            self.changed[key] = None
        else:
            self.changed.pop(key, None)

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield the present keys and values."""
        for key, value in self.old.items():
            if key not in self.changed:
                yield key, value
        for key, changed in self.changed.items():
            if changed is not None:
                yield key, changed

    def build(self) -> Mapping[K, V]:
        """Return the new mapping: the old one itself where nothing changed."""
        if not self.changed:
            return self.old
        built = dict(self.old)
        for key, value in self.changed.items():
            if value is None:
                built.pop(key, None)
            else:
                built[key] = value
        return built


class MetadataDelta:
    """Changes that records make to ``image``. Not thread-safe."""

    __slots__ = (
        "_directory_lists", "_partitions", "_replica_lists", "_states", "acls", "brokers", "configs", "controllers",
        "deletions", "features", "image", "is_unsafe_for_kafka", "producer_ids", "quotas", "scram", "tokens",
        "topic_ids", "topics",
    )  # fmt: skip

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.features = MapChanges(image.features)
        self.brokers = MapChanges(image.brokers)
        self.controllers = MapChanges(image.controllers)
        self.topics = MapChanges(image.topics)
        self.topic_ids = MapChanges(image.topic_ids)
        self.configs: MapChanges[Resource, Mapping[str, str]] = MapChanges(image.configs)
        self.quotas: MapChanges[QuotaEntity, Mapping[str, float]] = MapChanges(image.quotas)
        self.scram = MapChanges(image.scram)
        self.acls = MapChanges(image.acls)
        self.tokens = MapChanges(image.tokens)
        self.producer_ids = image.producer_ids
        self.deletions: dict[bytes, str | None] = {}
        """Topics that were deleted, by id: the topic's name, or None once its logs are removed."""
        self.is_unsafe_for_kafka = False
        """True if an Apache Kafka may replay the records wrongly, or not at all; a snapshot of their image is safe.

        A Kafka up to 4.3 that replays the removal of a SCRAM user together with another user's record may lose the
        other user (ScramDelta.apply). A Kafka that does not support a feature's level stops at the level's record,
        even if a later record lowers the level.
        """
        self._partitions: dict[bytes, dict[int, PartitionState]] = {}
        """Partitions, by number, of the topics in which a record has changed one."""
        self._states: dict[PartitionState, PartitionState] = {}
        self._replica_lists: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._directory_lists: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}

    def replay(self, record: Message) -> None:
        """Apply one record. Raises CorruptMessageError if the record contradicts the earlier ones."""
        _REPLAY[type(record)](self, record)

    def build(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataImage:
        """Return the image after the record at ``offset``.

        Raises CorruptMessageError if a topic's partition numbers have a gap.
        """
        for topic_id in self._partitions:
            self._freeze(topic_id)
        self._partitions.clear()
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            features=self.features.build(),
            brokers=self.brokers.build(),
            controllers=self.controllers.build(),
            topics=self.topics.build(),
            topic_ids=self.topic_ids.build(),
            configs=self.configs.build(),
            quotas=self.quotas.build(),
            scram=self.scram.build(),
            acls=self.acls.build(),
            tokens=self.tokens.build(),
            producer_ids=self.producer_ids,
        )

    def _freeze(self, topic_id: bytes) -> None:
        topic = self.topic_of_id(topic_id)
        partitions = self._partitions[topic_id]
        try:
            states = tuple(partitions[number] for number in range(len(partitions)))
        except KeyError as error:
            raise CorruptMessageError(f"topic {topic.name} has no partition {error}") from None
        self.topics.put(topic_id, topic._replace(partitions=states))

    def topic_of_id(self, topic_id: bytes) -> TopicState:
        """Return the topic with this id. Raises CorruptMessageError where there is none."""
        topic = self.topics.get(topic_id)
        if topic is None:
            raise CorruptMessageError(f"no topic has the id {topic_id.hex()}")
        return topic

    def open_partitions(self, topic_id: bytes) -> dict[int, PartitionState]:
        """Return the partitions of a topic by number; the caller may change them. Raises CorruptMessageError where
        there is no such topic.
        """
        if topic_id not in self._partitions:
            self._partitions[topic_id] = dict(enumerate(self.topic_of_id(topic_id).partitions))
        return self._partitions[topic_id]

    def close_partitions(self, topic_id: bytes) -> None:
        """Drop the changed partitions of a deleted topic."""
        self._partitions.pop(topic_id, None)

    def share(self, replicas: list[int] | None) -> tuple[int, ...]:
        """Return one tuple for all equal replica lists, as a cluster has few different ones."""
        if not replicas:
            return ()
        key = tuple(replicas)
        return self._replica_lists.setdefault(key, key)

    def share_state(self, state: PartitionState) -> PartitionState:
        """Return one object for all equal states: those of a lone node are equal except for their directories."""
        return self._states.setdefault(state, state)

    def share_directories(self, ids: list[bytes]) -> tuple[bytes, ...]:
        """Return one tuple for all equal lists of directory ids, as brokers have few directories."""
        key = tuple(ids)
        return self._directory_lists.setdefault(key, key)

    def registered_broker(self, broker_id: int, epoch: int) -> BrokerRegistration:
        """Return a registered broker. Raises CorruptMessageError unless it has this epoch."""
        broker = self.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != epoch:
            raise CorruptMessageError(f"no broker {broker_id} is registered with epoch {epoch}")
        return broker


def _replay_topic(delta: MetadataDelta, record: records.TopicRecord) -> None:
    if delta.topics.get(record.topic_id) is not None or delta.topic_ids.get(record.name) is not None:
        raise CorruptMessageError(f"topic {record.name} or its id exists already")
    delta.topics.put(record.topic_id, TopicState(record.name, record.topic_id, ()))
    delta.topic_ids.put(record.name, record.topic_id)


def _replay_partition(delta: MetadataDelta, record: records.PartitionRecord) -> None:
    share = delta.share
    state = PartitionState(
        share(record.replicas),
        share(record.isr),
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        delta.share_directories(record.directories),
        share(record.removing_replicas),
        share(record.adding_replicas),
        record.leader_recovery_state == _RECOVERING,
        share(record.eligible_leader_replicas),
        share(record.last_known_elr),
    )
    delta.open_partitions(record.topic_id)[record.partition_id] = delta.share_state(state)


def _replay_partition_change(delta: MetadataDelta, record: records.PartitionChangeRecord) -> None:
    partitions = delta.open_partitions(record.topic_id)
    state = partitions.get(record.partition_id)
    if state is None:
        name = delta.topic_of_id(record.topic_id).name
        raise CorruptMessageError(f"topic {name} has no partition {record.partition_id} that could be changed")
    partitions[record.partition_id] = _change_partition(delta, state, record)


def _change_partition(
    delta: MetadataDelta, state: PartitionState, record: records.PartitionChangeRecord
) -> PartitionState:
    """Return a partition after a change; a null field leaves its value. The partition epoch always grows, the
    leader epoch where a leader is named."""
    has_leader = record.leader != records.LEADER_UNCHANGED
    lists = {
        "isr": record.isr,
        "replicas": record.replicas,
        "removing": record.removing_replicas,
        "adding": record.adding_replicas,
        "elr": record.eligible_leader_replicas,
        "last_known_elr": record.last_known_elr,
    }
    changes: dict[str, Any] = {name: delta.share(value) for name, value in lists.items() if value is not None}
    if record.directories is not None:
        changes["directories"] = delta.share_directories(record.directories)
    if record.leader_recovery_state in (_RECOVERING, _RECOVERED):
        changes["is_recovering"] = record.leader_recovery_state == _RECOVERING
    return state._replace(
        leader=record.leader if has_leader else state.leader,
        leader_epoch=state.leader_epoch + has_leader,
        partition_epoch=state.partition_epoch + 1,
        **changes,
    )


def _replay_remove_topic(delta: MetadataDelta, record: records.RemoveTopicRecord) -> None:
    topic = delta.topic_of_id(record.topic_id)
    delta.topics.remove(record.topic_id)
    delta.topic_ids.remove(topic.name)
    delta.configs.remove((TOPIC_RESOURCE, topic.name))
    delta.close_partitions(record.topic_id)
    delta.deletions[record.topic_id] = topic.name


def _replay_clear_elr(delta: MetadataDelta, record: records.ClearElrRecord) -> None:
    """Remove the eligible leader replicas of one topic, or of all topics if the name is empty.

    The partition epochs grow, as with each change. The controllers refuse ISR changes of a leader whose image has other
    epochs than theirs.
    """
    ids = [delta.topic_ids.get(record.topic_name)] if record.topic_name else [key for key, _ in delta.topics.items()]
    for topic_id in ids:
        if topic_id is None:
            raise CorruptMessageError(f"no topic is called {record.topic_name}")
        partitions = delta.open_partitions(topic_id)
        for number, state in partitions.items():
            if state.elr or state.last_known_elr:
                epoch = state.partition_epoch + 1
                partitions[number] = state._replace(partition_epoch=epoch, elr=(), last_known_elr=())


def _replay_config(delta: MetadataDelta, record: records.ConfigRecord) -> None:
    resource = (record.resource_type, record.resource_name)
    _put_entry(delta.configs, resource, record.name, record.value)


def _replay_quota(delta: MetadataDelta, record: records.ClientQuotaRecord) -> None:
    entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
    _put_entry(delta.quotas, entity, record.key, None if record.remove else record.value)


def _replay_feature(delta: MetadataDelta, record: records.FeatureLevelRecord) -> None:
    delta.is_unsafe_for_kafka |= record.feature_level < (delta.features.get(record.name) or 0)
    if record.feature_level == 0:
        delta.features.remove(record.name)
    else:
        delta.features.put(record.name, record.feature_level)


def _replay_producer_ids(delta: MetadataDelta, record: records.ProducerIdsRecord) -> None:
    delta.producer_ids = record.next_producer_id


def _replay_register_broker(delta: MetadataDelta, record: records.RegisterBrokerRecord) -> None:
    cordoned = record.cordoned_log_dirs
    registration = BrokerRegistration(
        record.broker_id, record.broker_epoch, record.incarnation_id,
        endpoints=_endpoints(record.end_points), features=_ranges(record.features), rack=record.rack,
        is_fenced=record.fenced, in_controlled_shutdown=record.in_controlled_shutdown,
        directories=tuple(record.log_dirs),
        cordoned_directories=None if cordoned is None else tuple(cordoned),
        is_migrating_zk_broker=record.is_migrating_zk_broker,
    )  # fmt: skip
    delta.brokers.put(record.broker_id, registration)


def _replay_unregister_broker(delta: MetadataDelta, record: records.UnregisterBrokerRecord) -> None:
    delta.registered_broker(record.broker_id, record.broker_epoch)
    delta.brokers.remove(record.broker_id)


def _replay_fence(delta: MetadataDelta, record: records.FenceBrokerRecord) -> None:
    delta.brokers.put(record.id, delta.registered_broker(record.id, record.epoch)._replace(is_fenced=True))


def _replay_unfence(delta: MetadataDelta, record: records.UnfenceBrokerRecord) -> None:
    delta.brokers.put(record.id, delta.registered_broker(record.id, record.epoch)._replace(is_fenced=False))


def _replay_registration_change(delta: MetadataDelta, record: records.BrokerRegistrationChangeRecord) -> None:
    broker = delta.registered_broker(record.broker_id, record.broker_epoch)
    if record.fenced in (_FENCED, _UNFENCED):
        broker = broker._replace(is_fenced=record.fenced == _FENCED)
    if record.in_controlled_shutdown:
        broker = broker._replace(in_controlled_shutdown=True)
    if record.log_dirs:
        broker = broker._replace(directories=tuple(record.log_dirs))
    if record.cordoned_log_dirs is not None:
        broker = broker._replace(cordoned_directories=tuple(record.cordoned_log_dirs))
    delta.brokers.put(record.broker_id, broker)


def _replay_register_controller(delta: MetadataDelta, record: records.RegisterControllerRecord) -> None:
    registration = ControllerRegistration(
        record.controller_id, record.incarnation_id, _endpoints(record.end_points), _ranges(record.features),
        record.zk_migration_ready,
    )  # fmt: skip
    delta.controllers.put(record.controller_id, registration)


def _replay_scram(delta: MetadataDelta, record: records.UserScramCredentialRecord) -> None:
    credential = ScramState(bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations)
    delta.scram.put((record.name, record.mechanism), credential)


def _replay_remove_scram(delta: MetadataDelta, record: records.RemoveUserScramCredentialRecord) -> None:
    delta.is_unsafe_for_kafka = True
    delta.scram.remove((record.name, record.mechanism))


def _replay_acl(delta: MetadataDelta, record: records.AccessControlEntryRecord) -> None:
    rule = AccessRule(
        record.resource_type, record.resource_name, record.pattern_type, record.principal, record.host,
        record.operation, record.permission_type,
    )  # fmt: skip
    delta.acls.put(record.id, rule)


def _replay_remove_acl(delta: MetadataDelta, record: records.RemoveAccessControlEntryRecord) -> None:
    delta.acls.remove(record.id)


def _replay_token(delta: MetadataDelta, record: records.DelegationTokenRecord) -> None:
    token = TokenState(
        record.token_id, record.owner, record.requester, tuple(record.renewers), record.issue_timestamp,
        record.max_timestamp, record.expiration_timestamp,
    )  # fmt: skip
    delta.tokens.put(record.token_id, token)


def _replay_remove_token(delta: MetadataDelta, record: records.RemoveDelegationTokenRecord) -> None:
    delta.tokens.remove(record.token_id)


def _replay_no_op(delta: MetadataDelta, record: records.NoOpRecord) -> None:
    delta.deletions.update((one.topic_id, one.name) for one in record.unfinished_deletions)
    delta.deletions.update(dict.fromkeys(record.finished_deletions))


def _replay_nothing(delta: MetadataDelta, record: Message) -> None:
    """Change nothing: the state of a migration from ZooKeeper is not needed."""


def _put_entry(changes: MapChanges[K, Mapping[str, V]], key: K, name: str, value: V | None) -> None:
    """Set or remove one entry of the mapping at ``key``; a mapping that becomes empty is removed."""
    entries = dict(changes.get(key) or {})
    if value is None:
        entries.pop(name, None)
    else:
        entries[name] = value
    if entries:
        changes.put(key, entries)
    else:
        changes.remove(key)


def _endpoints(listed: list[records.RegisteredEndpoint]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port, one.security_protocol) for one in listed)


def _ranges(listed: list[records.RegisteredFeature]) -> Mapping[str, tuple[int, int]]:
    return {one.name: (one.min_supported_version, one.max_supported_version) for one in listed}


_REPLAY: dict[type[Message], Callable[[MetadataDelta, Any], None]] = {
    records.TopicRecord: _replay_topic,
    records.PartitionRecord: _replay_partition,
    records.PartitionChangeRecord: _replay_partition_change,
    records.RemoveTopicRecord: _replay_remove_topic,
    records.ClearElrRecord: _replay_clear_elr,
    records.ConfigRecord: _replay_config,
    records.ClientQuotaRecord: _replay_quota,
    records.FeatureLevelRecord: _replay_feature,
    records.ProducerIdsRecord: _replay_producer_ids,
    records.RegisterBrokerRecord: _replay_register_broker,
    records.UnregisterBrokerRecord: _replay_unregister_broker,
    records.FenceBrokerRecord: _replay_fence,
    records.UnfenceBrokerRecord: _replay_unfence,
    records.BrokerRegistrationChangeRecord: _replay_registration_change,
    records.RegisterControllerRecord: _replay_register_controller,
    records.UserScramCredentialRecord: _replay_scram,
    records.RemoveUserScramCredentialRecord: _replay_remove_scram,
    records.AccessControlEntryRecord: _replay_acl,
    records.RemoveAccessControlEntryRecord: _replay_remove_acl,
    records.DelegationTokenRecord: _replay_token,
    records.RemoveDelegationTokenRecord: _replay_remove_token,
    records.NoOpRecord: _replay_no_op,
    records.ZkMigrationStateRecord: _replay_nothing,
}
"""Record type -> function that applies it. ``replay.py`` handles begin, end and abort of a transaction."""
