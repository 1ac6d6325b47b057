"""Random operations on a log against a dict of its expected contents; ``log/check`` after each reopening. Seeds make
failures repeatable."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import NOW_MS, LogBench, append, batch, producer_batch, read_records, values
from tidelog.log.check import check_directory
from tidelog.log.segment.segment import CLEANED_SUFFIX, LogSegment
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError, OffsetOutOfRangeError, OutOfOrderSequenceNumberError

SEEDS = int(os.environ.get("TIDELOG_FUZZ_SEEDS", "40"))
STEPS = 60


class Model:
    """The log under test and what it must hold."""

    def __init__(self, root: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = FaultyFileSystem(root, seed)
        self.bench = LogBench(
            root, self.disk, segment_bytes=self.random.choice([400, 1500, 6000]), retention_bytes=5000,
            index_interval_bytes=self.random.choice([0, 100, 1000]), file_delete_delay_ms=0,
            segment_index_bytes=self.random.choice([48, 1 << 20]),
        )  # fmt: skip
        self.log: UnifiedLog = self.bench.open()
        self.expected: dict[int, bytes] = {}
        self.end = 0
        self.sequence = 0
        self.clock = 0

    def _append(self, records: bytearray, contents: list[bytes]) -> bool:
        try:
            info = append(self.log, records)
        except KafkaStorageError:
            return False
        assert info.first_offset == self.end
        for number, value in enumerate(contents):
            self.expected[self.end + number] = value
        self.end += len(contents)
        return True

    def op_append(self) -> None:
        count = self.random.randrange(1, 4)
        self.clock += self.random.randrange(-5, 20)
        value = b"value %d " % self.random.randrange(10**6) * self.random.randrange(1, 5)
        self._append(batch(count, value=value, timestamp=NOW_MS + self.clock), [value] * count)

    def op_produce(self) -> None:
        if self._append(producer_batch(self.sequence), [b"v%d" % self.sequence]):
            self.sequence += 1

    def op_duplicate(self) -> None:
        if self.sequence:
            try:
                assert append(self.log, producer_batch(self.sequence - 1)).duplicate
            except OutOfOrderSequenceNumberError:
                raise AssertionError("the last batch of a producer is forgotten") from None

    def op_roll(self) -> None:
        self.log.roll()

    def op_flush(self) -> None:
        self.log.flush()

    def op_truncate(self) -> None:
        offset = self.random.randrange(max(self.end - 12, self.log.log_start_offset), self.end + 1)
        # A batch that holds the offset goes as a whole.
        self.log.truncate_to(offset)
        self.end = self.log.log_end_offset
        assert self.end <= offset
        self.expected = {key: value for key, value in self.expected.items() if key < self.end}
        self.sequence = self._sequence_in_log()

    def _sequence_in_log(self) -> int:
        entry = self.log.producer_state.producers.get(7)
        return entry.last_sequence + 1 if entry is not None else 0

    def op_retention(self) -> None:
        self.log.delete_old_segments(NOW_MS)
        self.bench.environment.deletions.run()

    def op_delete_records(self) -> None:
        if self.end:
            self.log.maybe_increment_log_start_offset(self.random.randrange(self.end + 1))

    def op_rewrite(self) -> None:
        """Run a cleaner's round that drops nothing: the oldest segments become one."""
        old = list(self.log.segments)[:-1][: self.random.randrange(1, 4)]
        if not old:
            return
        copy = LogSegment.create(
            self.log.directory, old[0].base_offset, self.log.config, self.disk, self.bench.time, CLEANED_SUFFIX
        )
        for source in old:
            for header, data in source.batches():
                copy.append(bytes(data), header.last_offset, header.max_timestamp, header.last_offset)
                if copy.offset_index.is_full or copy.time_index.is_full:
                    copy.close()
                    copy.delete_files()
                    return
        copy.on_become_inactive()
        copy.flush()
        self.log.replace_segments([copy], old)

    def op_read(self) -> None:
        start = self.log.log_start_offset
        if start < self.end:
            offset = self.random.randrange(start, self.end)
            found = read_records(self.log, offset)
            assert [(r.offset, r.value) for r in found] == [(o, self.expected[o]) for o in range(offset, self.end)]
        for outside in (start - 1, self.end + 1):
            with pytest.raises(OffsetOutOfRangeError):
                read_records(self.log, outside)

    def op_reopen(self) -> None:
        start = self.log.log_start_offset
        self.log.flush()
        self.log.close()
        self.bench.environment.deletions.run(everything=True)
        assert check_directory(OsFileSystem(), self.bench.directory) == []
        self.log = self.bench.open(clean=True, recovery_point=self.end, log_start_offset=start)

    def op_kill(self) -> None:
        start, point = self.log.log_start_offset, self.log.recovery_point
        self.disk.kill()
        if self.random.random() < 0.5:
            with open(self.log.segments.active.records.path, "ab") as file:
                file.write(self.random.randbytes(self.random.randrange(1, 100)))
        self.log = self.bench.open(recovery_point=point, log_start_offset=start)

    def op_full_disk(self) -> None:
        self.disk.fail_at[len(self.disk.calls)] = 28
        self.op_append()
        self.disk.fail_at.clear()

    def check(self) -> None:
        log = self.log
        assert log.log_end_offset == self.end
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= self.end
        kept = {offset: value for offset, value in self.expected.items() if offset >= log.log_start_offset}
        assert values(log, log.log_start_offset) == kept


WEIGHTS = {
    Model.op_append: 20, Model.op_produce: 10, Model.op_duplicate: 2, Model.op_roll: 2, Model.op_flush: 3,
    Model.op_truncate: 2, Model.op_retention: 2, Model.op_delete_records: 1, Model.op_rewrite: 2, Model.op_read: 6,
    Model.op_reopen: 2, Model.op_kill: 3, Model.op_full_disk: 2,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_operations_agree_with_the_model(tmp_path: Path, seed: int) -> None:
    model = Model(str(tmp_path), seed)
    for _ in range(STEPS):
        operation = model.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        operation(model)
        assert model.log.log_end_offset == model.end, operation.__name__
    model.check()
    model.op_reopen()
    model.check()
