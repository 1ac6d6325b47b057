"""One DataFrame, view or table with many conditions, in one statement and in several: the rows that plain Python
computes.

Spark 4.2 keeps one reader for each of them, so nothing that a reader learns from one query may reach another one.
"""

from __future__ import annotations

import operator
import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, fill
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.jobs.source import choose
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PLACES = (("compacted", 0), ("old", 0), ("txn", 0), ("txn", 1))
ABORTED = 100
"""Producers with this id or a higher one abort their transactions."""
SEED = 20_261_122
TIMES = int(os.environ.get("TIDELOG_REUSE_TIMES", "1"))
"""How many times as many conditions: 10 asks for hundreds."""
Truth = bool | None
Place = tuple[str, int, int]


class Fact(NamedTuple):
    """A committed record as plain Python finds it in the files."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None

    @property
    def place(self) -> Place:
        """Partition and offset, which identify a record."""
        return self.topic, self.partition, self.offset


@dataclass(frozen=True, slots=True)
class Condition:
    """Words of SQL, and what they mean: true, false, or None for SQL's null."""

    sql: str
    holds: Callable[[Fact], Truth]


@dataclass(slots=True)
class Mixed:
    """Topics with transactions, compaction and old formats, and their committed records."""

    data: DataDirectory
    facts: list[Fact] = field(default_factory=list)

    def places(self, *conditions: Condition) -> list[Place]:
        """Return the places of records for which all conditions hold."""
        return sorted(fact.place for fact in self.facts if all(one.holds(fact) is True for one in conditions))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    data = DataDirectory(tmp_path_factory.mktemp("reuse") / "data")
    for partition in (0, 1):
        for turn in range(8):
            producer = turn + (ABORTED if turn % 3 == partition else 0)
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
            fill(data.log("txn", partition), 1)
            fill(data.log("txn", partition), 1, is_transactional=True, **options)
            end_transaction(data.log("txn", partition), producer, commit=producer < ABORTED)
    fill(data.log("compacted"), 60)
    data.log("old")
    data.close()
    compacting = Configuration(overrides={"cleanup.policy": "compact", "segment.bytes": "4096"})
    chosen = data.source(choice=choose("compacted", None, None))
    (result,) = compact(None, CompactRequest(chosen, compacting, now_ms=NOW_MS))
    assert result.records_after < result.records_before
    records = [Record(n, NOW_MS + 1000 * n, b"k%d" % (n % 5) if n % 3 else None, b"v") for n in range(40)]
    sets = [
        build_message_set(records[at : at + 10], MessageSetOptions(magic, 0, None, None))
        for at, magic in ((0, 0), (10, 1), (20, 1), (30, 0))
    ]
    (data.path / "old-0" / f"{0:020d}.log").write_bytes(b"".join(sets))
    return Mixed(data, [fact for place in PLACES for fact in facts_of(data.path, *place)])


def facts_of(path: Path, topic: str, partition: int) -> Iterator[Fact]:
    for segment in list_segments(str(path / f"{topic}-{partition}")):
        for batch in iter_batches(Path(segment.path).read_bytes()):
            if getattr(batch, "is_control", False) or getattr(batch, "producer_id", -1) >= ABORTED:
                continue
            for record in batch.records():
                yield Fact(topic, partition, record.offset, record.timestamp, record.key)


class Conditions:
    """Conditions at random, from one seed."""

    def __init__(self, seed: int, facts: Sequence[Fact]) -> None:
        self._random = random.Random(seed)
        self._facts = facts
        self._atoms = (self._offset, self._offset, self._time, self._partition, self._topic, self._key, self._null)

    def next(self) -> Condition:
        """Draw one to three atoms, joined and sometimes negated."""
        found = self._random.choice(self._atoms)()
        for _ in range(self._random.choice((0, 1, 1, 2))):
            found = self._joined(found, self._random.choice(self._atoms)())
        return found

    def several(self, count: int) -> list[Condition]:
        """Draw several conditions."""
        return [self.next() for _ in range(count)]

    def _joined(self, one: Condition, other: Condition) -> Condition:
        if self._random.random() < 0.1:
            other = opposite(other)
        if self._random.random() < 0.8:
            return Condition(f"({one.sql}) and ({other.sql})", lambda fact: both(one.holds(fact), other.holds(fact)))
        return Condition(f"({one.sql}) or ({other.sql})", lambda fact: either(one.holds(fact), other.holds(fact)))

    def _compared(self, name: str, shown: str, value: int, of: Callable[[Fact], int]) -> Condition:
        sign = self._random.choice(list(COMPARISONS))
        return Condition(f"{name} {sign} {shown}", lambda fact: COMPARISONS[sign](of(fact), value))

    def _offset(self) -> Condition:
        value = self._random.choice(self._facts).offset + self._random.choice((-1, 0, 0, 1))
        return self._compared("offset", str(value), value, lambda fact: fact.offset)

    def _time(self) -> Condition:
        value = self._random.choice(self._facts).timestamp * 1000 + self._random.choice((-1, 0, 0, 1))
        return self._compared("timestamp", f"timestamp_micros({value})", value, lambda fact: fact.timestamp * 1000)

    def _partition(self) -> Condition:
        numbers = self._random.sample(range(3), 2)
        return Condition(f"partition in ({numbers[0]}, {numbers[1]})", lambda fact: fact.partition in numbers)

    def _topic(self) -> Condition:
        name = self._random.choice(("compacted", "old", "txn", "other"))
        if self._random.random() < 0.3:
            return Condition(f"topic like '{name[:2]}%'", lambda fact: fact.topic.startswith(name[:2]))
        return Condition(f"topic = '{name}'", lambda fact: fact.topic == name)

    def _key(self) -> Condition:
        key = self._random.choice(self._facts).key or b"nobody"
        sign = self._random.choice(("=", "=", "<=>"))
        unknown = None if sign == "=" else False
        return Condition(f"key {sign} X'{key.hex()}'", lambda fact: unknown if fact.key is None else fact.key == key)

    def _null(self) -> Condition:
        if self._random.random() < 0.5:
            return Condition("key is null", lambda fact: fact.key is None)
        return Condition("key is not null", lambda fact: fact.key is not None)


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def opposite(condition: Condition) -> Condition:
    return Condition(f"not ({condition.sql})", lambda fact: negated(condition.holds(fact)))


def negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def both(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def either(one: Truth, other: Truth) -> Truth:
    return negated(both(negated(one), negated(other)))


@pytest.fixture
def conditions(mixed: Mixed) -> Conditions:
    return Conditions(SEED, mixed.facts)


@pytest.fixture(params=["true", "false"][: 1 if TIMES == 1 else 2])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's push-down for Python sources, which users switch on for others."""
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.unset(PUSHDOWN)


OPTIONS = {"subscribe": "compacted,old,txn", "kafka.isolation.level": "read_committed", "bytesPerTask": "16k"}


def load(spark: SparkSession, mixed: Mixed) -> DataFrame:
    return spark.read.format("tidelog").options(**OPTIONS).load(str(mixed.data.path))


def places_of(frame: DataFrame) -> list[Place]:
    return sorted((row[0], row[1], row[2]) for row in frame.select("topic", "partition", "offset").collect())


def make_relation(spark: SparkSession, mixed: Mixed, kind: str) -> str:
    """Make a new table or temporary view of the topics. Returns its name."""
    name = f"reuse_{uuid.uuid4().hex}"
    options = ", ".join(f"`{key}` '{value}'" for key, value in OPTIONS.items())
    spark.sql(f"create {kind} {name} using tidelog options (path '{mixed.data.path}', {options})")
    return name


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("kind", ["table", "temporary view"])
def test_a_name_used_many_times_in_one_statement(
    spark: SparkSession, mixed: Mixed, conditions: Conditions, kind: str
) -> None:
    name = make_relation(spark, mixed, kind)
    for _ in range(TIMES):
        asked = dict(enumerate(conditions.several(16)))
        selects = (f"select {n} n, topic, partition, offset from {name} where {one.sql}" for n, one in asked.items())
        rows = spark.sql(" union all ".join(selects)).collect()
        for n, one in asked.items():
            assert sorted((row[1], row[2], row[3]) for row in rows if row[0] == n) == mixed.places(one), one.sql
    spark.sql(f"drop {kind.split()[-1]} {name}")


@pytest.mark.usefixtures("pushdown")
def test_a_frame_used_in_many_statements(spark: SparkSession, mixed: Mixed, conditions: Conditions) -> None:
    frame = load(spark, mixed)
    for number in range(12 * TIMES):
        one = conditions.next()
        assert places_of(frame.where(one.sql)) == mixed.places(one), one.sql
        if number % 4 == 0:
            assert frame.count() == len(mixed.facts)


@pytest.mark.usefixtures("pushdown")
def test_a_frame_joined_with_itself(spark: SparkSession, mixed: Mixed, conditions: Conditions) -> None:
    frame = load(spark, mixed)
    for _ in range(3 * TIMES):
        one, other = conditions.several(2)
        joined = frame.where(one.sql).join(frame.where(other.sql), ["topic", "partition", "offset"])
        assert places_of(joined) == mixed.places(one, other), (one.sql, other.sql)


@pytest.mark.usefixtures("pushdown")
def test_a_frame_some_of_which_is_cached(spark: SparkSession, mixed: Mixed, conditions: Conditions) -> None:
    frame = load(spark, mixed)
    for number in range(2 * TIMES):
        one, other, third = conditions.several(3)
        cached = frame.where(one.sql).cache()
        for asked in (other, third):
            assert places_of(frame.where(asked.sql)) == mixed.places(asked), asked.sql
            assert places_of(cached.where(asked.sql)) == mixed.places(one, asked), (one.sql, asked.sql)
        if number % 2:
            cached.unpersist()
    spark.catalog.clearCache()
    assert frame.count() == len(mixed.facts)
