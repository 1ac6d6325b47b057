"""Threads of the log cleaner: each takes the dirtiest log, cleans it and reports, and waits when there is none.

    thread:  a request, if there is one; else the dirtiest log that is due -> a round
             neither: wait for log.cleaner.backoff.ms, or for a request

Any failure of a round quarantines its partition with the reason, and the thread goes on. A thread that ends by an
error is replaced and counted. All threads share the rate of ``log.cleaner.io.max.bytes.per.second``. This module
imports nothing heavy: numpy is imported by the first round.

Any thread may call all methods; ``status`` reads files, ``shutdown`` waits for cleaner threads.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from tidelog.cleaner.cleaner_manager import LogCleanerManager, LogSource, PartitionStatus, RoundReport
from tidelog.cleaner.config import CleanerConfig
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.round_runner import EngineLoader, RoundRunner
from tidelog.cleaner.throttle import Throttle
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

#: Longest time in s that ``shutdown`` waits for each thread; a round checks between chunks whether to stop.
STOP_TIMEOUT_S = 30.0


class CleaningUnavailableError(Exception):
    """A request was refused: no such compacted partition, or the cleaner does not run."""


@dataclass(frozen=True, slots=True)
class CleanerCounters:
    """Counts of the work of all cleaner threads since the start."""

    rounds: int = 0
    failed_rounds: int = 0
    dead_threads: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_dropped: int = 0
    unreadable_batches: int = 0


class _Request:
    """Request to clean one partition now."""

    __slots__ = ("dry_run", "future", "partition")

    def __init__(self, partition: TopicPartition, *, dry_run: bool) -> None:
        self.partition = partition
        self.dry_run = dry_run
        self.future: Future[RoundReport] = Future()


class LogCleaner:
    """The log cleaner: its threads, and the requests that wait for them."""

    def __init__(
        self,
        logs: LogSource,
        file_system: FileSystem,
        time: Time,
        config: CleanerConfig | None = None,
        load_engine: EngineLoader | None = None,
        current_config: Callable[[], CleanerConfig] | None = None,
    ) -> None:
        """``current_config`` is called before each piece of work, so that changed settings take effect."""
        self.manager = LogCleanerManager(logs, file_system, time)
        self.config = config or CleanerConfig.parse()
        self._logs = logs
        self._time = time
        self._current_config = current_config
        self._condition = threading.Condition()
        self._requests: deque[_Request] = deque()
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._stop = threading.Event()
        self._throttle = Throttle(self.config.io_max_bytes_per_second, time, self._stop.wait)
        self._runner = RoundRunner(self.manager, time, self._throttle.take, self._stop.is_set, load_engine)
        self.counters = CleanerCounters()

    # ---- start and stop

    def startup(self) -> None:
        """Start the threads, unless ``log.cleaner.enable`` is off."""
        if not self.config.enabled:
            logger.info("the log cleaner is switched off (log.cleaner.enable=false)")
            return
        with self._condition:
            while len(self._threads) < self.config.threads:
                self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run_thread, name=f"log-cleaner-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def shutdown(self) -> None:
        """Stop the rounds and threads; waiting requests fail. The segments that a stopped round has already cleaned
        stay cleaned."""
        with self._condition:
            self._stopping = True
            self._stop.set()
            self._condition.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(STOP_TIMEOUT_S)
            if thread.is_alive():
                logger.error("%s did not stop within %d s; it ends with the process", thread.name, STOP_TIMEOUT_S)
        with self._condition:
            waiting = list(self._requests)
            self._requests.clear()
        for request in waiting:
            request.future.set_exception(CleaningUnavailableError("the cleaner stops"))

    def reconfigure(self, config: CleanerConfig) -> None:
        """Apply changed settings: rate and further threads at once, the others from the next round on. A thread that is
        too many ends after its round."""
        with self._condition:
            self.config = config
            self._throttle.rate = config.io_max_bytes_per_second
            self._condition.notify_all()
            if self._threads and not self._stopping:
                while len(self._threads) < config.threads:
                    self._start_thread()

    @property
    def live_threads(self) -> int:
        """Number of cleaner threads that are alive."""
        return sum(thread.is_alive() for thread in self._threads)

    # ---- requests

    def request_clean(self, partition: TopicPartition, *, dry_run: bool = False) -> Future[RoundReport]:
        """Clean a partition as soon as a thread is free, due or not; the future gets the report.

        The active segment is rolled first, also with ``dry_run``, so that the records written before the call are
        cleaned. Segments of the uncleanable tail (``tidelog.cleaner.log_to_clean``) are not. With ``dry_run`` nothing
        is removed; the report says what a round would remove. The future raises CleaningUnavailableError,
        CleaningAbortedError, KafkaStorageError, and any error that damaged data causes in the round.
        """
        request = _Request(partition, dry_run=dry_run)
        with self._condition:
            if self._stopping or not self._threads:
                request.future.set_exception(CleaningUnavailableError("the cleaner does not run"))
            else:
                self._requests.append(request)
                self._condition.notify_all()
        return request.future

    def status(self) -> list[PartitionStatus]:
        """Return the status of every partition whose compacted log is open."""
        return self.manager.statuses()

    # ---- threads

    def _run_thread(self) -> None:
        finished = False
        try:
            self._work()
            finished = True
        finally:
            with self._condition:
                self._leave()
                if not finished:
                    self._count(dead_threads=1)
                    logger.error("%s ended by an error and is replaced", threading.current_thread().name)
                    if not self._stopping:
                        self._start_thread()

    def _leave(self) -> None:
        """Remove this thread from the cleaner's threads. Call it under the lock."""
        me = threading.current_thread()
        self._threads = [thread for thread in self._threads if thread is not me]

    def _work(self) -> None:
        while (request := self._next_request()) is not _NO_MORE:
            if isinstance(request, _Request):
                self._serve(request)
                continue
            found = self.manager.grab_filthiest()
            if found is None:
                self._wait_for_work()
            else:
                self._clean(found, dry_run=False)

    def _next_request(self) -> _Request | object | None:
        """Return the next request, None if there is none, and ``_NO_MORE`` if this thread has to end."""
        if self._current_config is not None and (config := self._current_config()) != self.config:
            self.reconfigure(config)
        with self._condition:
            if self._stopping or len(self._threads) > self.config.threads:
                self._leave()  # under the same lock, so that the next thread that comes here does not count this one
                return _NO_MORE
            return self._requests.popleft() if self._requests else None

    def _wait_for_work(self) -> None:
        with self._condition:
            if not self._stopping and not self._requests:
                self._condition.wait(self.config.backoff_ms / 1000.0)

    def _serve(self, request: _Request) -> None:
        try:
            report = self._clean_requested(request)
        except BaseException as error:
            request.future.set_exception(error)  # whatever it is: the caller waits for a result
            if not isinstance(error, Exception):
                raise
        else:
            request.future.set_result(report)

    def _clean_requested(self, request: _Request) -> RoundReport:
        log = next((log for log in self._logs() if log.topic_partition == request.partition), None)
        if log is None:
            raise CleaningUnavailableError(f"{request.partition} is not a compacted partition of this broker")
        if log.segments.active.size:
            log.roll()
        while not self._stopping:
            found = self.manager.grab(log)
            if found is not None:
                report = self._clean(found, dry_run=request.dry_run, raising=True)
                assert report is not None
                return report
            self.manager.wait_until_free(request.partition, 1.0)
        raise CleaningUnavailableError("the cleaner stops")

    # ---- rounds

    def _clean(self, cleanable: LogToClean, *, dry_run: bool, raising: bool = False) -> RoundReport | None:
        """Run one round and record its result. A failure quarantines the partition, and is raised with ``raising``."""
        partition = cleanable.topic_partition
        ended = False
        report = None
        try:
            report = self._runner.run(cleanable, self.config, dry_run=dry_run)
            self._account(partition, report)
            self.manager.record_success(partition, report)
            ended = True
        except CleaningAbortedError as error:
            self.manager.record_stop(partition)
            ended = True
            logger.info("%s", error)
            if raising:
                raise
        except Exception as error:  # damaged data may cause any error: the partition is quarantined, the thread goes on
            ended = True
            self._fail(cleanable, error)
            if raising:
                raise
        finally:
            if not ended:  # an error that ends the thread
                self.manager.record_failure(partition, "the cleaner thread died in the round")
        return report

    def _fail(self, cleanable: LogToClean, error: Exception) -> None:
        partition = cleanable.topic_partition
        if cleanable.log.is_closed:
            self.manager.record_stop(partition)
            return
        self._count(failed_rounds=1)
        self.manager.record_failure(partition, f"{type(error).__name__}: {error}")
        logger.warning("cleaning of %s failed; it is quarantined and tried again later", partition, exc_info=error)

    def _account(self, partition: TopicPartition, report: RoundReport) -> None:
        if report.dry_run:
            self._count(bytes_read=report.bytes_read)
            return
        self._count(
            rounds=1,
            bytes_read=report.bytes_read,
            bytes_written=report.bytes_written,
            records_read=report.records_before,
            records_dropped=report.records_before - report.records_after,
            unreadable_batches=report.unreadable_batches,
        )
        logger.info(
            "cleaned %s from offset %d to %d: %d to %d bytes, %d to %d records in %d ms (%s)",
            partition,
            report.first_dirty_offset,
            report.end_offset,
            report.bytes_before,
            report.bytes_after,
            report.records_before,
            report.records_after,
            report.duration_ms,
            report.engine,
        )

    def _count(self, **more: int) -> None:
        with self._condition:
            old = self.counters
            values = {name: getattr(old, name) + more.get(name, 0) for name in CleanerCounters.__slots__}
            self.counters = CleanerCounters(**values)


_NO_MORE = object()
