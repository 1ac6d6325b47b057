"""Carries out the plan of an adoption: copies all partitions to a staging directory, recovers and checks the copies,
and adds all topics at once, or none.

    .adopting/<partition>/   a copy (or links), opened once, checked, and synced
    .adopting/journal        names of the directories that are about to be moved
    <partition>/             moved into the data directory
    checkpoints, meta.properties
    __cluster_metadata-0     one commit adds all topics, configs, quotas, users, ACLs, tokens, and the next producer id
    .kafka_cleanshutdown     written unless the target had logs that were not closed cleanly; ``.adopting`` is removed

After a kill at any point the data directory has none of the topics, or all. The next run removes ``.adopting``, and the
directories in its journal whose topics are not in the metadata log, and then starts over.

With ``link``, record files that will never change again are hard links to the source's files: those before the last
segment and before the first segment that recovery may change. Everything else is copied. The source is only read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tidelog.broker.adoption.plan import (
    LOCK_FILE,
    AdoptionError,
    AdoptionOptions,
    AdoptionPlan,
    PlannedTopic,
)
from tidelog.broker.adoption.source import SourcePartition, offset_of
from tidelog.broker.config.broker_config import BROKER_CONFIG_DEF
from tidelog.broker.config.description import CLUSTER_DEFAULT
from tidelog.broker.controller.activation import first_records
from tidelog.broker.controller.clients.client_quotas import QuotaChange, quota_record
from tidelog.broker.controller.clients.scram_credentials import ScramMechanism, credential_record
from tidelog.broker.controller.conversion import convert_store
from tidelog.broker.controller.embedded import EmbeddedController, open_controller
from tidelog.broker.controller.producer_ids import BLOCK_SIZE, block_record
from tidelog.broker.controller.topics import creation_records
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage, single_replica_states
from tidelog.broker.metadata.image_records import VersionedRecord, acl_record, config_records, token_record
from tidelog.broker.metadata.metadata_image import BROKER_RESOURCE, MetadataImage, Resource
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.log.check import check_directory
from tidelog.log.config import LogConfig
from tidelog.log.directories.names import METADATA_DIRECTORY
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    MetaProperties,
    read_meta_properties,
    read_offset_checkpoint,
    write_clean_shutdown,
    write_meta_properties,
    write_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.segment.segment import LOG_SUFFIX
from tidelog.log.system.file_system import FileEntry, FileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import KafkaError, KafkaStorageError
from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.types import SystemRandom, random_uuid, uuid_to_str

STAGING_DIRECTORY = ".adopting"
JOURNAL_FILE = "journal"
COPY_BYTES = 4 * 1024 * 1024

Progress = Callable[[str], None]


class UnsyncedError(Exception):
    """The sync of the commit failed: the next start has all topics or none of them. The message has the reason."""


@dataclass(slots=True)
class AdoptedOffsets:
    """Offsets of the staged partitions, for the checkpoint files, and the id and next leader epoch of each topic."""

    end_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    cleaner_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    leader_epochs: dict[str, int] = field(default_factory=dict)


def carry_out(file_system: FileSystem, time: Time, plan: AdoptionPlan, progress: Progress) -> None:
    """Carry a plan out. Raises AdoptionError, and KafkaStorageError when the disk fails; no topic is added then. Raises
    UnsyncedError if the sync of the commit, the last step, fails: it is not known whether the topics were added.
    """
    if plan.problems:
        raise AdoptionError("the plan has problems; nothing was taken over")
    Adoption(file_system, time, plan, progress).run()


class Adoption:
    """Carries out one plan. Used once, by one thread."""

    def __init__(self, file_system: FileSystem, time: Time, plan: AdoptionPlan, progress: Progress) -> None:
        self._file_system = file_system
        self._time = time
        self._plan = plan
        self._options: AdoptionOptions = plan.options
        self._progress = progress
        self._staging = os.path.join(plan.options.target, STAGING_DIRECTORY)
        self._adopted = AdoptedOffsets()

    def run(self) -> None:
        """Carry the plan out, after removing what an interrupted run left.

        After an UnsyncedError the journal stays: the next run removes the partitions if their topics were lost.
        """
        target = self._options.target
        self._make_durable(os.path.abspath(target))
        if not any(lock.path == os.path.join(target, LOCK_FILE) for lock in self._plan.locks):
            lock = self._file_system.lock_file(os.path.join(target, LOCK_FILE))
            if lock is None:
                raise AdoptionError(f"{target} is in use by a running broker")
            self._plan.locks.append(lock)
        identity = self._new_identity()
        controller = self._open_controller()
        try:
            self._clear_former_run(controller)
            self._check_names_are_free()
            was_clean = self._is_clean()
            try:
                for topic in self._plan.topics:
                    self._stage(topic)
                self._add_topics(controller, identity)
            except (AdoptionError, KafkaStorageError):
                with contextlib.suppress(KafkaStorageError):
                    self._clear_former_run(controller)  # the disk may be full of copies
                raise
            self._finish(was_clean=was_clean)
        finally:
            with only_reporting(self._progress):
                controller.close()

    def _open_controller(self) -> EmbeddedController:
        """Open the target's metadata log, which is converted first if an older version of Tidelog wrote it. Raises
        KafkaStorageError."""
        target = os.path.abspath(self._options.target)
        location = MetadataLocation(target, DirectoryState(target), LogEnvironment(self._file_system, self._time))
        convert_store(location, self._options.node_id, self._time)
        controller = open_controller(location, self._options.node_id, self._time)
        controller.commit(first_records(location, controller.image))
        return controller

    def _finish(self, *, was_clean: bool) -> None:
        """Write the clean-shutdown marker and remove the staging directory. A failure is only reported: without
        the marker the next start recovers every log, and the next run removes the directory."""
        with only_reporting(self._progress):
            if was_clean:
                write_clean_shutdown(self._file_system, self._options.target, 0)
            self._file_system.remove_directory(self._staging)
            self._file_system.sync_directory(self._options.target)

    def _make_durable(self, directory: str) -> None:
        """Create a directory and its missing parents, so that they survive a power loss."""
        if not self._file_system.exists(directory):
            parent = os.path.dirname(directory)
            self._make_durable(parent)
            self._file_system.make_directory(directory)
            self._file_system.sync_directory(parent)

    def _new_identity(self) -> MetaProperties | None:
        """Return the content of a new ``meta.properties``; None if the target has one, which is kept."""
        if read_meta_properties(self._file_system, self._options.target) is not None:
            return None
        source = self._plan.identity
        generator = SystemRandom()
        cluster_id = source.cluster_id if source is not None else uuid_to_str(random_uuid(generator))
        return MetaProperties(cluster_id, self._options.node_id, random_uuid(generator))

    def _is_clean(self) -> bool:
        """Return whether the logs that the target already has, if any, were closed cleanly."""
        target = self._options.target
        if self._file_system.exists(os.path.join(target, CLEAN_SHUTDOWN_FILE)):
            return True
        return not any(
            entry.is_directory and entry.name not in (STAGING_DIRECTORY, METADATA_DIRECTORY)
            for entry in self._file_system.list_directory(target)
        )

    def _clear_former_run(self, controller: EmbeddedController) -> None:
        """Remove the directories that an interrupted or failed run left."""
        journal = os.path.join(self._staging, JOURNAL_FILE)
        if self._file_system.exists(journal):
            for name in decode_json(self._file_system.read_file(journal)):
                if controller.image.topic_by_name(TopicPartition.parse(name).topic) is None:
                    self._file_system.remove_directory(os.path.join(self._options.target, name))
            self._file_system.sync_directory(self._options.target)  # a power loss may not remove the journal alone
        self._file_system.remove_directory(self._staging)

    def _check_names_are_free(self) -> None:
        """Raise AdoptionError if the target has a directory with the name of a planned partition."""
        for directory in self._final_names():
            path = os.path.join(self._options.target, directory)
            if self._file_system.exists(path):
                raise AdoptionError(f"{path} exists but belongs to no topic: move it elsewhere first")

    def _final_names(self) -> list[str]:
        return [p.partition.directory_name for topic in self._plan.topics for p in topic.partitions]

    # ---- copies

    def _stage(self, topic: PlannedTopic) -> None:
        """Copy all partitions of a topic to the staging directory; recover, check and sync the copies."""
        config = LogConfig(topic.configs)
        topic_id = topic.topic_id or random_uuid(SystemRandom())
        self._adopted.topic_ids[topic.name] = topic_id
        self._adopted.leader_epochs[topic.name] = topic.leader_epoch
        for partition in topic.partitions:
            self._progress(f"{partition.partition}: {partition.size_bytes:,} bytes")
            directory = os.path.join(self._staging, partition.partition.directory_name)
            self._copy(partition, directory)
            self._load(partition, directory, topic_id, config)
            findings = check_directory(self._file_system, directory)
            if findings:
                raise AdoptionError(f"the copy is damaged after its recovery: {findings[0]}")
            self._sync(directory)

    def _copy(self, partition: SourcePartition, directory: str) -> None:
        """Copy a partition's files; link those of them that will never change, if ``link`` is set."""
        self._file_system.make_directory(directory)
        bases = partition.bases()
        first_changing = min(bases[-1] if bases else 0, partition.first_recovered())
        for file in partition.copied:
            source, copy = os.path.join(partition.directory, file.name), os.path.join(directory, file.name)
            if self._options.link and _is_record_file_below(file, first_changing):
                self._file_system.link_file(source, copy)
            else:
                self._copy_file(source, copy, file.size)

    def _copy_file(self, source: str, copy: str, size: int) -> None:
        reader = self._file_system.open_file(source, writable=False)
        try:
            writer = self._file_system.open_file(copy, create=True)
            try:
                for position in range(0, size, COPY_BYTES):
                    writer.write_at(reader.read_at(position, min(COPY_BYTES, size - position)), position)
            finally:
                writer.close()
        finally:
            reader.close()

    def _load(self, partition: SourcePartition, directory: str, topic_id: bytes, config: LogConfig) -> None:
        """Open the copy as a broker does, which recovers it if necessary; note its offsets, and close it cleanly."""
        log_start_offset = partition.log_start_offset or 0
        try:
            log = load_log(
                LoadRequest(
                    partition.partition,
                    directory,
                    config,
                    LogEnvironment(self._file_system, self._time),
                    DirectoryState(self._staging),
                    topic_id=topic_id,
                    log_start_offset=log_start_offset,
                    recovery_point=partition.recovery_point,
                    clean=partition.clean,
                )
            )
        except KafkaError as error:
            raise AdoptionError(f"{partition.partition} cannot be served: {error}") from error
        log.flush()
        log.close()
        name, adopted = partition.partition, self._adopted
        adopted.end_offsets[name] = log.log_end_offset
        if log.log_start_offset > log.segments.first.base_offset:
            adopted.start_offsets[name] = log.log_start_offset
        if partition.cleaner_offset is not None:
            adopted.cleaner_offsets[name] = min(partition.cleaner_offset, log.log_end_offset)
        epoch = log.leader_epochs.latest_epoch + 1
        adopted.leader_epochs[name.topic] = max(adopted.leader_epochs[name.topic], epoch)

    def _sync(self, directory: str) -> None:
        """Sync the files of a directory, and the directory itself."""
        for entry in self._file_system.list_directory(directory):
            file = self._file_system.open_file(os.path.join(directory, entry.name), writable=False)
            try:
                file.sync()
            finally:
                file.close()
        self._file_system.sync_directory(directory)

    # ---- adding the topics

    def _add_topics(self, controller: EmbeddedController, identity: MetaProperties | None) -> None:
        """Move the staged partitions into the data directory, and commit their topics to the metadata log."""
        target, names = self._options.target, self._final_names()
        records = list(self._records(controller))
        self._file_system.make_directory(self._staging)
        self._file_system.replace_file(os.path.join(self._staging, JOURNAL_FILE), json.dumps(names).encode())
        self._file_system.sync_directory(target)
        for name in names:
            self._file_system.rename(os.path.join(self._staging, name), os.path.join(target, name))
        self._file_system.sync_directory(target)
        adopted = self._adopted
        self._merge(RECOVERY_POINT_FILE, adopted.end_offsets)
        self._merge(REPLICATION_OFFSET_FILE, adopted.end_offsets)
        self._merge(LOG_START_OFFSET_FILE, adopted.start_offsets)
        self._merge(CLEANER_OFFSET_FILE, adopted.cleaner_offsets)
        if identity is not None:
            write_meta_properties(self._file_system, target, identity)
        controller.commit(records)
        try:
            controller.sync()
        except KafkaStorageError as error:
            raise UnsyncedError(str(error)) from error

    def _merge(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Replace the entries of all staged partitions in the checkpoint file ``name`` by ``offsets``."""
        path = os.path.join(self._options.target, name)
        taken = set(self._adopted.end_offsets)
        others = read_offset_checkpoint(self._file_system, path).items()
        kept = {partition: offset for partition, offset in others if partition not in taken}
        if offsets or len(kept) != len(others):
            write_offset_checkpoint(self._file_system, path, {**kept, **offsets})

    def _records(self, controller: EmbeddedController) -> Iterator[VersionedRecord]:
        """Yield the records of the commit to the metadata log."""
        for topic in self._plan.topics:
            yield from creation_records(self._image(topic), controller.level)
        next_block = -(-self._plan.next_producer_id // BLOCK_SIZE) * BLOCK_SIZE
        if next_block > controller.image.producer_ids:
            yield block_record(self._options.node_id, next_block)
        if self._plan.metadata is not None:
            yield from self._cluster_records(self._plan.metadata, controller.image)

    def _image(self, topic: PlannedTopic) -> TopicImage:
        return TopicImage(
            topic.name,
            self._adopted.topic_ids[topic.name],
            single_replica_states(
                self._options.node_id, len(topic.partitions), self._adopted.leader_epochs[topic.name]
            ),
            topic.configs,
            topic.name in INTERNAL_TOPICS,
        )

    def _cluster_records(self, source: MetadataImage, known: MetadataImage) -> Iterator[VersionedRecord]:
        """Yield records of credentials, ACLs, tokens, quotas and configs that the target does not have."""
        yield from _access_records(source, known)
        for entity, values in source.quotas.items():
            if entity not in known.quotas:
                for key, value in values.items():
                    yield quota_record(entity, QuotaChange(key, value))
        broker = (BROKER_RESOURCE, CLUSTER_DEFAULT)
        wanted: dict[Resource, Mapping[str, str]] = {broker: valid_broker_configs(source.configs.get(broker, {}))}
        wanted.update({(int(kind), name): texts for (kind, name), texts in self._plan.resource_configs.items()})
        for resource, texts in wanted.items():
            if resource not in known.configs:
                yield from config_records(resource, {}, texts)


@contextlib.contextmanager
def only_reporting(progress: Progress) -> Iterator[None]:
    """Report a failure of the disk inside ``with``, where it changes no result; a closed output is ignored."""
    try:
        yield
    except KafkaStorageError as error:
        with contextlib.suppress(OSError):
            progress(f"note: {error}")


def _access_records(source: MetadataImage, known: MetadataImage) -> Iterator[VersionedRecord]:
    """Yield records of credentials, ACLs and tokens that the target does not have."""
    for (user, number), credential in source.scram.items():
        if (user, number) not in known.scram:
            yield credential_record(user, ScramMechanism(number), credential)
    for acl_id, rule in source.acls.items():
        if acl_id not in known.acls:
            yield VersionedRecord(acl_record(acl_id, rule))
    for token_id, token in source.tokens.items():
        if token_id not in known.tokens:
            yield VersionedRecord(token_record(token))


def valid_broker_configs(texts: Mapping[str, str]) -> dict[str, str]:
    """Select the dynamic broker configs with valid values: with an invalid one this broker would not start."""
    valid = {}
    for key, text in texts.items():
        if key in BROKER_CONFIG_DEF and BROKER_CONFIG_DEF[key].dynamic:
            try:
                BROKER_CONFIG_DEF.parse_given({key: text})
            except (ConfigError, KafkaError):
                continue
            valid[key] = text
    return valid


def _is_record_file_below(file: FileEntry, base_offset: int) -> bool:
    return file.name.endswith(LOG_SUFFIX) and offset_of(file.name) < base_offset
