"""A Broker with real logs below a directory, on a loop that the test drives by hand, for the data path's handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import tests.support.late_modules  # noqa: F401 - or first requests would wait for a thread
from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.replica.strays import StrayLogs
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.startup import Foundation, assemble, finish_deletions, recovery_of
from tidelog.log.config import LogConfig
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import FileSystem, OsFileSystem
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

TIMESTAMP_MS = 1_700_000_000_000
RESERVE_BYTES = 4096
"""A broker's default is 8 MB, which a file system in memory fills with zeros for each test."""


class InlineLoop(ManualLoop):
    """Threads' work is done at once and its callbacks come in the next turn, as a real loop's do."""

    def run_in_executor(self, executor: object, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run the work now: it is done when this returns."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return _LaterCallbacks(self, future)


class _LaterCallbacks(Future[Any]):
    def __init__(self, loop: ManualLoop, done: Future[Any]) -> None:
        super().__init__()
        self._loop = loop
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        else:
            self.set_exception(error)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        self._loop.call_soon(lambda: cast(None, fn(self)))


class DataBroker:
    """A broker's parts without a server, on an event loop that the test runs; ``broker`` is what handlers get."""

    def __init__(
        self,
        directory: Path,
        texts: Mapping[str, str] | None = None,
        file_system: FileSystem | None = None,
        directories: list[str] | None = None,
    ) -> None:
        """``directory`` may have the files of an earlier broker."""
        self.loop = InlineLoop()
        self.time = self.loop.time
        config = BrokerConfig({"log.dirs": str(directory), "node.id": "1", **(texts or {})})
        self.log_manager = LogManager(
            directories or [str(directory)],
            file_system or OsFileSystem(),
            self.time,
            LogConfig(config.topic_defaults()),
            reserve_bytes=RESERVE_BYTES,
        )
        strays = StrayLogs(self.log_manager)
        self.broker = assemble(
            Foundation(
                config=config,
                time=self.time,
                loop=cast(Any, self.loop),
                executor=cast(Any, None),
                record_executor=cast(Any, None),
                timers=self.loop.timers,
                log_manager=self.log_manager,
                cluster_id="5L6g3nShT-eMCtK--X86sw",
                locks=[],
            ),
            strays,
        )
        strays.note(recovery_of(self.broker)())
        finish_deletions(self.broker)
        self.topics = self.broker.topics
        self.purgatory = self.broker.purgatory
        self.replica_manager = self.broker.replica_manager

    def run_turn(self) -> None:
        """Run the callbacks that wait for the loop's next turn."""
        self.loop.run_soon()

    def context(self, version: int) -> RequestContext:
        """Return the context of a request of this version."""
        context = RequestContext()
        context.api_version = version
        context.client_id = "tester"
        return context

    def append(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Append one batch; returns its first offset."""
        found = self.replica_manager.partition(topic, partition)
        return found.append_records(memoryview(batch(*values))).first_offset

    def make_internal_topics(self, *names: str) -> None:
        """Make internal topics, durably: nothing that coordinators answer waits for them."""
        for name in names:
            self.topics.ensure_internal_topic(name)
        self.broker.controller.sync()
        self.topics.unsynced.clear()

    def stop_threads(self) -> None:
        """Stop the cleaner and the indexer, where they were built, and wait for their threads."""
        indexing, cleaner = self.broker.services.indexing.made, self.broker.services.cleaner.made
        if indexing is not None:
            indexing.stop()
        if cleaner is not None:
            cleaner.shutdown()

    def close(self) -> None:
        """Stop cleanly."""
        self.log_manager.shutdown()
        self.broker.controller.close()


def batch(*values: bytes, options: BatchOptions | None = None) -> bytearray:
    """Build a batch of records of magic 2, offsets from 0."""
    records = [Record(offset, TIMESTAMP_MS + offset, None, value, []) for offset, value in enumerate(values)]
    return bytearray(build_batch(records, options) if options else build_batch(records))
