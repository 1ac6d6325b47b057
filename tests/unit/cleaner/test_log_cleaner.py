"""Cleaner threads: requests, quarantine, supervision, settings. No sleeps: every wait is for a future or a state."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.cleaning import PARTITION, LogWriter, compacted, open_log, records_of
from tidelog.cleaner.cleaner_manager import CleaningState
from tidelog.cleaner.config import CLEANER_CONFIG_DEF, CleanerConfig
from tidelog.cleaner.engine.engine import Engine, ReferenceEngine
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.cleaner.log_cleaner import CleaningUnavailableError, LogCleaner
from tidelog.cleaner.throttle import Throttle
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.thread_priority import NICENESS
from tidelog.log.system.time import ManualTime, SystemTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.errors import KafkaStorageError

CONFIG = replace(CleanerConfig.parse(), backoff_ms=1_000_000)
WAIT_S = 30.0


def filled(directory: Path, config: LogConfig | None = None) -> UnifiedLog:
    log = open_log(directory, config)
    LogWriter(log).append([(b"a", b"1"), (b"a", b"2")])
    return log


@contextmanager
def running(logs: list[UnifiedLog], config: CleanerConfig = CONFIG, **options: Any) -> Iterator[LogCleaner]:
    options = {"load_engine": lambda: ReferenceEngine(), **options}
    cleaner = LogCleaner(lambda: list(logs), OsFileSystem(), SystemTime(), config, **options)
    cleaner.startup()
    try:
        yield cleaner
    finally:
        cleaner.shutdown()


def test_a_request_cleans_all_records_before_it(tmp_path: Path) -> None:
    log = filled(tmp_path)

    with running([log]) as cleaner:
        report = cleaner.request_clean(PARTITION).result(WAIT_S)
        (status,) = cleaner.status()

    assert [record.offset for record in records_of(log)] == [1]
    assert (report.records_before, report.records_after, report.dry_run) == (2, 1, False)
    assert (status.state, status.first_dirty_offset, status.last_round) == (CleaningState.IDLE, 2, report)
    assert cleaner.counters.rounds == 1
    assert cleaner.counters.records_dropped == 1


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_cleaner_threads_have_a_lower_priority(tmp_path: Path) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    threads: list[int] = []
    seen: list[int] = []

    def load() -> Engine:
        threads.append(threading.get_native_id())
        seen.append(os.getpriority(os.PRIO_PROCESS, threads[0]))
        return ReferenceEngine()

    with running([filled(tmp_path)], load_engine=load) as cleaner:
        cleaner.request_clean(PARTITION).result(WAIT_S)
        seen.append(os.getpriority(os.PRIO_PROCESS, threads[0]))

    assert seen == [before, max(before, NICENESS)], "not while an engine is loaded, but from then on"
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_dry_run_removes_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path, compacted(min_cleanable_dirty_ratio="1"))  # never due by itself, once the run has rolled it

    with running([log]) as cleaner:
        report = cleaner.request_clean(PARTITION, dry_run=True).result(WAIT_S)

    assert len(records_of(log)) == 2
    assert (report.records_after, report.dry_run) == (1, True)
    assert cleaner.manager.measure(log).first_dirty_offset == 0


def test_due_log_is_cleaned_without_a_request(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.roll()

    with running([log]) as cleaner:
        cleaner.request_clean(TopicPartition("nothing", 0)).exception(WAIT_S)
        while cleaner.counters.rounds == 0:
            pass

    assert [record.offset for record in records_of(log)] == [1]


def test_unknown_partition_and_stopped_cleaner_say_so(tmp_path: Path) -> None:
    with (
        running([filled(tmp_path)]) as cleaner,
        pytest.raises(CleaningUnavailableError, match="not a compacted partition"),
    ):
        cleaner.request_clean(TopicPartition("other", 1)).result(WAIT_S)

    with pytest.raises(CleaningUnavailableError, match="does not run"):
        cleaner.request_clean(PARTITION).result(WAIT_S)


@pytest.mark.parametrize("error", [MemoryError("no memory"), ValueError("a mistake"), OSError(5, "disk")])
def test_any_failure_quarantines_the_partition_and_the_thread_continues(tmp_path: Path, error: Exception) -> None:
    log, fail = filled(tmp_path), [True]

    def load() -> Engine:
        if fail:
            raise error
        return ReferenceEngine()

    with running([log], load_engine=load) as cleaner:
        with pytest.raises(type(error)):
            cleaner.request_clean(PARTITION).result(WAIT_S)
        (status,) = cleaner.status()
        assert status.state is CleaningState.QUARANTINED
        assert type(error).__name__ in str(status.last_error)
        fail.clear()
        cleaner.request_clean(PARTITION).result(WAIT_S)

    assert cleaner.counters.failed_rounds == 1
    assert cleaner.counters.dead_threads == 0
    assert [record.offset for record in records_of(log)] == [1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_dies_is_replaced_and_its_partition_quarantined(tmp_path: Path) -> None:
    log, dead = filled(tmp_path), list[threading.Thread]()

    def load() -> Engine:
        if not dead:
            dead.append(threading.current_thread())
            raise KeyboardInterrupt
        return ReferenceEngine()

    with running([log], load_engine=load) as cleaner:
        with pytest.raises(KeyboardInterrupt):
            cleaner.request_clean(PARTITION).result(WAIT_S)
        dead[0].join(WAIT_S)  # the reason of its death is logged in this test, not in the next one
        report = cleaner.request_clean(PARTITION).result(WAIT_S)
        assert cleaner.live_threads == 1

    assert cleaner.counters.dead_threads == 1
    assert report.records_after == 1


def test_settings_that_change_hold_from_the_next_piece_of_work(tmp_path: Path) -> None:
    log, current = filled(tmp_path), [CONFIG]

    with running([log], current_config=lambda: current[0]) as cleaner:
        current[0] = replace(CONFIG, threads=3, io_max_bytes_per_second=1e9)
        cleaner.request_clean(PARTITION).result(WAIT_S)
        while cleaner.live_threads < 3:
            pass
        current[0] = replace(CONFIG, threads=1)
        for _ in range(4):
            cleaner.request_clean(PARTITION).result(WAIT_S)
        while cleaner.live_threads > 1:
            cleaner.request_clean(PARTITION).result(WAIT_S)

    assert cleaner.config.threads == 1


def test_switched_off_cleaner_starts_nothing(tmp_path: Path) -> None:
    with running([filled(tmp_path)], replace(CONFIG, enabled=False)) as cleaner:
        assert cleaner.live_threads == 0


def test_round_over_a_log_that_is_deleted_ends_quietly(tmp_path: Path) -> None:
    log = filled(tmp_path)

    def load() -> Engine:
        log.abandon()
        return ReferenceEngine()

    with running([log], load_engine=load) as cleaner:
        error = cleaner.request_clean(PARTITION).exception(WAIT_S)

    assert "was closed" in str(error)
    assert cleaner.counters.failed_rounds == 0


def test_throttle_waits_until_its_rate_is_kept() -> None:
    waits: list[float] = []
    time = ManualTime()
    throttle = Throttle(1000.0, time, waits.append)

    throttle.take(0)
    throttle.take(500)
    throttle.take(500)
    time.advance(1000)
    throttle.take(100)

    assert waits == [0.5, 1.0, 0.1]


def test_config_is_kafkas() -> None:
    config = CleanerConfig.parse({"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "1000000"})

    assert (config.enabled, config.threads, config.map_bytes_per_thread) == (True, 2, 500_000)
    assert (config.io_buffer_size, config.load_factor, config.backoff_ms) == (524288, 0.9, 15_000)
    assert all(key.dynamic for key in CLEANER_CONFIG_DEF if key.name != "log.cleaner.enable")
    with pytest.raises(ConfigError, match=r"log\.cleaner\.hash\.algorithm"):
        CleanerConfig.parse({"log.cleaner.hash.algorithm": "crc"})


def test_a_second_thread_waits_for_the_modules_of_a_round() -> None:
    """Both cleaner threads begin their first round at once: neither may see a module that is half imported."""
    script = """
