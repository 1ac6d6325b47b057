"""Late services of a broker, which are built when they are first needed: who needs each one, and how it ends.

    service             wanted at the start by                else built by                    ends
    admin               ``admin.listener``                    -                                its socket closes
    schema_registry     ``schema.registry.listener``          -                                its socket closes
    directories         several directories, a lone node      -                                the last logs assigned
    quotas              a client quota in the metadata       AlterClientQuotas                -
    coordinators        an internal topic                     a request for them               waiting members answered
    tokens              ``delegation.token.secret.key``       a request or a login with one    -
    virtual_partitions  -                                     a request for a virtual topic    -
    indexing            a topic with an index                 such a topic, a look-up          thread joined
    cleaner             ``log.cleaner.enable``                the admin interface, a deletion  threads joined

Their modules are not imported earlier, so that services that are not wanted cost neither start-up time nor memory. The
server walks the table; other parts get the service that they need from ``broker.services``. Loop thread only.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.config.keys.admin import ADMIN_LISTENER, SCHEMA_REGISTRY_LISTENER
from tidelog.broker.config.keys.token import CHECK_INTERVAL_MS, SECRET_KEY
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.lazy import Begin, LateService, Lazy
from tidelog.broker.metadata.image import INTERNAL_TOPICS, TopicImage
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.admin.listener import AdminListener
    from tidelog.broker.broker import Broker
    from tidelog.broker.controller.log_directories import DirectoryAssignments
    from tidelog.broker.coordinator.coordinators import Coordinators
    from tidelog.broker.find.indexing import Indexing
    from tidelog.broker.find.virtual_topics import VirtualPartitions
    from tidelog.broker.quota.quotas import Quotas
    from tidelog.broker.replica.partition import Partition
    from tidelog.broker.security.delegation_tokens import DelegationTokens
    from tidelog.cleaner.log_cleaner import LogCleaner
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

COORDINATORS = "tidelog.broker.coordinator.coordinators"
DELEGATION_TOKENS = "tidelog.broker.security.delegation_tokens"
VIRTUAL_TOPICS = "tidelog.broker.find.virtual_topics"
"""Modules of services that are imported in a thread (``tidelog.broker.loop.late_imports``), as each takes 20 to 60
ms.
"""


class LateServices:
    """The late services of one broker. ``broker`` returns the broker; it is not called before the broker is built."""

    __slots__ = (
        "_broker", "_lowering", "admin", "cleaner", "coordinators", "directories", "indexing", "quotas",
        "schema_registry", "tokens", "virtual_partitions",
    )  # fmt: skip

    def __init__(self, broker: Callable[[], Broker]) -> None:
        self._broker = broker
        self._lowering = threading.Lock()
        """Held while a truncation changes the cleaner's file without a cleaner: truncations run in several threads."""
        self.admin: Lazy[AdminListener] = Lazy(
            lambda: build_admin(broker()),
            is_wanted=lambda: bool(broker().config.get_str(ADMIN_LISTENER)),
            begin=lambda admin: admin.open(),
            stop=lambda admin: admin.close(),
        )
        self.schema_registry: Lazy[AdminListener] = Lazy(
            lambda: build_schema_registry(broker()),
            is_wanted=lambda: bool(broker().config.get_str(SCHEMA_REGISTRY_LISTENER)),
            begin=lambda registry: registry.open(),
            stop=lambda registry: registry.close(),
        )
        self.directories: Lazy[DirectoryAssignments] = Lazy(
            lambda: build_directories(broker()),
            is_wanted=lambda: len(broker().config.log_dirs) > 1 and broker().peers is None,
            begin=lambda directories: directories.begin(),
            close=lambda directories: directories.assign_new(),
        )
        self.quotas: Lazy[Quotas] = Lazy(
            lambda: build_quotas(broker()), is_wanted=lambda: bool(broker().controller.image.quotas)
        )
        self.coordinators: Lazy[Coordinators] = Lazy(
            lambda: build_coordinators(broker()),
            # Sessions and open transactions time out even if no client sends anything, so they are loaded soon.
            is_wanted=lambda: not INTERNAL_TOPICS.isdisjoint(broker().metadata.topics),
            begins=Begin.NEXT_TURN,
            module=COORDINATORS,
            begin=lambda coordinators: coordinators.start(),
            close=lambda coordinators: coordinators.close(),
        )
        self.tokens: Lazy[DelegationTokens] = Lazy(
            lambda: build_tokens(broker()),
            is_wanted=lambda: bool(broker().config.get(SECRET_KEY)),
            begins=Begin.LATER,
            module=DELEGATION_TOKENS,
            begin=lambda tokens: schedule_sweeps(broker(), tokens),
        )
        self.virtual_partitions: Lazy[VirtualPartitions] = Lazy(lambda: build_virtual_partitions(broker()))
        self.indexing: Lazy[Indexing] = Lazy(
            lambda: build_indexing(broker()),
            is_wanted=lambda: any(map(wants_index, broker().metadata.topics.values())),
            begins=Begin.LATER,
            module=VIRTUAL_TOPICS,
            stop=lambda indexing: self._run_in_worker(indexing.stop),
        )
        self.cleaner: Lazy[LogCleaner] = Lazy(
            lambda: build_cleaner(broker()),
            is_wanted=lambda: broker().config.get_bool("log.cleaner.enable"),
            begins=Begin.LATER,
            stop=lambda cleaner: self._run_in_worker(cleaner.shutdown),
        )

    def table(self) -> tuple[LateService, ...]:
        """List all services, in the order in which they begin and end."""
        return (
            self.admin, self.schema_registry, self.directories, self.quotas, self.coordinators, self.tokens,
            self.virtual_partitions, self.indexing, self.cleaner,
        )  # fmt: skip

    def _run_in_worker(self, stop: Callable[[], object]) -> Awaitable[object]:
        broker = self._broker()
        return broker.loop.run_in_executor(broker.executor, stop)

    # Events of topics and partitions

    def index_topic(self, image: TopicImage) -> None:
        """Let the indexing follow a new or changed topic; it is built with the first topic that wants an index."""
        indexing = self.indexing.made
        if indexing is not None:
            indexing.topic_changed(image)
        elif wants_index(image):
            self._broker().imports.call_when_loaded(VIRTUAL_TOPICS, self.indexing.get)

    def virtual_partition(self, image: TopicImage, index: int) -> Partition:
        """Return a partition of a virtual topic. Raises UnknownTopicOrPartitionError, InvalidTopicError, and
        NotLeaderOrFollowerError if this broker has no replica of the real partition.
        """
        return self.virtual_partitions.get().partition(image, index)

    def forget_topic(self, image: TopicImage) -> Deferred[None]:
        """Make the coordinators forget a deleted topic: its committed offsets, and its states in share groups. Settles
        when that is done in the loaded partitions of the internal topics, and never fails.

        A lone node notes when it is done in all partitions. If its coordinators are not built yet, they forget the
        topic when they start, unless its deletion is finished.
        """
        coordinators = self.coordinators.made
        if coordinators is None:
            return deferred_value(None)
        on_removed = partial(self._broker().topics.state_removed, image.topic_id)
        return coordinators.forget_topic(image.name, image.topic_id, on_removed)

    def lower_checkpoints(self, log: UnifiedLog) -> None:
        """Lower the cleaner's checkpoint of a log that was truncated, and remove those of its key and tag indices if
        they reach beyond its end. This is done also if no cleaner and no indexer runs: after a restart nothing would
        show the truncation. Any thread. Raises KafkaStorageError.
        """
        from tidelog.log.find.index_checkpoint import remove_checkpoints_beyond  # late: truncations are rare

        file_system = log.environment.file_system
        remove_checkpoints_beyond(file_system, log.directory, log.log_end_offset)
        cleaner = self.cleaner.made
        if cleaner is not None:
            cleaner.manager.checkpoint.lower(log)
        elif os.path.exists(os.path.join(os.path.dirname(log.directory), CLEANER_OFFSET_FILE)):
            from tidelog.cleaner.checkpoint import CleanerCheckpoint  # late: most brokers have no such file yet

            with self._lowering:
                CleanerCheckpoint(file_system).lower(log)

    def forget_cleaned(self, partition: TopicPartition) -> None:
        """Remove a deleted partition's cleaner checkpoint; do nothing if no checkpoint file exists."""
        directories = self._broker().config.log_dirs
        if self.cleaner.made is None and not any(
            os.path.exists(os.path.join(directory, CLEANER_OFFSET_FILE)) for directory in directories
        ):
            return
        from tidelog.broker.cleaning import forget_deleted

        forget_deleted(self._broker(), partition)


