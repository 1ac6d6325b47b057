"""Start of a broker: it claims the data directories, and builds the parts in the order of their dependencies.

A member of a cluster (``tidelog.broker.member``) calls parts of this module. ``build_broker`` starts a lone node:

    no other node in the cluster -> directories created -> locked against a second broker -> meta.properties compared
    or written -> metadata log opened and replayed -> all other parts, with the topics and configs of its image
    -> logs (recovered, or only listed after a clean stop)

Everything here runs before the listeners open, so its imports lengthen the start. Loop thread only, except the opening
of the logs, which is done in a thread.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.cluster_membership import check_is_alone, is_member
from tidelog.broker.config.keys.authorizer import AUTHORIZER_CLASS
from tidelog.broker.controller.activation import activation_records
from tidelog.broker.controller.configs import ConfigManager, TopicConfigs, current_config
from tidelog.broker.controller.conversion import convert_store
from tidelog.broker.controller.embedded import EmbeddedController, open_controller
from tidelog.broker.controller.metadata_controller import MetadataController
from tidelog.broker.controller.producer_ids import ProducerIdManager
from tidelog.broker.controller.topics import TopicManager
from tidelog.broker.errors import StartError
from tidelog.broker.loop.late_imports import LateImports
from tidelog.broker.loop.threads import NO_LOOP, BrokerThreads, RecordThreads, Threads, run_in_thread
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.loop.turn_clock import TurnClock
from tidelog.broker.metadata.image import UNASSIGNED_DIRECTORY, MetadataCache
from tidelog.broker.metadata.log_reader import LoadedMetadata
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.broker.metrics.clients import ConnectedClients
from tidelog.broker.metrics.registry import Metrics
from tidelog.broker.network.advertised_address import LoneNode
from tidelog.broker.peers import Peers
from tidelog.broker.publishers import subscribe_publishers
from tidelog.broker.replica.fetching.fetch_session import FetchSessionCache
from tidelog.broker.replica.purgatory import Purgatory
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.broker.replica.strays import StrayLogs
from tidelog.broker.requests.nodes import Nodes
from tidelog.broker.security.late_lines import LateLines
from tidelog.broker.services import LateServices
from tidelog.log.config import LogConfig
from tidelog.log.directories.known import note_known_directories, read_known_directories
from tidelog.log.files.checkpoints import MetaProperties, read_meta_properties, write_meta_properties
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile, OsFileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.types import SystemRandom, random_uuid, uuid_to_str

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.security.authorization.authorizer import Authorizer

LOCK_FILE = ".lock"
RECORD_THREADS = 2
OS_FILES = OsFileSystem()


class ClaimedDirectories(NamedTuple):
    """Data directories that this broker has locked, and those that it cannot use."""

    cluster_id: str
    locks: list[OpenFile]
    failures: dict[str, KafkaStorageError]
    """Path as configured -> why it is offline from the start."""
    metadata: LoadedMetadata | None = None
    """Content of the metadata log as ``check_is_alone`` has read it; None if there is no log."""
    default_directory: bytes = UNASSIGNED_DIRECTORY
    """Id of the only data directory, which new partitions get, as from Kafka's controller; unassigned if there are
    several, or if it has no id.
    """
    directory_ids: Mapping[str, bytes] = {}
    """Path as configured -> id, of those that have one."""


class Foundation(NamedTuple):
    """Threads, timers, log manager and identity, from which the parts of a broker are built."""

    config: BrokerConfig
    time: Time
    loop: AbstractEventLoop
    executor: Executor
    record_executor: RecordThreads
    timers: TimerQueue
    log_manager: LogManager
    cluster_id: str
    locks: list[OpenFile]
    metadata: LoadedMetadata | None = None
    default_directory: bytes = UNASSIGNED_DIRECTORY


async def build_broker(
    config: BrokerConfig, time: Time, loop: AbstractEventLoop, file_system: FileSystem = OS_FILES
) -> Broker:
    """Build all parts, ready to answer requests. Raises StartError, ConfigError."""
    set_creation_mode(config.get_str("log.dirs.mode"))
    try:
        ground = build_foundation(config, time, loop, claim_directories(file_system, config), file_system)
        strays = StrayLogs(ground.log_manager)
        broker = assemble(ground, strays)
        strays.note(await loop.run_in_executor(ground.executor, recovery_of(broker)))
        finish_deletions(broker)
    except KafkaStorageError as error:
        raise StartError(str(error)) from error
    return broker


def build_foundation(
    config: BrokerConfig,
    time: Time,
    loop: AbstractEventLoop,
    claimed: ClaimedDirectories,
    file_system: FileSystem = OS_FILES,
) -> Foundation:
    """Build threads, timers and the log manager from the data directories that this broker has claimed."""
    return Foundation(
        config=config,
        time=time,
        loop=loop,
        executor=BrokerThreads(config.get_int("background.threads"), thread_name_prefix="broker"),
        record_executor=RecordThreads(RECORD_THREADS),
        timers=TimerQueue(time.monotonic_ms, loop.call_later, TurnClock(time.monotonic_ms)),
        log_manager=log_manager_of(config, file_system, time, claimed),
        cluster_id=claimed.cluster_id,
        locks=claimed.locks,
        metadata=claimed.metadata,
        default_directory=claimed.default_directory,
    )


class ClusterParts(NamedTuple):
    """Parts of a broker that differ between a lone node, which is its own controller, and a member of a cluster."""

    controller: MetadataController
    nodes: Nodes
    producer_ids: ProducerIdManager
    topic_manager: Callable[..., TopicManager] = TopicManager
    peers: Peers | None = None


def build_lone_parts(ground: Foundation, threads: Threads) -> ClusterParts:
    """Build the parts of a lone node, and replay its metadata log. Raises KafkaStorageError."""
    config = ground.config
    controller = build_controller(ground.log_manager, config.node_id, ground.time, ground.metadata, threads)
    return ClusterParts(controller, LoneNode(config), ProducerIdManager(controller))


def assemble(ground: Foundation, strays: StrayLogs, cluster_parts: ClusterParts | None = None) -> Broker:
    """Build the parts of a broker, each from earlier ones; those of a lone node unless ``cluster_parts`` is given.

    The logs are not opened yet. Raises KafkaStorageError, ConfigError.
    """
    config, loop, timers, log_manager = ground.config, ground.loop, ground.timers, ground.log_manager
    metadata, topic_configs = MetadataCache(), TopicConfigs(config)
    purgatory = Purgatory(timers, loop.call_soon)
    run_in_executor = partial(run_in_thread, loop, ground.executor, turns=timers.turns)
    threads = Threads(run_in_executor, timers.turns.measure_callbacks("changes of metadata", loop.call_soon))
    controller, nodes, producer_ids, topic_manager, peers = cluster_parts or build_lone_parts(ground, threads)
    services = LateServices(lambda: broker)
    replica_manager = ReplicaManager(
        metadata=metadata, log_manager=log_manager, purgatory=purgatory, log_config=topic_configs.log_config,
        in_thread=run_in_executor, node_id=config.node_id, make_way=strays.make_way,
        on_log_deleted=services.forget_cleaned, on_index_configs=services.index_topic,
        virtual_partition=services.virtual_partition,
    )  # fmt: skip
    topics = topic_manager(
        config, controller, metadata,
        validate_configs=topic_configs.validate, new_topic_id=partial(random_uuid, SystemRandom()),
        listener=replica_manager, threads=threads, directory=ground.default_directory,
        forget=services.forget_topic,
    )  # fmt: skip
    authorizer = build_authorizer(config, controller, metadata, timers.monotonic_ms)
    begin_generation = (lambda: None) if authorizer is None else authorizer.begin_generation
    broker = Broker(
        config=config, time=ground.time, loop=loop, executor=ground.executor, record_executor=ground.record_executor,
        timers=timers, purgatory=purgatory, metrics=Metrics(), clients=ConnectedClients(), controller=controller,
        metadata=metadata, nodes=nodes, producer_ids=producer_ids,
        log_manager=log_manager, replica_manager=replica_manager, topics=topics, topic_configs=topic_configs,
        configs=ConfigManager(config, controller, metadata, topic_configs, topics, begin_generation),
        fetch_sessions=fetch_session_cache(config, ground.time), node_id=config.node_id, cluster_id=ground.cluster_id,
        locks=ground.locks, services=services, imports=LateImports(run_in_executor), authorizer=authorizer, peers=peers,
        late_lines=LateLines(timers.turns.measure_callbacks("audit lines", loop.call_soon), timers.monotonic_ms),
    )  # fmt: skip
    broker.topics.load()
    broker.configs.load()
    subscribe_publishers(broker)
    return broker


def build_controller(
    log_manager: LogManager,
    node_id: int,
    time: Time,
    known: LoadedMetadata | None = None,
    threads: Threads = NO_LOOP,
) -> EmbeddedController:
    """Open the metadata log in the first data directory. A new one begins with the feature levels, and the users that
    were added when the directory was formatted. ``known`` is the log's content, if it was read before.

    Raises KafkaStorageError.
    """
    directory = log_manager.directories[0]
    location = MetadataLocation(directory.path, directory.state, log_manager.environment)
    convert_store(location, node_id, time)
    controller = open_controller(location, node_id, time, known, threads)
    controller.commit(activation_records(location, controller.image, node_id))
    return controller


def build_authorizer(
    config: BrokerConfig, controller: MetadataController, metadata: MetadataCache, clock: Callable[[], float]
) -> Authorizer | None:
    """Build the authorizer that the configuration names, with the image's ACLs; return None if it names none."""
    if not config.get_str(AUTHORIZER_CLASS):
        return None
    from tidelog.broker.security.authorization.authorizer import authorizer_of_image

    return authorizer_of_image(config, controller.image, metadata, clock)


