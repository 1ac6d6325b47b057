"""Data directories for the tests of the pipeline's jobs: logs as a broker writes them, with small segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    CLEANER_OFFSET_FILE,
    MetaProperties,
    write_meta_properties,
    write_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.pipeline.jobs.source import LogSource
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


class DataDirectory:
    """A broker's data directory. Logs stay open until ``close``."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.path = path
        values = {name.replace("_", "."): value for name, value in config.items()}
        self.config = LogConfig({"segment.bytes": 4096, "index.interval.bytes": 200, **values})
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        path.mkdir(exist_ok=True)
        write_meta_properties(OsFileSystem(), str(path), MetaProperties("cluster", 1, None))

    def source(self, **fields: Any) -> LogSource:
        """Return all logs of the directory as a job's source."""
        return LogSource((str(self.path),), **fields)

    def log(self, topic: str, partition: int = 0, topic_id: bytes = TOPIC_ID) -> UnifiedLog:
        """Open or create the partition's log."""
        name = TopicPartition(topic, partition)
        if name not in self.logs:
            directory = os.path.join(self.path, name.directory_name)
            os.makedirs(directory, exist_ok=True)
            environment = LogEnvironment(OsFileSystem(), ManualTime(NOW_MS + 86_400_000))
            request = LoadRequest(
                name, directory, self.config, environment, DirectoryState(str(self.path)), topic_id=topic_id
            )
            log = self.logs[name] = load_log(request)
            log.update_high_watermark(log.log_end_offset)
        return self.logs[name]

    def close(self) -> None:
        """Flush and close the logs, as a broker does when it stops."""
        for log in self.logs.values():
            log.flush()
            log.close()
        self.logs.clear()


def damage_first_batch(path: Path) -> None:
    """Flip a bit in the first batch of a segment file; its CRC is wrong then."""
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)


def say_cleaned(path: Path, offset: int, topic: str = "t", partition: int = 0) -> None:
    """Write the cleaner's checkpoint of a data directory, as if a partition was clean up to ``offset``."""
    write_offset_checkpoint(OsFileSystem(), str(path / CLEANER_OFFSET_FILE), {TopicPartition(topic, partition): offset})


def write(log: UnifiedLog, records: Iterable[Record], **options: Any) -> int:
    """Append one batch; return the offset of its first record."""
    batch = build_batch(list(records), BatchOptions(**options))
    info = log.append_as_leader(memoryview(batch), leader_epoch=0)
    log.update_high_watermark(log.log_end_offset)
    return info.first_offset


def fill(log: UnifiedLog, batches: int, records: int = 5, **options: Any) -> list[Record]:
    """Append batches of keyed records, a minute apart; return the records with their offsets."""
    written = []
    for number in range(batches):
        batch = [
            Record(i, NOW_MS + 60_000 * number + i, b"key-%d" % ((number + i) % 7), b"value %d/%d" % (number, i) * 3)
            for i in range(records)
        ]
        first = write(log, batch, **options)
        written += [record._replace(offset=first + record.offset) for record in batch]
    return written


def end_transaction(log: UnifiedLog, producer_id: int, epoch: int = 0, *, commit: bool) -> None:
    """Append the marker that ends a producer's transaction."""
    content = EndTransactionMarker(commit, 0)
    marker = end_transaction_marker(content, timestamp=NOW_MS, producer_id=producer_id, producer_epoch=epoch)
    log.append_as_leader(memoryview(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


def raise_interrupt(*_: Any, **__: Any) -> None:
    """Raise KeyboardInterrupt: put in the place of a function at which a test kills a run."""
    raise KeyboardInterrupt


@contextmanager
def killed_at(target: object, name: str, replacement: Callable[..., object] = raise_interrupt) -> Iterator[None]:
    """Kill the run in the ``with`` block where it calls a function of ``target``. A run that does not is a failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, replacement)
        with pytest.raises(KeyboardInterrupt):
            yield
