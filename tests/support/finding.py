"""Logs of random records for the tests of searches by key, tag and time, and the full scan that gives the results."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tests.support.extensions import uncompiled
from tests.support.logs import NOW_MS, LogBench
from tidelog.log.find.engine import engine, entries, reference
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import Query, find_newest
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

CONFIG = {
    "index.keys": True,
    "index.tag.header": "kind",
    "index.keys.slots": 20,
    "index.keys.entries": 200,
    "index.tag.entries": 90,
    "segment.bytes": 9_000,
}
#: "Aa" and "BB", and strings of equal length built from them, have the same hash.
KEYS = (None, b"", b"Aa", b"BB", b"AaAa", b"BBBB", b"AaBB", *(b"k%d" % number for number in range(12)))
TAGS = (None, b"", b"paid", b"open", b"Aa", b"BB")
QUERIES = (
    *(Query(key=key) for key in (b"", b"Aa", b"BB", b"AaBB", b"k3", b"missing")),
    *(Query(tag=tag, tag_header="kind") for tag in (b"", b"paid", b"Aa", b"BB", b"missing")),
    Query(key=b"Aa", tag=b"paid", tag_header="kind"),
    Query(key=b"k1", begin=NOW_MS + 20_000, end=NOW_MS + 60_000),
    Query(tag=b"open", tag_header="kind", begin=NOW_MS + 20_000),
    Query(begin=NOW_MS + 20_000, end=NOW_MS + 60_000),
    Query(),
)


def indexed_bench(root: str, **config: object) -> LogBench:
    """Return a ``LogBench`` whose log has small index files."""
    bench = LogBench(root)
    from tidelog.log.config import LogConfig

    bench.config = LogConfig({**CONFIG, **config})
    return bench


def use_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the routines in plain Python instead of the compiled ones; ``Chain`` is the uncompiled source's class."""
    for name in ("walk_chunk", "find_nth_record", "put_entries", "put_tags", "restore_slots", "write_pieces"):
        monkeypatch.setattr(engine, name, getattr(reference, name))
    monkeypatch.setattr(engine, "_find_matches", reference.match_records)
    monkeypatch.setattr(engine, "Chain", uncompiled(entries).Chain)


def fill(log: UnifiedLog, generator: random.Random, batches: int) -> list[Record]:
    """Append random batches; return the records with their offsets."""
    written = []
    for _ in range(batches):
        records = [
            Record(
                index, NOW_MS + generator.randrange(100_000), generator.choice(KEYS), b"v%d" % index, _tags(generator)
            )
            for index in range(generator.randrange(1, 9))
        ]
        batch = build_batch(records, BatchOptions(compression=generator.choice((0, 0, 1, 4))))
        info = log.append_as_leader(memoryview(batch), leader_epoch=0)
        log.update_high_watermark(log.log_end_offset)
        written += [record._replace(offset=info.first_offset + record.offset) for record in records]
    return written


def _tags(generator: random.Random) -> tuple[tuple[str, bytes | None], ...]:
    tag = generator.choice(TAGS)
    return () if tag is None and generator.random() < 0.5 else (("other", b"x"), ("kind", tag), ("kind", b"second"))


def indexer_of(log: UnifiedLog) -> LogIndexer:
    """Create an indexer of a log, and index the whole log."""
    indexer = LogIndexer(log)
    indexer.configure()
    catch_up(indexer)
    return indexer


def catch_up(indexer: LogIndexer, step_bytes: int = 3_000) -> None:
    """Index all records of the log."""
    while indexer.step(step_bytes):
        pass


def check_answers(log: UnifiedLog, indexer: LogIndexer, expected: Iterable[Record]) -> None:
    """Check that every query finds the records that a full scan over ``expected`` finds, newest first."""
    newest_first = sorted(expected, key=lambda record: -record.offset)
    for query in QUERIES:
        found = [(r.offset, r.key, r.value, r.timestamp) for r in find_newest(log, indexer, query)]
        wanted = [(r.offset, r.key, r.value, r.timestamp) for r in newest_first if query.matches(r)]
        assert found == wanted, query
