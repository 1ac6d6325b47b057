"""Builds a broker's parts in the one order that works, and tells whose data directory it is.

    directories exist -> locked against a second broker -> store opens -> meta.properties compared or written
    -> topics and configs from the store -> logs (recovered, or only looked at after a clean stop) -> the rest

Everything here runs before the listener opens, so what it imports counts against the start-up budget. Loop thread
only, but for opening the logs, which has a thread to itself.
"""

from __future__ import annotations

import os
import random
from asyncio import AbstractEventLoop
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from broker.broker import Broker
from broker.config_manager import ConfigManager
from broker.errors import StartError
from broker.fetch_session import FetchSessionCache
from broker.metadata import MetadataCache
from broker.metadata_store import MetadataStoreError, SqliteMetadataStore
from broker.metrics import Metrics
from broker.producer_ids import ProducerIdManager
from broker.purgatory import Purgatory
from broker.replica_manager import ReplicaManager
from broker.strays import StrayLogs
from broker.threads import in_thread
from broker.timers import TimerQueue
from broker.topic_manager import TopicManager
from log.checkpoints import MetaProperties, read_meta_properties, write_meta_properties
from log.config import LogConfig
from log.file_system import FileSystem, OpenFile, OsFileSystem
from log.manager import LogManager
from log.time import Time
from log.topic_partition import TopicPartition
from protocol.errors import KafkaStorageError
from protocol.types import random_uuid, uuid_to_str

if TYPE_CHECKING:
    from broker.config import BrokerConfig

STORE_FILE = "metadata.sqlite"
LOCK_FILE = ".lock"


async def build_broker(config: BrokerConfig, time: Time, loop: AbstractEventLoop) -> Broker:
    """All parts, ready to answer requests. Raises StartError; ConfigError for what the admin API once stored."""
    file_system = OsFileSystem()
    executor = ThreadPoolExecutor(config.get_int("background.threads"), thread_name_prefix="broker")
    try:
        locks = [claim_directory(file_system, directory) for directory in config.log_dirs]
        cluster_id = check_identity(file_system, config)
        store = SqliteMetadataStore(os.path.join(config.log_dirs[0], STORE_FILE), time)
        metadata = MetadataCache()
        configs = ConfigManager(config, store, metadata)
        topics = TopicManager(
            config,
            store,
            metadata,
            validate_configs=configs.validate_topic_configs,
            new_topic_id=partial(random_uuid, random.SystemRandom()),
        )
        configs.topics = topics
        topics.load()
        configs.load()
        log_manager = LogManager(
            config.log_dirs,
            file_system,
            time,
            LogConfig(config.topic_defaults()),
            recovery_threads=config.get_int("num.recovery.threads.per.data.dir"),
        )
        topic_configs = {name: configs.log_config(image) for name, image in metadata.topics.items()}
        found = await loop.run_in_executor(executor, log_manager.startup, topic_configs)
        strays = sweep_strays(log_manager, topics, found)
    except (KafkaStorageError, MetadataStoreError) as error:
        raise StartError(str(error)) from error
    timers = TimerQueue(time.monotonic_ms, loop.call_later)
    purgatory = Purgatory(timers, loop.call_soon)
    replica_manager = ReplicaManager(
        metadata=metadata,
        log_manager=log_manager,
        purgatory=purgatory,
        log_config=configs.log_config,
        in_thread=partial(in_thread, loop, executor),
        node_id=config.node_id,
    )
    replica_manager.make_way = strays.make_way
    topics.set_listener(replica_manager)
    return Broker(
        config=config,
        time=time,
        loop=loop,
        executor=executor,
        timers=timers,
        purgatory=purgatory,
        metrics=Metrics(),
        store=store,
        metadata=metadata,
        log_manager=log_manager,
        replica_manager=replica_manager,
        topics=topics,
        configs=configs,
        fetch_sessions=FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots"), time.monotonic_ms, random.Random()
        ),
        producer_ids=ProducerIdManager(store),
        node_id=config.node_id,
        cluster_id=cluster_id,
        locks=locks,
    )


def sweep_strays(log_manager: LogManager, topics: TopicManager, found: list[TopicPartition]) -> StrayLogs:
    """Finish deletions that a crash cut short. Raises KafkaStorageError."""
    strays = StrayLogs(log_manager)
    deleted = topics.unfinished_deletions()
    strays.sweep(found, deleted)
    if all(directory.is_online for directory in log_manager.directories):
        topics.deletions_finished(deleted)
    return strays


def claim_directory(file_system: FileSystem, directory: str) -> OpenFile:
    """Make the directory if need be and lock it for this process; the lock ends with the process (F24).

    Raises StartError when another broker has it, KafkaStorageError.
    """
    file_system.make_directory(directory)
    path = os.path.join(directory, LOCK_FILE)
    lock = file_system.lock_file(path)
    if lock is None:
        raise StartError(f"the data directory {directory} is in use by another broker ({path} is locked)")
    return lock


def check_identity(file_system: FileSystem, config: BrokerConfig) -> str:
    """The cluster's id: as ``meta.properties`` says, else as configured, else a new one, written where it is missing.

    Raises StartError when a directory belongs to another cluster or node, KafkaStorageError.
    """
    found = {directory: read_meta_properties(file_system, directory) for directory in config.log_dirs}
    ids = {properties.cluster_id for properties in found.values() if properties is not None}
    configured = config.get("cluster.id")
    cluster_id: str = configured or next(iter(ids), None) or uuid_to_str(random_uuid(random.SystemRandom()))
    for directory, properties in found.items():
        if properties is None:
            identity = MetaProperties(cluster_id, config.node_id, random_uuid(random.SystemRandom()))
            write_meta_properties(file_system, directory, identity)
        elif properties.cluster_id != cluster_id:
            raise StartError(
                f"the data directory {directory} belongs to cluster {properties.cluster_id}, not to {cluster_id}"
            )
        elif properties.node_id != config.node_id:
            raise StartError(
                f"the data directory {directory} belongs to node {properties.node_id}, not to node {config.node_id}"
            )
    return cluster_id
