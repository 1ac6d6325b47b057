"""Reader of a KRaft cluster's ``__cluster_metadata`` log: topics, ids, configs, quotas, credentials. Read-only.

The directory ``__cluster_metadata-0`` holds segments like any partition's, and snapshots beside them
(``<end offset>-<epoch>.checkpoint``, batches too). The newest snapshot holds all that was true before its end offset;
the log goes on from there. A record's value is::

    frame version varint (1) | record type varint | version varint | message

Records between BeginTransaction and AbortTransaction are as if never written (KIP-868). Types that are not declared
here are counted, so that the reader can say what it did not take over. What follows the last complete batch was not
acknowledged and is not read.

Source: ``metadata/src/main/resources/common/metadata/*.json`` of Kafka 3.9 and 4.3; KIP-630, KIP-631.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tidelog.log.segment.batch_scan import crc_matches, iter_batches
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError
from tidelog.protocol.metadata_records.records import (
    LEADER_UNCHANGED,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from tidelog.protocol.record.record_batch import RecordBatch
from tidelog.protocol.schema.fields import (
    Message,
)
from tidelog.protocol.types import read_unsigned_varint

METADATA_DIRECTORY = "__cluster_metadata-0"
SNAPSHOT_SUFFIX = ".checkpoint"
MAX_RECORD_BYTES = 64 * 1024 * 1024
_FRAME_VERSION = 1
_OFFSET_DIGITS = 20
_BEGIN, _END, _ABORT = 23, 24, 25
_NOT_TAKEN = {
    10: "delegation tokens",
    18: "ACLs",
}
"""Things a cluster may hold that matter to its users and that this broker has no place for."""


_TYPES: dict[int, type[Message]] = {
    message.API_KEY: message
    for message in (
        TopicRecord,
        UnregisterBrokerRecord,
        RegisterBrokerRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        RemoveTopicRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        RemoveUserScramCredentialRecord,
    )
}
Resource = tuple[int, str]
_T = TypeVar("_T")
QuotaEntity = tuple[tuple[str, str | None], ...]


class ClusterTopic(NamedTuple):
    """A topic as the controller knows it: ``leader_epochs`` by partition."""

    name: str
    topic_id: bytes
    leader_epochs: dict[int, int]


@dataclass(slots=True)
class ClusterMetadata:
    """The state after the last record. ``configs`` by (resource type, name); ``not_taken`` counts by kind."""

    topics: dict[bytes, ClusterTopic] = field(default_factory=dict)
    configs: dict[Resource, dict[str, str]] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    scram: dict[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    brokers: set[int] = field(default_factory=set)
    """Ids of those that are registered, and of those that ever were a partition's replica."""
    next_producer_id: int = 0
    not_taken: Counter[str] = field(default_factory=Counter)

    def topic_named(self, name: str) -> ClusterTopic | None:
        """The topic of this name."""
        return next((topic for topic in self.topics.values() if topic.name == name), None)

    def apply(self, record: Message) -> None:
        """Change the state by one record; later records win."""
        if isinstance(record, TopicRecord):
            self.topics[record.topic_id] = ClusterTopic(record.name, record.topic_id, {})
        elif isinstance(record, RemoveTopicRecord):
            gone = self.topics.pop(record.topic_id, None)
            if gone is not None:
                self.configs.pop((2, gone.name), None)
        elif isinstance(record, PartitionRecord | PartitionChangeRecord):
            self._apply_partition(record)
        elif isinstance(record, ConfigRecord):
            _set_or_remove(
                self.configs.setdefault((record.resource_type, record.resource_name), {}), record.name, record.value
            )
        elif isinstance(record, ClientQuotaRecord):
            entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
            _set_or_remove(self.quotas.setdefault(entity, {}), record.key, None if record.remove else record.value)
        else:
            self._apply_other(record)

    def _apply_partition(self, record: PartitionRecord | PartitionChangeRecord) -> None:
        topic = self.topics.get(record.topic_id)
        if topic is None:
            return
        if isinstance(record, PartitionRecord):
            self.brokers.update(record.replicas)
            topic.leader_epochs[record.partition_id] = record.leader_epoch
        elif record.leader != LEADER_UNCHANGED:
            topic.leader_epochs[record.partition_id] = topic.leader_epochs.get(record.partition_id, 0) + 1

    def _apply_other(self, record: Message) -> None:
        if isinstance(record, UserScramCredentialRecord):
            self.scram[record.name, record.mechanism] = record
        elif isinstance(record, RemoveUserScramCredentialRecord):
            self.scram.pop((record.name, record.mechanism), None)
        elif isinstance(record, RegisterBrokerRecord):
            self.brokers.add(record.broker_id)
        elif isinstance(record, UnregisterBrokerRecord):
            self.brokers.discard(record.broker_id)
        elif isinstance(record, FeatureLevelRecord):
            self.features[record.name] = record.feature_level
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = max(self.next_producer_id, record.next_producer_id)


