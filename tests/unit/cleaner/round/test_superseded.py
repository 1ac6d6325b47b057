"""The index pass with a helper thread, which prepares the next chunk while the present one is put into the map."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from tests.support.cleaning import NOW_MS, LogWriter, compacted, open_log, records_of, whole
from tidelog.cleaner.engine.engine import CompiledEngine, ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, RoundHooks
from tidelog.protocol.record.compression import CompressionType

OPTIONS = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)
PLAIN_STEPS = 3
WAIT_S = 30.0


class WatchedEngine(CompiledEngine):
    """A compiled engine whose parsing in the helper thread can be waited for, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self._parse = self.parse
        self._parsed = threading.Condition()
        self.steps_ahead = self._asked = 0
        self.parse = self._parse_and_count

    def _parse_and_count(self, *arguments: Any) -> int:
        found: int = self._parse(*arguments)
        if threading.current_thread() is not threading.main_thread():
            with self._parsed:
                self.steps_ahead += 1
                self._parsed.notify_all()
        return found

    def wait_for_next(self, _size: int = 0) -> None:
        """Return when the helper thread has prepared the step after the one that is worked on."""
        self._asked += 1
        with self._parsed:
            assert self._parsed.wait_for(lambda: self.steps_ahead >= min(self._asked, PLAIN_STEPS), WAIT_S)


def fill(directory: Path) -> Any:
    """Write a compressed batch that fills a chunk, then PLAIN_STEPS chunks of plain batches, the last key again."""
    directory.mkdir()
    log = open_log(directory, compacted())
    writer = LogWriter(log)
    writer.append([(b"packed", os.urandom(5000))], compression=CompressionType.LZ4)
    for number in range(4 * 1024 * (PLAIN_STEPS - 1) // 110 + 10):
        writer.append([(b"key-%04d" % number, b"v" * 30)])
    writer.append([(b"key-0000", b"newer")])
    writer.roll()
    return log


def test_keys_of_a_step_stay_while_the_next_one_is_prepared(tmp_path: Path) -> None:
    plain, watched = fill(tmp_path / "plain"), fill(tmp_path / "watched")
    engine = WatchedEngine()
    Cleaner(ReferenceEngine(), OPTIONS).clean(whole(plain), NOW_MS)

    Cleaner(engine, OPTIONS).clean(whole(watched), NOW_MS, RoundHooks(check=engine.wait_for_next))

    assert engine.steps_ahead == PLAIN_STEPS
    assert [record.key for record in records_of(watched)] == [record.key for record in records_of(plain)]
