"""Logs for the cleaner's tests: functions that create, fill and read them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import FileSystem, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)

PARTITION = TopicPartition("compacted", 0)
NOW_MS = 1_700_000_000_000
Pair = tuple[bytes | None, bytes | None]


def compacted(**overrides: Any) -> LogConfig:
    """Build a compacted topic's configuration; ``overrides`` are keys with underscores for dots."""
    values = {name.replace("_", "."): value for name, value in overrides.items()}
    return LogConfig({"cleanup.policy": "compact", "message.timestamp.type": "CreateTime", **values})


def open_log(
    directory: Path,
    config: LogConfig | None = None,
    file_system: FileSystem | None = None,
    *,
    clean: bool = False,
    log_start_offset: int = 0,
) -> UnifiedLog:
    """Create or open the log of ``PARTITION`` below ``directory``."""
    environment = LogEnvironment(file_system or OsFileSystem(), ManualTime(NOW_MS))
    path = directory / PARTITION.directory_name
    path.mkdir(exist_ok=True)
    return load_log(
        LoadRequest(
            topic_partition=PARTITION,
            topic_id=None,
            directory=str(path),
            config=config or compacted(),
            environment=environment,
            directory_state=DirectoryState(str(directory)),
            log_start_offset=log_start_offset,
            recovery_point=0,
            clean=clean,
        )
    )


class LogWriter:
    """Appends to a log as a producer, a transactional producer or a coordinator would."""

    def __init__(self, log: UnifiedLog) -> None:
        self.log = log
        self._sequences: dict[tuple[int, int], int] = {}
        self._clock = itertools.count(NOW_MS - 1_000_000)

    def append(self, pairs: Iterable[Pair], options: BatchOptions | None = None, **fields: Any) -> int:
        """Append one batch of key-value pairs; returns its first offset."""
        records = [Record(i, next(self._clock), key, value) for i, (key, value) in enumerate(pairs)]
        return self._write(build_batch(records, (options or BatchOptions())._replace(**fields)))

    def transactional(self, producer_id: int, pairs: Iterable[Pair], epoch: int = 0, **fields: Any) -> int:
        """Append one batch of an open transaction."""
        batch = list(pairs)
        sequence = self._sequences.get((producer_id, epoch), 0)
        self._sequences[producer_id, epoch] = sequence + len(batch)
        fields = {"is_transactional": True, **fields}
        return self.append(batch, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
        """Append the marker that ends a transaction."""
        marker = end_transaction_marker(
            EndTransactionMarker(commit, 0), timestamp=next(self._clock), producer_id=producer_id, producer_epoch=epoch
        )
        return self._write(marker, AppendOrigin.COORDINATOR)

    def _write(self, batch: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT) -> int:
        info = self.log.append_as_leader(memoryview(batch), leader_epoch=0, origin=origin)
        self.log.update_high_watermark(self.log.log_end_offset)
        return info.first_offset

    def roll(self) -> None:
        """Close the active segment."""
        self.log.roll()


def whole(log: UnifiedLog, first_dirty_offset: int = 0) -> LogToClean:
    """Return a log for the cleaner, dirty up to the active segment or the segment of the last stable offset."""
    limit = min(log.last_stable_offset, log.segments.active.base_offset)
    segment = log.segments.floor(limit)
    assert segment is not None
    end = limit if segment.base_offset == limit else segment.base_offset
    return LogToClean(log.topic_partition, log, first_dirty_offset, max(end, first_dirty_offset))


def log_bytes(log: UnifiedLog) -> bytes:
    """Read the bytes of all segments."""
    return b"".join(segment.records.read_at(0, segment.size) for segment in log.segments)


def records_of(log: UnifiedLog, *, control: bool = False) -> list[Record]:
    """Read all data records (or all control records) in offset order, sequences left out."""
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for batch in iter_batches(log_bytes(log))
        if batch.is_control == control
        for record in batch.records()
    ]


def latest(pairs: Iterable[tuple[int, bytes | None, bytes | None]]) -> Mapping[bytes, int]:
    """Map each key to its last offset: the model of an offset map."""
    return {key: offset for offset, key, _ in pairs if key is not None}


def file_names(log: UnifiedLog) -> list[str]:
    """List the files in the log's directory."""
    return sorted(os.listdir(log.directory))