import sys, threading
from tidelog.cleaner.round_runner import _import_cleaner
first = threading.Thread(target=_import_cleaner)
first.start()
while "tidelog.cleaner.round.cleaner" not in sys.modules:
    pass
_import_cleaner().CleanerOptions
first.join()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_round_ends_when_its_log_is_truncated(tmp_path: Path) -> None:
    """Otherwise the round would remove a record because of a later one that the truncation has removed."""
    log = filled(tmp_path, compacted(min_cleanable_dirty_ratio=1))  # not due: only the request begins a round
    log.roll()
    LogWriter(log).append([(b"a", b"3")])
    log.roll()

    def load() -> Engine:
        log.truncate_to(2)
        return ReferenceEngine()

    with running([log], load_engine=load) as cleaner, pytest.raises(CleaningAbortedError, match="was truncated"):
        cleaner.request_clean(PARTITION).result(WAIT_S)

    assert cleaner.counters.failed_rounds == 0


def test_an_error_in_bytes_that_were_cut_is_no_failure(tmp_path: Path) -> None:
    """Otherwise a truncation would quarantine its partition."""
    log = filled(tmp_path, compacted(min_cleanable_dirty_ratio=1))

    class CutShort(ReferenceEngine):
        def scan(self, *_: Any) -> NoReturn:
            log.truncate_to(1)
            raise KafkaStorageError("the file ends before the batch")

    with running([log], load_engine=CutShort) as cleaner, pytest.raises(CleaningAbortedError, match="was truncated"):
        cleaner.request_clean(PARTITION).result(WAIT_S)

    assert (cleaner.counters.failed_rounds, cleaner.manager.status(log).state) == (0, CleaningState.IDLE)
