"""The parts of one broker, as handlers see them. They are built once, at the start, owned by the loop thread, and never
replaced.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.log.system.time import Time

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.controller.configs import ConfigManager, TopicConfigs
    from tidelog.broker.controller.metadata_controller import MetadataController
    from tidelog.broker.controller.producer_ids import ProducerIdManager
    from tidelog.broker.controller.topics import TopicManager
    from tidelog.broker.loop.late_imports import LateImports
    from tidelog.broker.loop.threads import RecordThreads
    from tidelog.broker.loop.timers import TimerQueue
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.metrics.clients import ConnectedClients
    from tidelog.broker.metrics.registry import Metrics
    from tidelog.broker.peers import Peers
    from tidelog.broker.replica.fetching.fetch_session import FetchSessionCache
    from tidelog.broker.replica.purgatory import Purgatory
    from tidelog.broker.replica.replica_manager import ReplicaManager
    from tidelog.broker.requests.nodes import Nodes
    from tidelog.broker.security.authorization.authorizer import Authorizer
    from tidelog.broker.security.late_lines import LateLines
    from tidelog.broker.services import LateServices
    from tidelog.log.manager import LogManager
    from tidelog.log.system.file_system import OpenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Everything a handler may need, passed to every ``handle``."""

    config: BrokerConfig
    time: Time
    loop: AbstractEventLoop
    executor: Executor
    """Threads for work that waits for the disk: fsync, cold reads, retention."""
    record_executor: RecordThreads
    """Two threads for records that take longer than a turn of the loop: validation, recompression, down-conversion. Not
    more, since some of it is Python, which would keep the loop waiting for the interpreter.
    """
    timers: TimerQueue
    purgatory: Purgatory
    metrics: Metrics
    clients: ConnectedClients
    controller: MetadataController
    metadata: MetadataCache
    nodes: Nodes
    log_manager: LogManager
    replica_manager: ReplicaManager
    topics: TopicManager
    topic_configs: TopicConfigs
    configs: ConfigManager
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIdManager
    node_id: int
    cluster_id: str
    locks: list[OpenFile]
    """The data directories' locks, held until the process ends; only the laboratory closes them after a stop."""
    services: LateServices
    """Services that are built when they are first needed: coordinators, cleaner, indexing, quotas and others."""
    imports: LateImports
    """Modules that are imported when a request or a late service first needs them."""
    late_lines: LateLines
    """Writes the audit lines that no request waits for."""
    authorizer: Authorizer | None = None
    """Decides what clients may do; None: every client may do everything."""
    peers: Peers | None = None
    """Other brokers of the cluster; None on a lone node."""