def fetch_session_cache(config: BrokerConfig, time: Time) -> FetchSessionCache:
    """Build the cache of fetch sessions, which is empty."""
    slots = config.get_int("max.incremental.fetch.session.cache.slots")
    return FetchSessionCache(slots, time.monotonic_ms, SystemRandom())


def recovery_of(broker: Broker, found_ids: Mapping[str, bytes] | None = None) -> Callable[[], list[TopicPartition]]:
    """Return a function, to be run in a thread, that opens the logs, or lists them after a clean stop. It returns the
    partitions whose logs belong to no topic, and raises KafkaStorageError. ``found_ids`` has the topic ids of logs that
    are known already, by path.
    """
    configs = partial(current_config, broker.metadata, broker.topic_configs)
    deleted = dict(broker.controller.deletions)
    topic_ids = {name: image.topic_id for name, image in broker.metadata.topics.items()}
    return lambda: broker.log_manager.startup(configs, deleted, topic_ids, found_ids)


def finish_deletions(broker: Broker) -> None:
    """Note the deleted topics of which the log manager has left no log, unless a directory is offline: it may hold
    one. Raises KafkaStorageError.
    """
    if broker.log_manager.has_all_directories:
        deleted = dict(broker.controller.deletions)
        for directory in broker.log_manager.directories if deleted else ():
            broker.log_manager.environment.file_system.sync_directory(directory.path)
        broker.topics.logs_removed(deleted)


