"""Logs for tests: functions that build batches, open a log in a temporary directory, append to it and read it."""

from __future__ import annotations

import os
from typing import Any

from tests.support.slices import content_of
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.fetch import FetchIsolation
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import FileSystem, OsFileSystem
from tidelog.log.system.time import ManualTime, Time
from tidelog.log.unified_log import LogAppendInfo, UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("topic", 0)


def batch(count: int = 1, *, timestamp: int = NOW_MS, value: bytes = b"value", key: bytes | None = b"key") -> bytearray:
    """Build a batch as a producer sends it, with offsets from 0 on."""
    return build_batch([Record(i, timestamp + i, key, value) for i in range(count)])


def producer_batch(
    sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, transactional: bool = False,
    timestamp: int = NOW_MS,
) -> bytearray:  # fmt: skip
    """Build a batch of an idempotent producer."""
    options = BatchOptions(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
    )
    return build_batch([Record(i, timestamp + i, b"k", b"v%d" % sequence) for i in range(count)], options)


def marker(producer_id: int, epoch: int = 0, *, commit: bool, coordinator_epoch: int = 0) -> bytearray:
    """Build an end-of-transaction control batch."""
    content = EndTransactionMarker(commit, coordinator_epoch)
    return end_transaction_marker(content, timestamp=NOW_MS, producer_id=producer_id, producer_epoch=epoch)


class LogBench:
    """A directory with one partition, whose log can be opened again and again."""

    def __init__(
        self, root: str, file_system: FileSystem | None = None, time: Time | None = None, **config: Any
    ) -> None:
        self.root = root
        self.directory = os.path.join(root, PARTITION.directory_name)
        self.time = time or ManualTime(NOW_MS)
        self.file_system = file_system or OsFileSystem()
        self.config = LogConfig({name.replace("_", "."): value for name, value in config.items()})
        self.state = DirectoryState(root)
        self.environment = LogEnvironment(self.file_system, self.time)

    def open(self, *, clean: bool = False, recovery_point: int = 0, log_start_offset: int = 0) -> UnifiedLog:
        self.file_system.make_directory(self.directory)
        self.state = DirectoryState(self.root)
        log = load_log(
            LoadRequest(
                PARTITION,
                self.directory,
                self.config,
                self.environment,
                self.state,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                clean=clean,
            )
        )
        log.update_high_watermark(log.log_end_offset)
        return log


def append(
    log: UnifiedLog, records: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT, epoch: int = 0
) -> LogAppendInfo:
    """Append a batch, and advance the high watermark to the log end, as the only replica does."""
    info = log.append_as_leader(memoryview(records), leader_epoch=epoch, origin=origin)
    log.update_high_watermark(log.log_end_offset)
    return info


def read_bytes(
    log: UnifiedLog, offset: int, max_bytes: int = 1 << 20, isolation: FetchIsolation = FetchIsolation.LOG_END
) -> bytes:
    """Read the bytes that a fetch would send."""
    return content_of(log.read(offset, max_bytes, isolation=isolation, min_one_message=True).records)


def read_records(log: UnifiedLog, offset: int = 0, isolation: FetchIsolation = FetchIsolation.LOG_END) -> list[Record]:
    """Read every record from ``offset`` on, fetched slice by slice as a consumer does."""
    records: list[Record] = []
    while True:
        data = read_bytes(log, offset, isolation=isolation)
        found = [record for entry in iter_batches(data) for record in entry.records() if record.offset >= offset]
        if not data:
            return records
        records += found
        offset = max(entry.last_offset for entry in iter_batches(data)) + 1


def values(log: UnifiedLog, offset: int = 0) -> dict[int, bytes | None]:
    """Map offsets to the values of all records."""
    return {record.offset: record.value for record in read_records(log, offset)}
