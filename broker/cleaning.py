"""The cleaner in the broker: which logs it sees, when it starts, where its settings come from.

The cleaner starts a moment after the listeners are open, or with the first request for it, whichever comes first, so
that it does not delay the start. A log that was not opened since a clean stop is inspected once, and again when its
topic's metadata or the configured defaults have changed. Such a log is opened if it has more than one segment, as only
then there is anything to clean. With ``max.compaction.lag.ms`` it is also opened if it has any record, as its only
segment has to be rolled in time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.controller.configs import current_config
from tidelog.cleaner.cleaner_manager import CleaningState, LogCleanerManager, PartitionStatus
from tidelog.cleaner.config import CleanerConfig
from tidelog.cleaner.log_cleaner import LogCleaner
from tidelog.log.files.segment_names import base_offset_of
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.segment import LOG_SUFFIX
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.controller.configs import TopicDefaults
    from tidelog.broker.metadata.image import TopicImage
    from tidelog.cleaner.cleaner_manager import RoundReport
    from tidelog.log.config import LogConfig

logger = logging.getLogger(__name__)

NEVER_MS = 2**63 - 1
"""Kafka's default of ``max.compaction.lag.ms``."""


class Inspected(NamedTuple):
    """Sources of a log's configuration when the log was inspected: the topic's image, and the server's defaults."""

    image: TopicImage
    defaults: TopicDefaults


class CompactedLogs:
    """Function that returns the open compacted logs of a broker, after opening those that may need cleaning. Cleaner
    threads call it, and workers that read the cleaner's status.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._inspected: dict[TopicPartition, Inspected] = {}
        self._lock = threading.Lock()

    def __call__(self) -> list[UnifiedLog]:
        with self._lock:  # a second thread must see the logs that the first one opens
            opened = {log.topic_partition: log for log in self._broker.log_manager.open_logs()}
            logs = [log for log in opened.values() if log.config.compact]
            return logs + list(self._open_others(opened))

    def _open_others(self, opened: dict[TopicPartition, UnifiedLog]) -> Iterator[UnifiedLog]:
        manager = self._broker.log_manager
        for partition, config in self._find_uninspected(opened):
            if config.compact and self._may_be_cleaned(partition, config):
                try:
                    log = manager.get_log(partition)
                except KafkaError:  # refused, and the reason is logged: nothing to clean
                    continue
                if log is not None and log.config.compact:
                    yield log

    def _find_uninspected(self, opened: dict[TopicPartition, UnifiedLog]) -> list[tuple[TopicPartition, LogConfig]]:
        """Return the logs that are not open and were not inspected with their present configuration, which is returned
        with each. They count as inspected from now on."""
        before, self._inspected = self._inspected, {}
        topics, configs = self._broker.metadata.topics, self._broker.topic_configs
        found: dict[str, LogConfig] = {}
        uninspected = []
        for partition in self._broker.log_manager.partitions():
            image = topics.get(partition.topic)
            if image is None or partition in opened:
                continue
            present = self._inspected[partition] = Inspected(image, configs.defaults)
            last = before.get(partition)
            if last is not None and last.image is present.image and last.defaults is present.defaults:
                continue
            config = found.get(partition.topic)
            if config is None:
                config = found[partition.topic] = configs.log_config(image)
            uninspected.append((partition, config))
        return uninspected

    def _may_be_cleaned(self, partition: TopicPartition, config: LogConfig) -> bool:
        for directory in self._broker.config.log_dirs:
            path = os.path.join(directory, partition.directory_name)
            try:
                segments = [name for name in os.listdir(path) if name.endswith(LOG_SUFFIX)]
                must_roll = config.max_compaction_lag_ms < NEVER_MS and any(
                    os.path.getsize(os.path.join(path, name)) for name in segments
                )
            except OSError:
                continue
            return len(segments) > 1 or must_roll
        return False


def config_of(broker: Broker, topic: str) -> LogConfig | None:
    """Return a topic's configuration, None when there is no such topic. Any thread."""
    return current_config(broker.metadata, broker.topic_configs, topic)


def statuses(broker: Broker) -> list[PartitionStatus]:
    """Describe every compacted partition, in the order of their names, also if its log is not open. A log that the
    broker refused to open has the reason. It waits for the disk: call it in a worker thread.
    """
    cleaner = broker.services.cleaner.made
    assert cleaner is not None, "the caller starts the cleaner first"
    seen = {status.topic_partition: status for status in cleaner.status()}
    refused = broker.log_manager.refused
    for partition in broker.log_manager.partitions():
        if partition not in seen:
            config = config_of(broker, partition.topic)
            if config is not None and config.compact:
                seen[partition] = unopened_status(broker, partition, refused.get(partition))
    return [seen[partition] for partition in sorted(seen)]