def set_creation_mode(mode: str) -> None:
    """Set the umask, so that everything this process creates has ``mode`` (octal, of a directory) at most.

    The umask applies wherever files are created: in logs and in indices.
    """
    os.umask(0o777 & ~int(mode, 8))


def log_manager_of(
    config: BrokerConfig, file_system: FileSystem, time: Time, claimed: ClaimedDirectories
) -> LogManager:
    """Build the manager of all data directories; those that cannot be used are offline from the start."""
    manager = LogManager(
        config.log_dirs,
        file_system,
        time,
        LogConfig(config.topic_defaults()),
        recovery_threads=lambda: config.get_int("num.recovery.threads.per.data.dir"),
        producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        reserve_bytes=config.get_int("log.dirs.reserve.bytes"),
        directory_ids=claimed.directory_ids,
        commits_alone=not is_member(config),
    )
    failed = {os.path.abspath(path): error for path, error in claimed.failures.items()}
    for directory in manager.directories:
        if directory.path in failed:
            directory.state.mark_offline(failed[directory.path])
    return manager


def claim_directories(file_system: FileSystem, config: BrokerConfig) -> ClaimedDirectories:
    """Create, lock and identify every data directory. One that cannot be used is offline, and the others serve.

    The first one must work: it has the broker's metadata, and ``metadata.log.dir`` cannot name another one.

    Raises StartError as ``check_is_alone`` and ``check_mounts`` do; also if a directory is in use, or belongs to
    another cluster or node, or if the first one cannot be used. Raises ConfigError for a replication factor above 1,
    CheckpointCorruptError for a damaged ``meta.properties``, and LogStorageError if ``known-log-directories`` cannot be
    read.
    """
    metadata = check_is_alone(config, file_system)
    locks: list[OpenFile] = []
    identities: dict[str, MetaProperties | None] = {}
    failures: dict[str, KafkaStorageError] = {}
    for directory in config.log_dirs:
        try:
            locks.append(claim_directory(file_system, directory))
            identities[directory] = read_meta_properties(file_system, directory)
        except LogStorageError as error:
            failures[directory] = error
    cluster_id = check_identity(identities, config)
    check_mounts(file_system, identities, config.log_dirs[0])
    for directory in [directory for directory, identity in identities.items() if identity is None]:
        identity = MetaProperties(cluster_id, config.node_id, random_uuid(SystemRandom()))
        try:
            write_meta_properties(file_system, directory, identity)
            identities[directory] = identity
        except LogStorageError as error:
            failures[directory] = error
    check_failures(failures, config.log_dirs)
    note_known_directories(file_system, config.log_dirs, failures)
    ids = ids_of_directories(identities)
    only = ids.get(config.log_dirs[0], UNASSIGNED_DIRECTORY) if len(config.log_dirs) == 1 else UNASSIGNED_DIRECTORY
    return ClaimedDirectories(cluster_id, locks, failures, metadata, only, ids)


