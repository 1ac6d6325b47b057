"""Conversion of ``metadata.sqlite``, where former versions kept metadata, to Kafka's metadata log at the first start.

    __cluster_metadata-0.converting/   created, all records appended and synced
    __cluster_metadata-0/              renamed, and the rename synced: converted
    metadata.sqlite.converted          the old file, kept aside

After a kill at any point, either the old file counts or the complete log. The next start removes ``.converting``, and
renames an old file that lies beside the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from tidelog.broker.controller.clients.client_quotas import QuotaChange, quota_record
from tidelog.broker.controller.clients.scram_credentials import ScramMechanism, credential_record
from tidelog.broker.controller.embedded import open_controller
from tidelog.broker.controller.features import first_level, first_levels, level_record
from tidelog.broker.controller.producer_ids import block_record
from tidelog.broker.controller.topics import creation_records
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage, single_replica_states
from tidelog.broker.metadata.image_records import METADATA_VERSION, VersionedRecord, config_records
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
from tidelog.broker.metadata.metadata_image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    EMPTY_IMAGE,
    GROUP_RESOURCE,
    MetadataImage,
    ScramState,
)
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.metadata_records.records import DeletedTopic, NoOpRecord
from tidelog.protocol.types import uuid_from_str

logger = logging.getLogger(__name__)

STORE_FILE = "metadata.sqlite"
CONVERTING_SUFFIX = ".converting"
CONVERTED_SUFFIX = ".converted"
_SIDE_FILES = ("", "-wal", "-shm")
_RESOURCES = {"broker": BROKER_RESOURCE, "client-metrics": CLIENT_METRICS_RESOURCE, "group": GROUP_RESOURCE}


def convert_store(location: MetadataLocation, node_id: int, time: Time) -> None:
    """Convert ``metadata.sqlite`` of the location's log directory, where there is one. Raises KafkaStorageError."""
    file_system = location.environment.file_system
    store = os.path.join(location.log_directory, STORE_FILE)
    if not file_system.exists(store):
        return
    if not file_system.exists(location.path):
        staging = location._replace(name=location.name + CONVERTING_SUFFIX)
        if file_system.exists(staging.path):
            file_system.remove_directory(staging.path)
        _write_log(staging, list(records_of_store(store, node_id)), node_id, time)
        file_system.rename(staging.path, location.path)
        file_system.sync_directory(location.log_directory)
        logger.info("%s is converted to %s", store, location.path)
    for suffix in _SIDE_FILES:
        if file_system.exists(store + suffix):
            file_system.rename(store + suffix, store + CONVERTED_SUFFIX + suffix)
    file_system.sync_directory(location.log_directory)


def image_of_directory(file_system: FileSystem, directory: str, node_id: int) -> MetadataImage:
    """Return the metadata of a log directory, converted or not, or an empty image if it has none. Convert nothing.
    Raises KafkaStorageError.
    """
    log = os.path.join(directory, METADATA_DIRECTORY)
    if file_system.exists(log):
        return read_metadata_image(file_system, log)
    store = os.path.join(directory, STORE_FILE)
    if not file_system.exists(store):
        return EMPTY_IMAGE
    delta = MetadataDelta(EMPTY_IMAGE)
    for record, _ in records_of_store(store, node_id):
        delta.replay(record)
    return delta.build(0, 0, 0)


def _write_log(staging: MetadataLocation, records: list[VersionedRecord], node_id: int, time: Time) -> None:
    controller = open_controller(staging, node_id, time)
    try:
        controller.commit(records)
        controller.sync()
    finally:
        controller.close()


def records_of_store(path: str, node_id: int) -> Iterator[VersionedRecord]:
    """Yield metadata records with all that a store holds. Raises KafkaStorageError."""
    import sqlite3  # imported late: it takes a megabyte of memory, and few brokers convert

    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT key, value FROM kv WHERE value IS NOT NULL ORDER BY key").fetchall()
    except sqlite3.Error as error:
        raise KafkaStorageError(f"cannot read metadata store {path}: {error}") from error
    stored = {key: bytes(value) for key, value in rows}
    yield from _level_records(stored)
    level = first_level(METADATA_VERSION)
    for key, value in stored.items():
        _, kind, name = key.split("/", 2)
        if kind == "topics":
            yield from creation_records(_topic_of(name, value, node_id), level)
        elif kind in _CONVERTERS:
            yield from _CONVERTERS[kind](name, value, node_id)


def _level_records(stored: dict[str, bytes]) -> Iterator[VersionedRecord]:
    """Yield the records of feature levels: those that a client had set, else the first levels of a new node."""
    for record in first_levels(EMPTY_IMAGE):
        name = record.record.name  # type: ignore[attr-defined]
        kept = stored.get(f"/features/{name}")
        yield record if kept is None else level_record(name, int(kept))


def _topic_of(name: str, value: bytes, node_id: int) -> TopicImage:
    topic = decode_json(value)
    partitions = single_replica_states(node_id, topic["partitions"], topic.get("leader_epoch", 0))
    return TopicImage(name, uuid_from_str(topic["id"]), partitions, topic["configs"], name in INTERNAL_TOPICS)


def _configs(path: str, value: bytes, node_id: int) -> Iterator[VersionedRecord]:
    kind, _, name = path.partition("/")
    yield from config_records((_RESOURCES[kind], name), {}, decode_json(value))


def _quotas(path: str, value: bytes, node_id: int) -> Iterator[VersionedRecord]:
    entity = tuple((kind, name) for kind, name in decode_json(path))
    for key, quota in decode_json(value).items():
        yield quota_record(entity, QuotaChange(key, quota))


def _scram(path: str, value: bytes, node_id: int) -> Iterator[VersionedRecord]:
    mechanism, _, user = path.partition("/")
    fields = decode_json(value)
    credential = ScramState(
        bytes.fromhex(fields["salt"]), bytes.fromhex(fields["stored_key"]), bytes.fromhex(fields["server_key"]),
        fields["iterations"],
    )  # fmt: skip
    yield credential_record(user, ScramMechanism[mechanism], credential)


def _producer_ids(path: str, value: bytes, node_id: int) -> Iterator[VersionedRecord]:
    yield block_record(node_id, int(value))


def _deletion(path: str, value: bytes, node_id: int) -> Iterator[VersionedRecord]:
    deleted = DeletedTopic(name=value.decode(), topic_id=uuid_from_str(path))
    yield VersionedRecord(NoOpRecord(unfinished_deletions=[deleted]))


_CONVERTERS = {
    "configs": _configs,
    "quotas": _quotas,
    "scram": _scram,
    "producer_ids": _producer_ids,
    "deleted-topics": _deletion,
}
"""First part of a stored key -> function that yields the records of the key's rest and its value."""