class RequestedRounds(NamedTuple):
    """Requested rounds, one for each replica of a topic here; there is none for a log that cannot be opened."""

    partitions: list[TopicPartition]
    futures: dict[TopicPartition, Future[RoundReport]]
    refused: dict[TopicPartition, KafkaError]
    done: Future[None]
    """Done when all rounds are done."""

    def result(self, partition: TopicPartition) -> RoundReport | BaseException | None:
        """Return the report of a partition's round, or the error because of which there is none. Call it once all
        rounds are done."""
        future = self.futures.get(partition)
        return self.refused[partition] if future is None else future.exception() or future.result()


def request_rounds(broker: Broker, cleaner: LogCleaner, image: TopicImage, *, dry_run: bool) -> RequestedRounds:
    """Ask for a round over each partition of a topic of which this broker has a replica. Logs that were not opened
    since the start are opened.

    It waits for the disk: call it in a worker thread.
    """
    here = [number for number, state in enumerate(image.partitions) if broker.node_id in state.replicas]
    rounds = RequestedRounds([TopicPartition(image.name, number) for number in here], {}, {}, Future())
    for partition in rounds.partitions:
        try:
            broker.log_manager.get_log(partition)
        except KafkaError as error:
            rounds.refused[partition] = error
    for partition in rounds.partitions:
        if partition not in rounds.refused:
            rounds.futures[partition] = cleaner.request_clean(partition, dry_run=dry_run)
    finish_after(rounds.done, list(rounds.futures.values()))
    return rounds


def finish_after(done: Future[None], futures: Sequence[Future[RoundReport]]) -> None:
    """Complete ``done``, unless it is cancelled, when all ``futures`` are done. Any thread."""
    left = itertools.count(len(futures), -1)

    def count(_: object = None) -> None:
        if next(left) == 0 and done.set_running_or_notify_cancel():
            done.set_result(None)

    for future in futures:
        future.add_done_callback(count)
    count()


def unopened_status(broker: Broker, partition: TopicPartition, error: KafkaError | None) -> PartitionStatus:
    """Describe a log that is not open: nothing of it is cleaned, as it was refused or has only its active segment."""
    bases = [0]
    for directory in broker.config.log_dirs:
        path = os.path.join(directory, partition.directory_name)
        with contextlib.suppress(OSError):
            found = (base_offset_of(name) for name in os.listdir(path) if name.endswith(LOG_SUFFIX))
            bases = [base for base in found if base is not None]
    first = min(bases, default=0)
    return PartitionStatus(
        topic_partition=partition,
        state=CleaningState.IDLE,
        cleanable_ratio=0.0,
        dirty_bytes=0,
        clean_bytes=0,
        first_dirty_offset=first,
        first_uncleanable_offset=first,
        compaction_lag_ms=0,
        last_round=None,
        last_error=None if error is None else f"not opened: {error}",
        failures=0,
        retry_in_ms=None,
    )


def forget_deleted(broker: Broker, partition: TopicPartition) -> None:
    """Remove the cleaner's checkpoint of a deleted partition, which a new partition of the same name must not inherit.
    Loop thread only; a worker thread writes the file.
    """
    manager = cleaner_of(broker).manager
    broker.loop.run_in_executor(broker.executor, forget_quietly, manager, partition, broker.config.log_dirs)


def forget_quietly(manager: LogCleanerManager, partition: TopicPartition, directories: list[str]) -> None:
    """Remove the cleaner's checkpoint of a partition. An error of a directory that is offline or full is only logged.
    If the write failed, the next save of the file leaves the entry out.
    """
    try:
        manager.forget(partition, directories)
    except KafkaStorageError as error:
        logger.warning("the cleaner's checkpoint of %s is not removed yet: %s", partition, error)


def cleaner_of(broker: Broker) -> LogCleaner:
    """Return the broker's cleaner; build and start it if it was not built. Loop thread."""
    return broker.services.cleaner.get()


def start_cleaner(broker: Broker) -> LogCleaner:
    """Build and start the cleaner of a broker; with ``log.cleaner.enable=false`` it has no threads."""
    cleaner = LogCleaner(
        CompactedLogs(broker),
        broker.log_manager.environment.file_system,
        broker.time,
        CleanerConfig.parse(broker.config.values),
        current_config=lambda: CleanerConfig.parse(broker.config.values),
    )
    cleaner.startup()
    return cleaner
