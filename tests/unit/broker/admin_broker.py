"""A Broker for handlers that need no logs: metadata, topics, configs, and a listener that takes notes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tidelog.broker.broker import Broker
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.configs import ConfigManager, TopicConfigs
from tidelog.broker.controller.topics import TopicListener, TopicManager
from tidelog.broker.loop.late_imports import LateImports
from tidelog.broker.loop.threads import InThread, Threads, call_now, run_now
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.metadata.image import MetadataCache, TopicImage
from tidelog.broker.network.advertised_address import LoneNode
from tidelog.broker.publishers import subscribe_publishers
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.late_lines import LateLines
from tidelog.broker.services import LateServices
from tidelog.broker.startup import build_authorizer, build_controller
from tidelog.log.config import LogConfig
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.types import random_uuid

CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


class NotingListener:
    """A listener of topics and configs that keeps its calls in order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        return lambda: None

    def topic_created(self, image: TopicImage, first_partition: int) -> None:
        self.events.append(("created", image.name, first_partition, image.partition_count))

    def remove_logs(self, image: TopicImage) -> Callable[[], None]:
        return lambda: None

    def topic_deleted(self, image: TopicImage) -> bool:
        self.events.append(("deleted", image.name))
        return True

    def topic_configs_changed(self, image: TopicImage) -> None:
        self.events.append(("configs", image.name, dict(image.configs)))


class Relay:
    """A listener that passes all calls on to the one that a test has set."""

    def __init__(self, admin: AdminBroker) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin.target, name)


class AdminBroker:
    """The parts that requests of administrators need; ``broker`` is what handlers get.

    ``reopen`` stands for a restart on the same directory.
    """

    def __init__(self, directory: Path, texts: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.texts = {"log.dirs": str(directory), **(texts or {})}
        self.listener = NotingListener()
        self.target: TopicListener = self.listener
        self.time = ManualTime()
        self.config = BrokerConfig(self.texts)
        self.log_manager = LogManager(self.config.log_dirs, OsFileSystem(), self.time, LogConfig())
        self.in_thread: InThread = run_now
        self.run_turn: Callable[[], None] = lambda: None
        threads = Threads(lambda work: self.in_thread(work), call_now)
        self.controller = build_controller(self.log_manager, self.config.node_id, self.time, threads=threads)
        self.metadata = MetadataCache()
        self.topic_configs = TopicConfigs(self.config)
        generator = random.Random(7)
        self.topics = TopicManager(
            self.config,
            self.controller,
            self.metadata,
            validate_configs=self.topic_configs.validate,
            new_topic_id=lambda: random_uuid(generator),
            listener=cast(TopicListener, Relay(self)),
            threads=threads,
        )
        self.configs = ConfigManager(self.config, self.controller, self.metadata, self.topic_configs, self.topics)
        self.topics.load()
        self.configs.load()
        self.broker = self._build_broker()
        subscribe_publishers(self.broker)

    def _build_broker(self) -> Broker:
        nothing = cast(Any, None)
        return Broker(
            config=self.config,
            time=self.time,
            loop=cast(asyncio.AbstractEventLoop, None),
            executor=nothing,
            record_executor=nothing,
            timers=TimerQueue(self.time.monotonic_ms, nothing),
            purgatory=nothing,
            metrics=nothing,
            clients=nothing,
            controller=self.controller,
            metadata=self.metadata,
            nodes=LoneNode(self.config),
            log_manager=self.log_manager,
            replica_manager=nothing,
            topics=self.topics,
            topic_configs=self.topic_configs,
            configs=self.configs,
            services=LateServices(lambda: self.broker),
            imports=LateImports(run_now),
            late_lines=LateLines(lambda turn: None, self.time.monotonic_ms),
            fetch_sessions=nothing,
            producer_ids=nothing,
            node_id=self.config.node_id,
            cluster_id=CLUSTER_ID,
            locks=[],
            authorizer=build_authorizer(self.config, self.controller, self.metadata, self.time.monotonic_ms),
        )

    def set_listener(
        self, listener: TopicListener, in_thread: InThread = run_now, run_turn: Callable[[], None] = lambda: None
    ) -> None:
        """Tell ``listener`` of changes from now on, and run what waits for the disk in ``in_thread``.

        ``run_turn`` does what waits there.
        """
        self.target = listener
        self.in_thread = in_thread
        self.run_turn = run_turn

    def reopen(self) -> AdminBroker:
        """Close the metadata log and start again on the same directory."""
        self.controller.close()
        return AdminBroker(self.directory, self.texts)


def context_of(version: int, *, client_id: str = "test", listener_name: str = "PLAINTEXT") -> RequestContext:
    """Build a request's context in this version, for a client that connected to 10.0.0.5:9092."""
    context = RequestContext(
        client_host="10.0.0.9", local_host="10.0.0.5", local_port=9092, listener_name=listener_name
    )
    context.api_version = version
    context.client_id = client_id
    return context
