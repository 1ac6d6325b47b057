"""Readers during swaps of segments: threads fetch and compare while rounds replace the segments (fault F22 of
docs/internals/faults.md)."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.cleaning import NOW_MS, LogWriter, compacted, open_log, whole
from tests.support.slices import content_of
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.fetch import FetchIsolation
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record

ROUNDS = 12
READERS = 3


def fetch(log: UnifiedLog, offset: int) -> list[Record]:
    """Fetch once as a consumer does, through the promised slice."""
    found = log.read(offset, 1 << 16, isolation=FetchIsolation.LOG_END, min_one_message=True).records
    return [record for batch in iter_batches(content_of(found)) for record in batch.records()]


class Reader(threading.Thread):
    """Reads the log from end to end, again and again; keeps the first thing that is wrong."""

    def __init__(self, log: UnifiedLog, written: dict[int, bytes], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._log, self._written, self._stop_reading = log, written, stop
        self.wrong: list[str] = []
        self.passes = 0

    def run(self) -> None:
        while not (self._stop_reading.is_set() and self.passes):
            self._pass()
            self.passes += 1

    def _pass(self) -> None:
        offset, last = 0, -1
        end = self._log.log_end_offset
        while offset < end:
            records = fetch(self._log, offset)
            for record in records:
                if record.offset <= last or self._written[record.offset] != record.value:
                    self.wrong.append(f"offset {record.offset} after {last}")
                last = max(last, record.offset)
            if not records:
                return
            offset = max(offset + 1, records[-1].offset + 1)


def test_readers_see_old_or_new_segments_and_never_another_value(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=2000, file_delete_delay_ms=0))
    writer, written, stop = LogWriter(log), dict[int, bytes](), threading.Event()
    cleaner = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024))
    readers = [Reader(log, written, stop) for _ in range(READERS)]
    first_dirty = 0
    for number in range(ROUNDS):
        for index in range(60):
            value = b"%d-%d" % (number, index)
            written[log.log_end_offset] = value
            writer.append([(b"key %d" % (index % 25), value)])
        if number == 1:
            for reader in readers:
                reader.start()
        writer.roll()
        cleanable = whole(log, first_dirty)
        cleaner.clean(cleanable, NOW_MS)
        first_dirty = cleanable.first_uncleanable_offset
        log.environment.deletions.run()
    stop.set()
    for reader in readers:
        reader.join()

    assert [reader.wrong for reader in readers] == [[]] * READERS
    assert all(reader.passes for reader in readers)
    assert len({record.key for record in fetch(log, 0)}) == len(fetch(log, 0))
