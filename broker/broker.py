"""The parts of one broker, as handlers see them. Built once at start, owned by the loop thread, changed by nobody."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.log.system.time import Time
from tidelog.protocol.types import Part

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.controller.configs import ConfigManager
    from tidelog.broker.controller.producer_ids import ProducerIdManager
    from tidelog.broker.controller.topics import TopicManager
    from tidelog.broker.loop.timers import TimerQueue
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.metadata.store import MetadataStore
    from tidelog.broker.metrics.registry import Metrics
    from tidelog.broker.replica.fetch_session import FetchSessionCache
    from tidelog.broker.replica.purgatory import Purgatory
    from tidelog.broker.replica.replica_manager import ReplicaManager
    from tidelog.log.manager import LogManager
    from tidelog.log.system.file_system import OpenFile


FIRST_PATIENCE = 2
"""So many requests a connection makes before the next one is expected to be like the last; each time it was not so for
that many, twice as many."""


@dataclass(slots=True, kw_only=True)
class Broker:
    """Everything a handler may need, passed to every ``handle``."""

    config: BrokerConfig
    time: Time
    loop: AbstractEventLoop
    executor: Executor
    """A few threads for what waits: fsync, cold reads, retention."""
    record_executor: Executor
    """Two threads for records that take longer than a turn: validation, recompression, down-conversion. Not more, since
    some of it is Python, which would keep the loop waiting for the interpreter."""
    timers: TimerQueue
    purgatory: Purgatory
    metrics: Metrics
    store: MetadataStore
    metadata: MetadataCache
    log_manager: LogManager
    replica_manager: ReplicaManager
    topics: TopicManager
    configs: ConfigManager
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIdManager
    node_id: int
    cluster_id: str
    locks: list[OpenFile]
    """The data directories' locks, held until the process ends."""
    coordinators: Any = None
    """The group and transaction coordinators, made when the first request for them comes."""
    cleaner: Any = None
    """The log cleaner, once ``tidelog.broker.cleaning`` has started it."""
    indexing: Any = None
    """The indexer thread, once a topic with an index has made ``tidelog.broker.find.indexing`` start it."""
    virtual_partitions: Any = None
    """The partitions of virtual topics, once one was asked for."""
    quotas: Any = None
    """Client quotas at work (``tidelog.broker.quota.quotas``); None while none was ever set."""


class RequestCount:
    """Whose ``requests`` counts the requests of one API and version: the dispatcher's routes."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests = 0


NO_REQUESTS = RequestCount()
"""Where a connection without repeats counts: nothing."""


class Repeat(Protocol):
    """Answers a connection's next request where it is like its last one
    (``tidelog.broker.requests.repeated_fetch``)."""

    def answer(self, frame: memoryview) -> bytes | list[Part] | None:
        """The whole frame of the answer, or None where the request has to go the general way."""
        ...


class RequestContext:
    """Who asks, and how. One per connection: the request fields change from request to request, and hold until the
    response is queued, because a connection has one request in flight."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "correlation_id",
        "frame_bytes",
        "listener_name",
        "local_host",
        "local_port",
        "on_close",
        "owns_frame",
        "principal",
        "raw_client_id",
        "repeat",
        "repeat_patience",
        "repeat_route",
        "throttle_ms",
        "unlike_requests",
        "withdraw",
    )

    def __init__(
        self,
        *,
        client_host: str = "127.0.0.1",
        local_host: str = "127.0.0.1",
        local_port: int = 9092,
        listener_name: str = "PLAINTEXT",
    ) -> None:
        self.api_key = -1
        self.api_version = -1
        self.correlation_id = -1
        self.client_id: str | None = None
        self.raw_client_id = b""
        self.frame_bytes = 0
        self.owns_frame = False
        """Whether the request's bytes stay as they are after the turn in which it came."""
        self.throttle_ms = 0
        self.on_close: Callable[[], object] | None = None
        """What is to be done when the connection closes: share sessions end with it."""
        self.withdraw: Callable[[], Any] | None = None
        """Takes a share fetch's records back and gives the response that goes out in their place (a quota)."""
        self.repeat: Repeat | None = None
        self.repeat_route = NO_REQUESTS
        self.repeat_patience = FIRST_PATIENCE
        self.unlike_requests = 0
        self.listener_name = listener_name
        self.client_host = client_host
        self.local_host = local_host
        self.local_port = local_port
        self.principal = "User:ANONYMOUS"
