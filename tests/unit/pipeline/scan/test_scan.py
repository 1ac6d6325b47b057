"""Scans of random topics against plain Python over the same files: offsets, times, keys, isolation, columns, damage."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidelog
from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, write
from tidelog.pipeline.errors import CorruptBatchError, DataLossError, OptionError, PipelineError, SelectionError
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.jobs.source import choose
from tidelog.pipeline.options.columns import NAMES
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record

pytest.importorskip("pyarrow")

SEEDS = int(os.environ.get("TIDELOG_SCAN_SEEDS", "6"))
QUESTIONS = 40
ABORTED, OPEN = 100, 200
"""Producers with these ids or higher abort their transactions, or leave them open."""
SECTION = 61
"""Where a batch's records begin."""


class Fact(NamedTuple):
    """A record as plain Python finds it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer: int

    def row(self) -> dict[str, Any]:
        """Return the record as a scan with all columns shows it."""
        headers = [{"key": key, "value": value} for key, value in self.headers]
        return {
            "key": self.key, "value": self.value, "topic": self.topic, "partition": self.partition,
            "offset": self.offset, "timestamp": self.timestamp * 1000, "timestampType": self.timestamp_type,
            "headers": headers or None,
        }  # fmt: skip


@dataclass
class World:
    """Random topics: plain, transactional, compacted, of old formats."""

    data: DataDirectory
    chance: random.Random
    places: list[tuple[str, int]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return str(self.data.path)

    def facts(self, topic: str) -> list[Fact]:
        """Return all records of a topic, read batch by batch in plain Python; damaged batches are left out."""
        return [
            fact for name, partition in sorted(self.places) if name == topic for fact in self._facts(name, partition)
        ]

    def _facts(self, topic: str, partition: int) -> Iterator[Fact]:
        for segment in list_segments(str(self.data.path / f"{topic}-{partition}")):
            for batch in iter_batches(Path(segment.path).read_bytes()):
                if getattr(batch, "is_control", False) or not batch.is_valid():
                    continue
                kind = -1 if batch.magic == 0 else int(batch.timestamp_type)
                producer = getattr(batch, "producer_id", -1)
                for record in batch.records():
                    yield Fact(topic, partition, record.offset, record.timestamp, kind, record.key, record.value,
                               tuple(record.headers), producer)  # fmt: skip

    def stable(self, facts: list[Fact]) -> dict[int, int]:
        """Map each partition to the first offset of an open transaction."""
        found: dict[int, int] = {}
        for fact in facts:
            if fact.producer >= OPEN:
                found[fact.partition] = min(found.get(fact.partition, fact.offset), fact.offset)
        return found


def records_of(chance: random.Random) -> list[Record]:
    return [
        Record(
            number,
            NOW_MS + chance.randrange(100_000),
            chance.choice((None, b"", b"key-%d" % chance.randrange(8))),
            chance.choice((None, b"", chance.randbytes(chance.randrange(200)))),
            chance.choice(((), (), (("h", b"1"), ("h", None)))),
        )
        for number in range(chance.randint(1, 8))
    ]


def write_world(path: Path, seed: int) -> World:
    chance = random.Random(seed)
    world = World(DataDirectory(path, index_keys="true" if seed % 2 else "false"), chance)
    for topic, partitions in (("plain", 2), ("txn", 2), ("compacted", 1)):
        for partition in range(partitions):
            world.places.append((topic, partition))
            fill_partition(world, topic, partition)
    world.data.log("old")
    world.data.close()
    world.places.append(("old", 0))
    write_old(world)
    settings = Configuration(overrides={"cleanup.policy": "compact", "segment.bytes": "4096"})
    chosen = world.data.source(choice=choose("compacted", None, None))
    compact(None, CompactRequest(chosen, settings, now_ms=NOW_MS))
    return world


def fill_partition(world: World, topic: str, partition: int) -> None:
    chance, log = world.chance, world.data.log(topic, partition)
    for number in range(chance.randint(15, 40)):
        options: dict[str, Any] = {"compression": chance.choice((0, 0, 1, 2, 3, 4))}
        if topic != "txn" or chance.random() < 0.5:
            write(log, records_of(chance), **options)
            continue
        producer = number + chance.choice((0, 0, ABORTED))
        ids = {"producer_id": producer, "producer_epoch": 0, "is_transactional": True}
        first = records_of(chance)
        write(log, first, base_sequence=0, **ids, **options)
        write(log, records_of(chance))
        write(log, records_of(chance), base_sequence=len(first), **ids)
        end_transaction(log, producer, commit=producer < ABORTED)
    if topic == "txn" and partition == 1:
        write(log, records_of(chance), producer_id=OPEN, producer_epoch=0, base_sequence=0, is_transactional=True)
        write(log, records_of(chance))


def write_old(world: World) -> None:
    chance, at, sets = world.chance, 0, []
    for _ in range(chance.randint(3, 10)):
        records = [
            record._replace(offset=at + record.offset, headers=()) for record in records_of(chance)
        ]  # fmt: skip
        magic = chance.choice((0, 1))
        append_time = chance.choice((None, NOW_MS + 5)) if magic else None
        sets.append(build_message_set(records, MessageSetOptions(magic, chance.choice((0, 1, 2)), None, append_time)))
        at += len(records)
    (world.data.path / "old-0" / f"{0:020d}.log").write_bytes(b"".join(sets))


def rows_of(reader: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    table = reader.read_all()
    if "timestamp" in table.column_names:
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table.column("timestamp").cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@dataclass
class Question:
    """Arguments of a scan, and the records that answer it."""

    asked: dict[str, Any]
    begin: int | None
    end: int | None
    times: tuple[int | None, int | None]
    keys: list[bytes] | None
    committed: bool

    @classmethod
    def at_random(cls, chance: random.Random, facts: list[Fact]) -> Question:
        offsets = sorted(fact.offset + chance.choice((-1, 0, 1)) for fact in chance.choices(facts, k=2))
        begin, end = (chance.choice((None, max(0, offset))) for offset in offsets)
        first, last = sorted(fact.timestamp for fact in chance.choices(facts, k=2))
        times = chance.choice(((None, None), (first, None), (None, last), (first, last + 1)))
        keys = chance.choice((None, None, [b"key-3"], [b"key-1", b"", b"key-9"]))
        committed = chance.random() < 0.5
        asked: dict[str, Any] = {"isolation": "read_committed" if committed else "read_uncommitted"}
        if begin is not None or end is not None:
            asked["offsets"] = begin, end
        if times != (None, None):
            asked["times"] = times
        if keys is not None:
            asked["keys"] = keys[0] if len(keys) == 1 else keys
        return cls(asked, begin, end, times, keys, committed)

    def matches(self, fact: Fact, stable: dict[int, int]) -> bool:
        """Return whether a record answers it."""
        if self.committed and (fact.producer >= ABORTED or fact.offset >= stable.get(fact.partition, 1 << 62)):
            return False
        low, high = self.times
        return (
            (self.begin is None or fact.offset >= self.begin)
            and (self.end is None or fact.offset < self.end)
            and (low is None or fact.timestamp >= low)
            and (high is None or fact.timestamp < high)
            and (self.keys is None or fact.key in self.keys)
        )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_scans_give_the_records_of_plain_python(tmp_path: Path, seed: int) -> None:
    world = write_world(tmp_path / "data", seed)
    for topic in ("plain", "txn", "compacted", "old"):
        facts = world.facts(topic)
        stable = world.stable(facts)
        for _ in range(QUESTIONS // 4):
            question = Question.at_random(world.chance, facts)
            columns = world.chance.sample(NAMES, world.chance.randint(1, len(NAMES)))
            expected = [fact.row() for fact in facts if question.matches(fact, stable)]
            shown = [{name: row[name] for name in columns} for row in expected]
            for skips in (False, True):
                found = rows_of(tidelog.scan(world.path, topic, columns=columns, skip_damage=skips, **question.asked))
                assert found == shown, (question.asked, columns)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_batch_is_an_error_or_passed_over(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = write_world(tmp_path / "data", seed)
    whole = world.facts("plain")
    for _ in range(2):
        batches = [
            (Path(segment.path), batch)
            for segment in list_segments(str(world.data.path / "plain-1"))
            for batch in iter_batches(Path(segment.path).read_bytes())
        ]
        segment, batch = world.chance.choice(batches[:-1])  # damage at the log's end is a torn tail
        content = bytearray(segment.read_bytes())
        content[batch.position + world.chance.randrange(SECTION, batch.size_in_bytes)] ^= 1 << world.chance.randrange(8)
        segment.write_bytes(content)
    left = world.facts("plain")
    if len(left) == len(whole):  # the second flip undid the first
        return
    with pytest.raises(CorruptBatchError, match="plain-1"):
        tidelog.scan(world.path, "plain").read_all()
    with caplog.at_level(logging.WARNING):
        found = rows_of(tidelog.scan(world.path, "plain", columns=NAMES, skip_damage=True))
    assert found == [fact.row() for fact in left]
    assert "are lost" in caplog.text
    assert rows_of(tidelog.scan(world.path, {"plain": [0]}, columns=NAMES)) == [
        fact.row() for fact in left if fact.partition == 0
    ]


def test_topics_partitions_and_their_offsets_are_chosen(tmp_path: Path) -> None:
    world = write_world(tmp_path / "data", 1)
    plain, old = world.facts("plain"), world.facts("old")
    both = [fact.row() for fact in (*old, *plain)]
    assert rows_of(tidelog.scan(world.path, ["plain", "old"], columns=NAMES)) == both
    assert rows_of(tidelog.scan([world.path], {"plain": [1]}, offsets={1: (2, 5)}, columns=["offset"])) == [
        {"offset": offset} for offset in (2, 3, 4)
    ]
    assert rows_of(tidelog.scan(world.path, "old", offsets=(1 << 40, None))) == []


def test_times_are_milliseconds_datetimes_and_text(tmp_path: Path) -> None:
    world = write_world(tmp_path / "data", 2)
    middle = NOW_MS + 50_000
    moment = datetime.fromtimestamp(middle / 1000, UTC)
    expected = [{"offset": f.offset} for f in world.facts("plain") if f.timestamp >= middle]
    for begin in (middle, moment, moment.isoformat()):
        assert rows_of(tidelog.scan(world.path, "plain", times=(begin, None), columns=["offset"])) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"topic": "none"}, "topic none has no partition"),
        ({"topic": []}, "topic is empty"),
        ({"path": "nowhere"}, "nowhere does not exist"),
        ({"columns": ["offset", "size"]}, "column 'size' is unknown"),
        ({"isolation": "serializable"}, "isolation=serializable: expected"),
        ({"offsets": 3}, "offsets=3: expected"),
        ({"offsets": (-1, None)}, "expected .begin, end., each an offset from 0 on"),
        ({"offsets": {7: (0, 1)}}, "partition 7 does not exist"),
        ({"times": ("yesterday", None)}, "'yesterday' is not a time"),
        ({"times": (1.5, None)}, "1.5 is not a time"),
        ({"times": 3}, "times=3: expected"),
    ],
)
def test_wrong_arguments_of_a_scan_are_errors(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    data = DataDirectory(tmp_path / "data")
    data.log("t")
    data.close()
    given = {"path": str(data.path), "topic": "t", **asked}
    with pytest.raises((OptionError, SelectionError), match=message):
        tidelog.scan(**given)


def test_records_that_are_gone_are_an_error_unless_that_is_accepted(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    log = data.log("t")
    for _ in range(5):
        write(log, [Record(0, NOW_MS, None, b"v")])
    log.maybe_increment_log_start_offset(3)
    data.close()
    from tidelog.log.files.checkpoints import LOG_START_OFFSET_FILE, write_offset_checkpoint
    from tidelog.log.files.topic_partition import TopicPartition
    from tidelog.log.system.file_system import OsFileSystem

    write_offset_checkpoint(OsFileSystem(), str(data.path / LOG_START_OFFSET_FILE), {TopicPartition("t", 0): 3})
    assert rows_of(tidelog.scan(data.path, "t", columns=["offset"])) == [{"offset": 3}, {"offset": 4}]
    with pytest.raises(DataLossError, match="t-0 begins at 3, records from 1 on are gone"):
        tidelog.scan(data.path, "t", offsets=(1, None))
    found = tidelog.scan(data.path, "t", offsets=(1, 4), fail_on_data_loss=False, columns=["offset"])
    assert rows_of(found) == [{"offset": 3}]


def test_without_pyarrow_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PipelineError, match="pyarrow is not installed: pip install pyarrow"):
        tidelog.scan(tmp_path, "t")


def test_no_pandas_is_imported(tmp_path: Path) -> None:
    """It would take each worker of Spark, and each short program, half a second."""
    data = DataDirectory(tmp_path / "data")
    write(data.log("orders"), [Record(number, NOW_MS, None, b"v", (("h", b"1"),) * number) for number in range(3)])
    data.close()
    code = "import sys, tidelog; rows = tidelog.scan(sys.argv[1], 'orders', columns=sys.argv[2:]).read_all().num_rows\n"
    code += "sys.exit(f'{rows} rows' if rows != 3 else 'pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(data.path), *NAMES], check=True)