def _set_or_remove(values: dict[str, _T], name: str, value: _T | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def read_cluster_metadata(file_system: FileSystem, directory: str) -> ClusterMetadata:
    """Everything the ``__cluster_metadata-0`` in ``directory`` says.

    Raises KafkaStorageError: unreadable, or a batch with a wrong checksum in front of good ones.
    """
    metadata = ClusterMetadata()
    pending: list[Message] | None = None
    for record_type, record in _records(file_system, directory):
        if record_type == _BEGIN:
            pending = []
        elif record_type in (_END, _ABORT):
            for held in (pending or []) if record_type == _END else []:
                metadata.apply(held)
            pending = None
        elif record is None:
            if record_type in _NOT_TAKEN:
                metadata.not_taken[_NOT_TAKEN[record_type]] += 1
        elif pending is not None:
            pending.append(record)
        else:
            metadata.apply(record)
    return metadata


def _records(file_system: FileSystem, directory: str) -> Iterator[tuple[int, Message | None]]:
    """(record type, message or None for a type not declared) of the newest snapshot and the log after it."""
    names = file_system.list_names(directory)
    snapshots = [name for name in names if name.endswith(SNAPSHOT_SUFFIX) and name[:_OFFSET_DIGITS].isdigit()]
    start = 0
    if snapshots:
        start = int(max(snapshots)[:_OFFSET_DIGITS])
        yield from _records_of(file_system, os.path.join(directory, max(snapshots)), 0)
    bases = sorted(int(name[:_OFFSET_DIGITS]) for name in names if name.endswith(".log"))
    for base, next_base in zip(bases, [*bases[1:], start + 1], strict=False):
        if next_base > start:
            yield from _records_of(file_system, os.path.join(directory, f"{base:020d}.log"), start)


def _records_of(file_system: FileSystem, path: str, start: int) -> Iterator[tuple[int, Message | None]]:
    """Records of one file whose offset is at least ``start``."""
    file = file_system.open_file(path, writable=False)
    try:
        for header, view in iter_batches(file, 0, file.size()):
            if not crc_matches(header, view):
                raise KafkaStorageError(f"{path}: wrong checksum in the batch at byte {header.position}")
            batch = RecordBatch(view)
            if header.is_control:
                continue
            for record in batch.records(MAX_RECORD_BYTES):
                if record.offset >= start and record.value is not None:
                    yield _decode(record.value)
    except CorruptMessageError as error:
        raise KafkaStorageError(f"{path}: {error}") from error
    finally:
        file.close()


def _decode(value: bytes | memoryview) -> tuple[int, Message | None]:
    frame_version, position = read_unsigned_varint(value, 0)
    if frame_version != _FRAME_VERSION:
        raise CorruptMessageError(
            f"a metadata record has frame version {frame_version}, only {_FRAME_VERSION} is known"
        )
    record_type, position = read_unsigned_varint(value, position)
    version, position = read_unsigned_varint(value, position)
    message = _TYPES.get(record_type)
    return record_type, None if message is None else message.decode(value[position:], version)