def check_failures(failures: Mapping[str, KafkaStorageError], directories: Sequence[str]) -> None:
    """Raise StartError if no directory can be used, or not the first one."""
    first = directories[0]
    if len(failures) == len(directories):
        reasons = (describe_failure(directory, error) for directory, error in failures.items())
        raise StartError("no data directory can be used: " + "; ".join(reasons))
    if first in failures:
        raise StartError(
            f"the first data directory, {first}, holds the broker's metadata and cannot be used: "
            f"{describe_failure(first, failures[first])}"
        )


def check_mounts(file_system: FileSystem, found: Mapping[str, MetaProperties | None], first: str) -> None:
    """Raise StartError if a data directory that the broker used before has no ``meta.properties``, or if the first
    directory has none while another one has: most likely a disk is not mounted. Apache Kafka starts only if all
    directories are formatted.

    Raises LogStorageError.
    """
    empty = [directory for directory, identity in found.items() if identity is None]
    others = [directory for directory, identity in found.items() if identity is not None]
    if first in empty and others:
        raise StartError(
            f"the first data directory, {first}, has no meta.properties, but {others[0]} has. The broker's metadata "
            "are in the first directory: did log.dirs begin with another one, or is the disk of this one not mounted?"
        )
    known = read_known_directories(file_system, first) if empty and first in others else set()
    lost = [directory for directory in empty if os.path.abspath(directory) in known]
    if lost:
        raise StartError(
            f"the data directory {lost[0]} has no meta.properties, though the broker used it before: is its disk "
            "mounted? To give up its logs, start once without it in log.dirs"
        )


def ids_of_directories(identities: Mapping[str, MetaProperties | None]) -> dict[str, bytes]:
    """Return the ids of the data directories that have one: Kafka before 3.7 wrote none."""
    return {
        directory: identity.directory_id
        for directory, identity in identities.items()
        if identity is not None and identity.directory_id is not None
    }


def claim_directory(file_system: FileSystem, directory: str) -> OpenFile:
    """Create the directory, if it does not exist, and lock it for this process; the lock ends with the process.

    Raises StartError if another broker has locked it, LogStorageError.
    """
    make_data_directory(file_system, os.path.abspath(directory))
    path = os.path.join(directory, LOCK_FILE)
    lock = file_system.lock_file(path)
    if lock is None:
        raise StartError(
            f"the data directory {directory} is in use by {describe_holder(path)}: stop it, or give another directory "
            "with --data-dir"
        )
    return lock


def describe_holder(path: str) -> str:
    """Name the process that has locked a file, if the system tells it."""
    from tidelog.log.system.locks import holder_of

    holder = holder_of(path)
    return f"another broker ({path} is locked)" if holder is None else f"process {holder}"


def describe_failure(directory: str, error: KafkaStorageError) -> str:
    """Say why a data directory cannot be used."""
    if os.path.isfile(directory):
        return f"{directory} is a file, expected a directory (--data-dir)"
    return str(error)


def make_data_directory(file_system: FileSystem, directory: str) -> None:
    """Create the directory and its parents, unless they exist, and sync their names, so that files in them can be
    durable. Raises LogStorageError.
    """
    made = []
    path = directory
    while not file_system.exists(path):
        made.append(path)
        path = os.path.dirname(path)
    file_system.make_directory(directory)
    for path in made:
        file_system.sync_directory(os.path.dirname(path))


def check_identity(found: Mapping[str, MetaProperties | None], config: BrokerConfig) -> str:
    """Return the cluster's id: the configured one, else that of the directories' ``meta.properties``, else a new one.

    Raises StartError when a directory belongs to another cluster or node.
    """
    ids = {properties.cluster_id for properties in found.values() if properties is not None}
    configured = config.get("cluster.id")
    cluster_id: str = configured or next(iter(ids), None) or uuid_to_str(random_uuid(SystemRandom()))
    for directory, properties in found.items():
        if properties is None:
            continue
        if properties.cluster_id != cluster_id:
            raise StartError(
                f"the data directory {directory} belongs to cluster {properties.cluster_id}, not to {cluster_id}"
            )
        if properties.node_id != config.node_id:
            raise StartError(
                f"the data directory {directory} belongs to node {properties.node_id}, not to node {config.node_id}"
            )
    return cluster_id
