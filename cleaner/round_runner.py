"""Run of one cleaning round by a cleaner thread, which can abort it or wait for the throttle between chunks.

The first round imports numpy, which holds the interpreter lock for long. So the thread lowers its priority only
afterwards: a thread of low priority that loses the CPU while it holds the lock keeps the event loop waiting.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from tidelog.cleaner.cleaner_manager import LogCleanerManager, RoundReport
from tidelog.cleaner.config import CleanerConfig
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.thread_load import load_of_main_thread
from tidelog.log.records.quiet_import import quiet_import
from tidelog.log.system.thread_priority import give_way
from tidelog.log.system.time import Time

if TYPE_CHECKING:
    from tidelog.cleaner.engine.engine import Engine
    from tidelog.cleaner.round.cleaner import CleanerStats

#: With this many processors or fewer, a helper thread that reads ahead takes the processor that the event loop or its
#: client needs. Produce p99 beside a round is 246 to 299 us without the thread and 500 to 691 us with it, while the
#: round is not faster (docs/internals/cleaner.md). So on such Linux machines it reads ahead only while the loop idles.
FEW_PROCESSORS = 2

EngineLoader = Callable[[], "Engine"]


def _load_engine() -> Engine:
    from tidelog.cleaner.engine.engine import ENGINE

    return ENGINE


def _count_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@cache
def _import_cleaner() -> ModuleType:
    """Import the module of rounds, which imports numpy. Other callers wait until the import is done."""
    with quiet_import("numpy"):
        return importlib.import_module("tidelog.cleaner.round.cleaner")


class RoundRunner:
    """Runner of rounds for all cleaner threads, without state between rounds.

    ``take`` counts bytes for the throttle, and may wait; ``stopping`` returns whether the cleaner stops.
    """

    def __init__(
        self,
        manager: LogCleanerManager,
        time: Time,
        take: Callable[[int], None],
        stopping: Callable[[], bool],
        load_engine: EngineLoader | None = None,
    ) -> None:
        self._manager = manager
        self._time = time
        self._take = take
        self._stopping = stopping
        self._load_engine = load_engine or _load_engine

    def run(self, cleanable: LogToClean, config: CleanerConfig, *, dry_run: bool) -> RoundReport:
        """Clean one log. Raises CleaningAbortedError, KafkaStorageError, and any error that damaged data causes."""
        rounds = _import_cleaner()
        log = cleanable.log
        engine = self._load_engine()
        give_way()
        options = rounds.CleanerOptions(
            map_bytes=config.map_bytes_per_thread,
            # Each chunk takes one call in each pass: with 1 MiB instead of 512 KiB a round of 550 MB (values of 100 B)
            # takes 12 % less CPU.
            io_buffer_bytes=2 * config.io_buffer_size,
            load_factor=config.load_factor,
            hash_algorithm=config.hash_algorithm,
            max_decompressed_bytes=log.environment.max_decompressed_bytes,
            reads_ahead=self._helper_rule(),
        )
        hooks = rounds.RoundHooks(
            check=lambda size: self._check(cleanable, size),
            progress=lambda offset: self._manager.checkpoint.save(log, offset),
        )
        started = self._time.monotonic_ms()
        try:
            stats = rounds.Cleaner(engine, options).clean(cleanable, self._manager.clock.now(), hooks, dry_run=dry_run)
        finally:
            abort_if_truncated(cleanable)  # this also explains an error of a read in bytes that were cut
        if not dry_run:
            self._manager.checkpoint.save(log, stats.end_offset)
        duration_ms = int(self._time.monotonic_ms() - started)
        return self._report(cleanable, stats, engine.name, duration_ms, dry_run=dry_run)

    def _helper_rule(self) -> Callable[[], bool]:
        """Return a function that says, before each step, whether a helper thread may read ahead."""
        load = load_of_main_thread(self._time.monotonic_ms)
        if load is None or _count_processors() > FEW_PROCESSORS:
            return lambda: True
        return lambda: not load.is_busy()

    def _check(self, cleanable: LogToClean, size: int) -> None:
        """Abort the round if it must end, else wait for the throttle: ``size`` bytes were read or will be written.

        Raises CleaningAbortedError.
        """
        if self._stopping():
            raise CleaningAbortedError(f"cleaning of {cleanable.topic_partition} stops with the cleaner")
        if cleanable.log.is_closed:
            raise CleaningAbortedError(f"the log of {cleanable.topic_partition} was closed")
        abort_if_truncated(cleanable)
        self._take(size)

    def _report(
        self, cleanable: LogToClean, stats: CleanerStats, engine: str, duration_ms: int, *, dry_run: bool
    ) -> RoundReport:
        return RoundReport(
            finished_ms=self._time.milliseconds(),
            duration_ms=duration_ms,
            dry_run=dry_run,
            first_dirty_offset=cleanable.first_dirty_offset,
            end_offset=stats.end_offset,
            bytes_before=stats.bytes_before,
            bytes_after=stats.bytes_after,
            bytes_read=stats.bytes_read,
            bytes_written=stats.bytes_written,
            records_before=stats.records_before,
            records_after=stats.records_after,
            map_utilization=stats.map_utilization,
            collision_rate=stats.collision_rate,
            spilled_bytes=stats.spilled_bytes,
            unreadable=tuple(str(batch) for batch in stats.unreadable),
            unreadable_batches=stats.unreadable_batches,
            keyless_records=stats.keyless_records,
            engine=engine,
        )


def abort_if_truncated(cleanable: LogToClean) -> None:
    """Raise CleaningAbortedError if the log was truncated below ``first_uncleanable_offset`` in the round: a superseded
    record may be its key's newest again, and records that were appended after the truncation are dirty."""
    if cleanable.log.clean_bound < cleanable.first_uncleanable_offset:
        raise CleaningAbortedError(f"the log of {cleanable.topic_partition} was truncated")
