"""Reads of a log while a broker appends to it, rolls, trims and cleans it.

Each pass plans and then reads, as a query does, and is checked against what was written: no value is another's, no
offset comes twice, and nothing is missing that retention or cleaning did not take. A round of either that runs between
planning and reading may take all that was planned; so what must be there is asked of passes beside which no round
began, and the last pass is always one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support.cleaning import NOW_MS, PARTITION, LogWriter, compacted, open_log, whole
from tidelog.cleaner.checkpoint import CleanerCheckpoint
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, RoundHooks
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan.plan import plan
from tidelog.pipeline.plan.request import batch_request

ROUNDS = 12
RECORDS = 60
KEYS = 25
SEGMENT_BYTES = 2000


@dataclass(slots=True)
class Pass:
    """Result of one query: the rows, the end of the log when it was planned, and whether a cleaner's round began in the
    meantime."""

    end: int
    values: Mapping[int, bytes]
    was_disturbed: bool


@dataclass
class Query(threading.Thread):
    """A reader that reads the log from end to end repeatedly, until it is stopped."""

    root: Path
    options: Mapping[str, str] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    passes: list[Pass] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    #: Rounds of cleaning or retention that began; counted by who runs them.
    rounds: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self.stopped.is_set()
            try:
                self.passes.append(self._pass())
            except PipelineError as error:
                self.errors.append(str(error))

    def _pass(self) -> Pass:
        rounds = self.rounds
        options = parse_options(
            {"path": str(self.root), "subscribe": PARTITION.topic, "bytesPerTask": "700", **self.options}
        )
        request = batch_request(options)
        isolation = Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
        read = ReadOptions(isolation, fail_on_data_loss=options.fail_on_data_loss)
        seen: list[tuple[int, bytes]] = []
        for piece in plan(request):
            for batch in read_slice(piece, Columns(("offset", "value")), options=read):
                seen += zip(*(column.to_pylist() for column in batch), strict=True)
        offsets = [offset for offset, _ in seen]
        assert offsets == sorted(set(offsets)), "ascending, none twice"
        return Pass(request.ranges[0].end, dict(seen), was_disturbed=self.rounds != rounds)

    def finish(self) -> None:
        self.stopped.set()
        self.join()
        assert self.passes


def write_round(log: UnifiedLog, writer: LogWriter, number: int, written: dict[int, bytes]) -> None:
    for index in range(RECORDS):
        value = b"%d-%d" % (number, index)
        written[log.log_end_offset] = value
        writer.append([(b"key %d" % (index % KEYS), value)])


def clean(cleaner: Cleaner, cleanable: LogToClean) -> int:
    """Run a round that saves how far it is as the broker's threads do; returns where the next one begins."""
    checkpoint = CleanerCheckpoint(OsFileSystem())
    checkpoint.begin_round(cleanable.log)
    hooks = RoundHooks(progress=lambda offset: checkpoint.save(cleanable.log, offset))
    stats = cleaner.clean(cleanable, NOW_MS, hooks)
    checkpoint.save(cleanable.log, stats.end_offset)
    return cleanable.first_uncleanable_offset


def test_queries_beside_appends_and_rolls_find_all_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=SEGMENT_BYTES))
    writer, written = LogWriter(log), dict[int, bytes]()
    write_round(log, writer, 0, written)
    query = Query(tmp_path)
    query.start()
    for number in range(1, ROUNDS):
        write_round(log, writer, number, written)
    query.finish()
    assert not query.errors
    for seen in query.passes:
        assert seen.values == {offset: value for offset, value in written.items() if offset < seen.end}
    assert query.passes[-1].end == log.log_end_offset


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_queries_beside_retention_find_all_records_from_the_first_one_on(
    tmp_path: Path, fail_on_data_loss: str
) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0))
    writer, written = LogWriter(log), dict[int, bytes]()
    write_round(log, writer, 0, written)
    query = Query(tmp_path, {"failOnDataLoss": fail_on_data_loss})
    query.start()
    for number in range(1, ROUNDS):
        write_round(log, writer, number, written)
        query.rounds += 1
        log.maybe_increment_log_start_offset(log.log_end_offset - 2 * RECORDS)
        log.delete_old_segments(NOW_MS)
        log.environment.deletions.run()
    query.finish()
    assert all("failOnDataLoss=false would go on" in error for error in query.errors)
    assert fail_on_data_loss == "true" or not query.errors
    assert not query.passes[-1].was_disturbed
    for seen in query.passes:
        first = min(seen.values, default=seen.end)
        expected = {offset: value for offset, value in written.items() if first <= offset < seen.end}
        if fail_on_data_loss == "true":
            assert seen.values == expected, "all from the first one on"
        assert seen.values.items() <= expected.items()
        assert seen.was_disturbed or max(seen.values) == seen.end - 1


def test_queries_beside_cleaning_find_the_last_record_of_every_key(tmp_path: Path) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0))
    writer, written = LogWriter(log), dict[int, bytes]()
    cleaner = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024))
    write_round(log, writer, 0, written)
    queries = [Query(tmp_path), Query(tmp_path)]
    for query in queries:
        query.start()
    first_dirty = 0
    for number in range(1, ROUNDS):
        write_round(log, writer, number, written)
        writer.roll()
        cleanable = whole(log, first_dirty)
        for query in queries:
            query.rounds += 1
        first_dirty = clean(cleaner, cleanable)
        log.environment.deletions.run()
    for query in queries:
        query.finish()
        assert not query.passes[-1].was_disturbed
        assert not query.errors
        for seen in query.passes:
            assert seen.values.items() <= written.items()
            latest = {offset % RECORDS % KEYS: offset for offset in sorted(written) if offset < seen.end}
            assert seen.was_disturbed or set(latest.values()) <= seen.values.keys(), "the last record of every key"


@pytest.mark.parametrize("start_after", [1, 2])
def test_cleaning_of_aborted_transactions(tmp_path: Path, start_after: int) -> None:
    log = open_log(tmp_path, compacted(segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0))
    writer = LogWriter(log)
    cleaner = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024))
    query = Query(tmp_path, {"kafka.isolation.level": "read_committed"})
    first_dirty, last_good = 0, -1
    for number in range(ROUNDS):
        for index in range(8):
            commit = index % 2 == 0
            first = writer.transactional(
                index, [(b"key %d" % index, b"good" if commit else b"bad"), (b"x", b"good" if commit else b"bad")]
            )
            writer.end(index, commit=commit)
            last_good = first if commit else last_good
        if number == start_after:
            query.start()
        writer.roll()
        cleanable = whole(log, first_dirty)
        query.rounds += 1
        first_dirty = clean(cleaner, cleanable)
        log.environment.deletions.run()
    query.finish()
    assert not query.errors
    assert not query.passes[-1].was_disturbed
    for seen in query.passes:
        assert set(seen.values.values()) == {b"good"} or (seen.was_disturbed and not seen.values)
    assert last_good in query.passes[-1].values