def wants_index(image: TopicImage) -> bool:
    """Return whether a topic may have an index; only its own configs can ask for one."""
    return "index.keys" in image.configs or "index.tag.header" in image.configs


def build_admin(broker: Broker) -> AdminListener:
    """Build the admin listener, which is not open yet."""
    from tidelog.broker.admin.listener import AdminListener

    return AdminListener(broker)


def build_schema_registry(broker: Broker) -> AdminListener:
    """Build the listener of the schema registry, which is not open yet."""
    from tidelog.broker.admin.listener import AdminListener, Interface

    app = "tidelog.broker.schema_registry.app"
    return AdminListener(broker, Interface(SCHEMA_REGISTRY_LISTENER, "schema registry", app))


def build_directories(broker: Broker) -> DirectoryAssignments:
    """Build the assignments of replicas to log directories, which are not begun yet."""
    from tidelog.broker.controller.log_directories import DirectoryAssignments

    return DirectoryAssignments(broker.controller, broker.log_manager, broker.timers)


def build_tokens(broker: Broker) -> DelegationTokens:
    """Build the delegation tokens of the metadata image."""
    from tidelog.broker.security.delegation_tokens import DelegationTokens

    return DelegationTokens(broker.config, broker.controller, broker.time.milliseconds)


def schedule_sweeps(broker: Broker, tokens: DelegationTokens) -> None:
    """Remove expired tokens now and at each interval; in a cluster the controllers do that."""
    if broker.peers is None:
        try:
            tokens.sweep()
        except KafkaError as error:
            logger.warning("cannot remove expired delegation tokens, trying again: %s", error)
        broker.timers.schedule(broker.config.get_int(CHECK_INTERVAL_MS), lambda: schedule_sweeps(broker, tokens))


def build_quotas(broker: Broker) -> Quotas:
    """Build the client quotas of the metadata image."""
    from tidelog.broker.quota.quotas import quotas_of_image

    return quotas_of_image(broker)


def build_coordinators(broker: Broker) -> Coordinators:
    """Build the coordinators, which have loaded nothing yet."""
    from tidelog.broker.coordinator.coordinators import Coordinators

    return Coordinators(broker)


def build_virtual_partitions(broker: Broker) -> VirtualPartitions:
    """Build the cache of virtual partitions."""
    from tidelog.broker.find.virtual_topics import VirtualPartitions

    return VirtualPartitions(broker)


def build_indexing(broker: Broker) -> Indexing:
    """Build and start the indexing of all topics that ask for it."""
    from tidelog.broker.find.indexing import start_indexing

    return start_indexing(broker)


def build_cleaner(broker: Broker) -> LogCleaner:
    """Build and start the log cleaner."""
    from tidelog.broker.cleaning import start_cleaner

    return start_cleaner(broker)
