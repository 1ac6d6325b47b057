"""The process has no free descriptor, at each opening of a file by the log in turn (fault F12 of
docs/internals/faults.md). Nothing goes offline or is refused for it, and all works again when descriptors are free."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import NOW_MS, append, batch, marker, producer_batch, read_records
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import KafkaStorageError

ID = bytes(range(16))
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
CONFIG = LogConfig({"segment.bytes": 700, "index.interval.bytes": 100, "file.delete.delay.ms": 0, "flush.ms": 0})


class Scarcity:
    """A file system without a descriptor for one opening in three, while ``is_on``."""

    def __init__(self, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self._chance = chance
        self.is_on = False
        for name in ("open", "scandir"):
            monkeypatch.setattr(os, name, self._scarce(getattr(os, name)))

    def _scarce(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.is_on and self._chance.random() < 0.33:
                raise OSError(self._chance.choice([errno.EMFILE, errno.ENFILE]), "no descriptor")
            return real(*arguments, **options)

        return call


@pytest.mark.parametrize("seed", range(20))
def test_a_lack_of_descriptors_is_no_failure_of_a_disk(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, time = random.Random(seed), ManualTime(NOW_MS)
    scarcity = Scarcity(chance, monkeypatch)
    manager = LogManager([str(tmp_path)], OsFileSystem(), time, CONFIG)
    manager.startup()
    logs = [manager.get_or_create_log(partition, ID, CONFIG) for partition in PARTITIONS]
    sequences, ends = [0] * len(logs), [0] * len(logs)
    scarcity.is_on = True
    for _ in range(150):
        number = chance.randrange(len(logs))
        log = logs[number]
        with contextlib.suppress(KafkaStorageError):
            match chance.randrange(8):
                case 0:
                    manager.flush_dirty_logs()
                case 1:
                    manager.run_retention(time.milliseconds())
                case 2:
                    manager.checkpoint_recovery_points()
                case 3:
                    log.roll()
                case 4:
                    append(log, marker(7, commit=chance.random() < 0.5), AppendOrigin.COORDINATOR)
                case 5:
                    append(log, batch(2))
                case _:
                    append(log, producer_batch(sequences[number], transactional=True))
                    sequences[number] += 1
        ends[number] = log.log_end_offset
        assert manager.directories[0].is_online
        assert all(log.failure is None for log in logs)
    scarcity.is_on = False
    for log, end in zip(logs, ends, strict=True):
        append(log, batch(1))
        assert log.log_end_offset == end + 1
        log.flush()
        assert log.recovery_point == end + 1
        assert len({record.offset for record in read_records(log)}) <= end + 1
    assert not manager.refused
