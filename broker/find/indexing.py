"""The indexer thread: extends the key and tag indices of topics as their logs grow, if the topics' configs enable them.

    loop thread   a topic is created or gets other configs or partitions -> its logs are given to the thread once open
    indexer       rounds over those logs, one step for each of them; waits when there is nothing to do
    supervision   if the thread died, another one is started. The log that the dead one worked on rests for RETRY_MS

The thread uses a log's files only within the context ``log.files``: a deletion waits until the step is over, and no
step creates a directory or a file of a log that was deleted.

A broker without indices imports this module late: for a search, a virtual topic or the console. Producers do not wake
the thread: it sees by the high watermark that there is something to do. Without compiled modules a step is small, and
the thread rests three times as long as it worked, because plain Python holds the interpreter that answers producers.

``wait_until_indexed`` is for searches that must not miss records which were acknowledged before they began.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.broker.metrics.registry import Sample
from tidelog.broker.replica.opening import opening_of
from tidelog.log.file_use import LogDeletedError
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.engine.engine import IS_COMPILED
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.indexer import STEP_BYTES, LogIndexer
from tidelog.log.find.rows import Rows
from tidelog.log.system.thread_priority import give_way
from tidelog.protocol.errors import KafkaError, NotLeaderOrFollowerError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.metadata.image import TopicImage
    from tidelog.log.config import LogConfig
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

PLAIN_STEP_BYTES = 32 * 1024
"""Bytes of a step without compiled modules: about 5 ms of work."""
PLAIN_REST = 3.0
"""Rest after a step without compiled modules, in durations of the step."""
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.005, 0.1
"""Waits between two rounds: each round without work doubles the wait."""
FULL_ROUND_BYTES = STEP_BYTES // 2
"""After a round over fewer bytes the thread waits: many small steps cost producers far more than few large ones."""
UPKEEP_MS = 5_000
"""Time between two checkpoints of an index. Before each, index files that retention made useless are removed."""
RETRY_MS = 5_000
"""Time for which a log is left alone after an error."""
SUPERVISE_S = 1.0
"""Time between two checks whether the indexer thread is alive."""


class Indexing:
    """All indexers of a broker. Public methods are for the loop's thread unless they say otherwise."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._condition = threading.Condition()
        self._configs: dict[TopicPartition, tuple[UnifiedLog, LogConfig]] = {}
        """Logs to index and their configurations. The loop's thread replaces this mapping, and never changes one."""
        self._indexers: dict[TopicPartition, LogIndexer] = {}
        self._resting: dict[TopicPartition, float] = {}
        """Logs that are left alone after an error -> the monotonic time, in ms, at which that ends."""
        self._upkeep_ms: dict[TopicPartition, float] = {}
        """Monotonic time, in ms, of the last checkpoint of each index."""
        self._damaged: set[TopicPartition] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._current: TopicPartition | None = None
        self._rows: Rows | None = None
        """Buffers of the thread, 4 MB, for all logs; a broker without indices has none."""
        self.restarts = 0
        broker.metrics.add_shared_source(self.samples)

    def indexers(self) -> list[LogIndexer]:
        """Return all indexers. Any thread."""
        return list(self._indexers.values())

    def indexer(self, partition: TopicPartition) -> LogIndexer | None:
        """Return the indexer of a partition; None if the partition has no index, or none yet. Any thread."""
        return self._indexers.get(partition)

    def samples(self) -> Iterator[Sample]:
        """Yield the lag of each partition's index and of all, and the numbers of rebuilds and restarts. Any thread."""
        indexers = self.indexers()
        values = {
            "tidelog_index_lag_records": sum(each.lag for each in indexers),
            "tidelog_index_logs": len(indexers),
            "tidelog_index_rebuilds_total": sum(each.rebuilds for each in indexers),
            "tidelog_index_thread_restarts_total": self.restarts,
        }
        for name, value in values.items():
            yield Sample(name, "gauge", {}, value)
        for partition in self._configs:
            indexer = self._indexers.get(partition)
            labels = {"partition": str(partition.partition), "topic": partition.topic}
            yield Sample("tidelog_index_partition_lag_records", "gauge", labels, 0 if indexer is None else indexer.lag)

    # ---- loop thread

    def start(self) -> None:
        """Start the indexer thread and its supervision."""
        self._thread = threading.Thread(target=self._run, name="indexer", daemon=True)
        self._thread.start()
        self._broker.loop.call_later(SUPERVISE_S, self._supervise)

    def topic_changed(self, image: TopicImage) -> None:
        """Index the logs of a topic, or stop indexing them, as its configs say. Called for each topic at the start of
        the indexing, and when a topic was created, or has more partitions or other configs."""
        config = self._broker.topic_configs.log_config(image)
        for index in range(image.partition_count):
            partition = TopicPartition(image.name, index)
            if is_indexed(config):
                self._broker.loop.call_soon(self._hand_over, image, index)
            elif partition in self._configs:
                log = self._configs[partition][0]
                self._configs = {**self._configs, partition: (log, config)}

    def _hand_over(self, image: TopicImage, index: int) -> None:
        """Give a log to the indexer thread once it is open; if it is not, a thread opens it first."""
        opening = opening_of(self._broker, "", index, image.topic_id)
        if opening is None:
            self._hand_over_open(image, index)
        else:
            opening.on_done(lambda _: self._hand_over_open(image, index))

    def _hand_over_open(self, image: TopicImage, index: int) -> None:
        current = self._broker.metadata.topics.get(image.name)
        if current is None or current.topic_id != image.topic_id:
            return
        partition = TopicPartition(image.name, index)
        try:
            log = self._broker.replica_manager.partition(image.name, index).local_log
        except NotLeaderOrFollowerError:
            return  # only other brokers have replicas of it
        except KafkaError as error:
            logger.warning("%s is not indexed: %s", partition, error)
            return
        self._configs = {**self._configs, partition: (log, self._broker.topic_configs.log_config(current))}
        self.kick()

    def _supervise(self) -> None:
        if self._stopping:
            return
        if self._thread is not None and not self._thread.is_alive():
            self.restarts += 1
            if self._current is not None:
                self._leave_alone(self._current)
            logger.error("the indexer thread died while indexing %s; starting another", self._current)
            self._thread = threading.Thread(target=self._run, name="indexer", daemon=True)
            self._thread.start()
        if any(log.is_closed for log, _ in self._configs.values()):
            self._configs = {p: (log, config) for p, (log, config) in self._configs.items() if not log.is_closed}
        self._broker.loop.call_later(SUPERVISE_S, self._supervise)

    def kick(self) -> None:
        """Wake the indexer thread, which looks for work. Any thread."""
        with self._condition:
            self._condition.notify_all()

    def stop(self) -> None:
        """End the indexer thread and write the last checkpoints. Any thread except the loop's, because this blocks."""
        self._stopping = True
        self.kick()
        if self._thread is not None:
            self._thread.join()
        for indexer in self.indexers():
            self._checkpoint(indexer)

    # ---- any thread

    def wait_until_indexed(self, partition: TopicPartition, offset: int, timeout_s: float) -> bool:
        """Wait until everything below ``offset`` is indexed. Returns False after ``timeout_s``, and when ``stop`` is
        called: the process cannot end before the thread that waits. Blocks.
        """

        def is_indexed_now() -> bool:
            indexer = self._indexers.get(partition)
            return indexer is not None and indexer.next_offset >= offset

        with self._condition:
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._stopping or is_indexed_now(), timeout_s)
        return is_indexed_now()

    def rebuild(self, partition: TopicPartition, reason: object) -> None:
        """Let the indexer thread rebuild the indices of a log, one of which was found damaged. Any thread."""
        logger.warning("the index of %s is damaged and will be rebuilt: %s", partition, reason)
        self._damaged.add(partition)
        self.kick()

    # ---- indexer thread

    def _run(self) -> None:
        give_way()
        wait_s = SHORTEST_WAIT_S
        while not self._stopping:
            worked = self._round()
            wait_s = SHORTEST_WAIT_S if worked else min(wait_s * 2, LONGEST_WAIT_S)
            with self._condition:
                # wakes wait_until_indexed: an index that was saved may cover its log without a step
                self._condition.notify_all()
                if worked < FULL_ROUND_BYTES and not self._stopping:
                    self._condition.wait(wait_s)

    def _round(self) -> int:
        """Do one step for each log; return the number of bytes that were read."""
        worked = 0
        configs = self._configs
        for partition, (log, config) in configs.items():
            if self._stopping:
                break
            now = self._broker.time.monotonic_ms()
            if self._resting.get(partition, 0.0) > now:
                continue
            self._current = partition
            try:
                with log.files:
                    worked += self._work_on(partition, log, config, now)
            except LogDeletedError:
                self._indexers.pop(partition, None)
            except IndexDamagedError as error:
                self.rebuild(partition, error)
            except KafkaError as error:
                if not log.is_closed:
                    logger.warning("%s cannot be indexed now, and is tried again later: %s", partition, error)
                    self._leave_alone(partition)
        self._current = None
        for partition in self._indexers.keys() - configs.keys():
            del self._indexers[partition]
            self._upkeep_ms.pop(partition, None)
        return worked

    def _work_on(self, partition: TopicPartition, log: UnifiedLog, config: LogConfig, now: float) -> int:
        """Do one step for a log, after a rebuild if its index is damaged, and write the checkpoint if that is due.
        Return the number of bytes that were read. ``now`` is monotonic, in ms."""
        indexer = self._indexers.get(partition)
        if log.is_closed:
            self._indexers.pop(partition, None)
            return 0
        if indexer is None or indexer.log is not log:
            self._rows = self._rows or Rows()
            indexer = LogIndexer(log, self._rows)
            indexer.configure(config)
            self._indexers[partition] = indexer
            self._upkeep_ms[partition] = now
        elif indexer.config is not config:
            indexer.configure(config)
        if partition in self._damaged:
            indexer.rebuild()
            self._damaged.discard(partition)  # only now: if the rebuild fails, the next round tries it again
        worked = self._step(indexer)
        if now - self._upkeep_ms[partition] >= UPKEEP_MS:
            self._upkeep_ms[partition] = now
            indexer.trim()
            if indexer.is_unsaved:
                indexer.checkpoint()
        return worked

    def _step(self, indexer: LogIndexer) -> int:
        """Do one step, and rest after it if no modules are compiled; return the number of bytes that were read."""
        if IS_COMPILED:
            return indexer.step(STEP_BYTES)
        started = self._broker.time.monotonic_ms()
        worked = indexer.step(PLAIN_STEP_BYTES)
        if worked:
            with self._condition:
                self._condition.notify_all()
                self._condition.wait(PLAIN_REST * (self._broker.time.monotonic_ms() - started) / 1000)
        return worked

    def _leave_alone(self, partition: TopicPartition) -> None:
        self._resting[partition] = self._broker.time.monotonic_ms() + RETRY_MS

    def _checkpoint(self, indexer: LogIndexer) -> None:
        if indexer.log.is_closed:
            return
        try:
            with indexer.log.files:
                indexer.checkpoint()
        except KafkaError as error:
            logger.warning(
                "the index of %s has no checkpoint of its end; the next start reads more of the log: %s",
                indexer.log.topic_partition,
                error,
            )


def is_indexed(config: LogConfig) -> bool:
    """Return whether a topic with this configuration has an index."""
    return config.index_keys or config.index_tag_header is not None


def indexing_of(broker: Broker) -> Indexing:
    """Return the broker's indexing, which is started now if it was not before. Loop thread."""
    return broker.services.indexing.get()


def start_indexing(broker: Broker) -> Indexing:
    """Build and start the indexing of a broker. Logs are given to the indexer thread later, each by a callback of its
    own. Loop thread."""
    indexing = Indexing(broker)
    indexing.start()
    for image in list(broker.metadata.topics.values()):
        indexing.topic_changed(image)
    return indexing
