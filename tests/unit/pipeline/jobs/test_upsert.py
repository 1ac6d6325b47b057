"""Export of the latest value of each key, into Iceberg and Delta: equal to the compacted log at each offset, also after
kills."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("polars")
pytest.importorskip("pyiceberg")

import polars
import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.types import StringType

from tests.support.iceberg import NAME, table_of, target_below
from tests.support.pipelines import (
    NOW_MS,
    DataDirectory,
    damage_first_batch,
    end_transaction,
    fill,
    killed_at,
    write,
)
from tidelog.pipeline.audit import latest
from tidelog.pipeline.errors import TopicRecreatedError
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError
from tidelog.pipeline.jobs import iceberg as iceberg_job
from tidelog.pipeline.jobs.audit import AuditRequest, AuditResult, audit
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult
from tidelog.pipeline.jobs.exporting import delta, upsert
from tidelog.pipeline.jobs.exporting.areas import MountedArea
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.options.columns import Columns
from tidelog.protocol.record.record_batch import Record

pytestmark = pytest.mark.usefixtures("catalogs")
Latest = dict[tuple[str, int, bytes], tuple[int, bytes]]
"""Topic, partition and key -> offset and value."""


@dataclass(frozen=True)
class Kind:
    """A kind of table: how it is exported into and read, and the calls at which a run may be killed."""

    export: Callable[[ExportRequest], ExportResult]
    read: Callable[[], list[dict[str, Any]]]
    kills: tuple[tuple[object, str], ...]
    table: str
    target: IcebergTarget | None = None

    def audit(self, data: DataDirectory) -> AuditResult:
        """Compare with the log."""
        return audit(None, AuditRequest(data.source(), self.table, iceberg=self.target))

    def append(self, rows: pa.Table) -> None:
        """Add rows, as another writer."""
        if self.target is None:
            write_deltalake(self.table, rows, mode="append")
        else:
            table_of(self.target).append(rows)

    def delete(self, condition: str) -> None:
        """Delete rows, as another writer."""
        if self.target is None:
            DeltaTable(self.table).delete(condition)
        else:
            table_of(self.target).delete(condition)

    def note(self, text: str) -> None:
        """Add a column and fill it, as another writer."""
        if self.target is None:
            DeltaTable(self.table).alter.add_columns(Field("note", PrimitiveType("string")))
            DeltaTable(self.table).update(new_values={"note": text})
            return
        with table_of(self.target).update_schema() as update:
            update.add_column("note", StringType())
        table = table_of(self.target)
        rows = table.scan().to_arrow()
        place = rows.column_names.index("note")
        table.overwrite(rows.set_column(place, "note", pa.array([text] * len(rows))))

    def lose_letters(self) -> None:
        """Remove the dead letters."""
        if self.target is None:
            shutil.rmtree(Path(self.table, delta.LETTERS))
        else:
            table_of(self.target, NAME + iceberg_job.DEAD_LETTER_SUFFIX).delete("offset >= 0")

    def latest(self) -> Latest:
        """Return the table's rows, none twice."""
        rows = self.read()
        found = {(row["topic"], row["partition"], row["key"]): (row["offset"], row["value"]) for row in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture(params=["iceberg", "delta"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "delta":
        path = str(tmp_path / "table")
        commits = delta._DeltaCommits
        return Kind(
            lambda asked: export_to_delta(None, asked),
            lambda: polars.read_delta(path).to_dicts(),
            ((MountedArea, "bring_in"), (commits, "_add"), (upsert.Merger, "merge")),
            path,
        )
    target = target_below(tmp_path)
    return Kind(
        lambda asked: export_to_iceberg(None, asked, target),
        lambda: table_of(target).scan().to_arrow().to_pylist(),
        ((MountedArea, "bring_in"), (iceberg_job, "_commit"), (upsert.Merger, "merge")),
        NAME,
        target,
    )


def run(data: DataDirectory, kind: Kind, **fields: Any) -> ExportResult:
    table = str(data.path.parent / "table")
    return kind.export(ExportRequest(data.source(), table, mode="upsert", **fields))


class Changelog:
    """Random changes of a few keys in two partitions, and the resulting latest values."""

    def __init__(self, data: DataDirectory, seed: int) -> None:
        self.latest: Latest = {}
        self._data = data
        self._chance = random.Random(seed)
        self._keys = [b"key %d" % number for number in range(self._chance.choice((3, 20, 200)))]

    def change(self, batches: int) -> None:
        """Write batches: values, deletes, and transactions that end either way."""
        for _ in range(batches):
            partition = self._chance.randrange(2)
            log = self._data.log("users", partition)
            records = [self._record(number) for number in range(self._chance.randint(1, 6))]
            if (end := self._chance.choice((None, None, True, False))) is None:
                first = write(log, records)
            else:
                producer = self._chance.randrange(1 << 30)
                options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
                first = write(log, records, is_transactional=True, **options)
                end_transaction(log, producer, commit=end)
            for record in records if end is not False else ():
                self._note(partition, record._replace(offset=first + record.offset))

    def _record(self, number: int) -> Record:
        value = None if self._chance.random() < 0.3 else b"%d" % self._chance.randrange(1 << 60)
        return Record(number, NOW_MS, self._chance.choice(self._keys), value)

    def _note(self, partition: int, record: Record) -> None:
        assert record.key is not None
        self.latest.pop(place := ("users", partition, record.key), None)
        if record.value is not None:
            self.latest[place] = (record.offset, record.value)


@pytest.mark.parametrize("seed", range(int(os.environ.get("TIDELOG_UPSERT_SEEDS", "4"))))
def test_at_every_commit_the_table_is_the_compacted_log(
    data: DataDirectory, kind: Kind, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, changes = random.Random(seed), Changelog(data, seed)
    monkeypatch.setattr(upsert, "SMALL_BYTES", chance.choice((1, 5000, 1 << 25)))
    monkeypatch.setattr(latest, "ROWS_HELD", chance.choice((3, 1 << 20)))
    for _ in range(3):
        before = dict(changes.latest)
        changes.change(chance.randint(1, 9))
        sizes = {"file_bytes": chance.choice((300, 1 << 20)), "commit_files": chance.choice((2, 64))}
        if chance.random() < 0.4:
            with killed_at(*chance.choice(kind.kills)):
                run(data, kind, **sizes)
            if before:
                assert kind.latest() == before, "a killed run left the table as it was"
        run(data, kind, **sizes)
        assert kind.latest() == changes.latest
        assert not kind.audit(data).is_wrong


def test_the_table_equals_the_log_that_the_cleaner_compacted(data: DataDirectory, kind: Kind) -> None:
    changes = Changelog(data, 7)
    changes.change(25)
    run(data, kind, file_bytes=500)
    data.close()
    compacting = Configuration(overrides={"cleanup.policy": "compact", "segment.bytes": "4096"})
    compact(None, CompactRequest(data.source(), compacting, now_ms=NOW_MS + 10 * 86_400_000))
    assert kind.latest() == changes.latest
    assert run(data, kind).committed is False
    assert not kind.audit(data).is_wrong


def test_a_file_without_changed_keys_stays(data: DataDirectory, kind: Kind) -> None:
    write(data.log("users"), [Record(0, NOW_MS, b"a", b"1")])
    run(data, kind)
    write(data.log("users", 1), [Record(0, NOW_MS, b"a", b"2")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upsert, "SMALL_BYTES", 1)
        run(data, kind)
    assert kind.latest() == {("users", 0, b"a"): (0, b"1"), ("users", 1, b"a"): (0, b"2")}


def test_records_without_a_key_are_dead_letters(data: DataDirectory, kind: Kind) -> None:
    write(data.log("users"), [Record(0, NOW_MS, None, b"1"), Record(1, NOW_MS, b"a", b"2")])
    assert run(data, kind).dead_letters == 1
    assert kind.latest() == {("users", 0, b"a"): (1, b"2")}
    assert not kind.audit(data).is_wrong
    kind.lose_letters()
    ((compared,),) = (one.comparisons for one in kind.audit(data).partitions)
    assert (compared.missing, compared.shown) == (1, {"missing": [0]})


def test_files_to_which_another_writer_added_a_column_keep_it(data: DataDirectory, kind: Kind) -> None:
    write(data.log("users"), [Record(n, NOW_MS, key, b"1") for n, key in enumerate((b"a", b"b"))])
    run(data, kind)
    kind.note("seen")
    write(data.log("users"), [Record(0, NOW_MS, b"c", b"1")])
    run(data, kind)
    write(data.log("users"), [Record(n, NOW_MS, key, b"2") for n, key in enumerate((b"a", b"c"))])
    run(data, kind)
    assert kind.latest() == {("users", 0, key): place for key, place in
                             ((b"a", (3, b"2")), (b"b", (1, b"1")), (b"c", (4, b"2")))}  # fmt: skip
    assert {row["key"]: row["note"] for row in kind.read()} == {b"a": None, b"b": "seen", b"c": None}
    assert not kind.audit(data).is_wrong


def test_files_from_which_another_writer_deleted_a_row_are_merged(data: DataDirectory, kind: Kind) -> None:
    """Each library writes columns in types of its own, headers and all."""
    headers = [("source", b"web"), ("empty", None)]
    write(data.log("users"), [Record(n, NOW_MS, key, b"1", headers) for n, key in enumerate((b"a", b"b", b"c"))])
    run(data, kind)
    kind.delete("offset = 1")
    write(data.log("users"), [Record(0, NOW_MS, b"a", None)])
    run(data, kind)
    assert kind.latest() == {("users", 0, b"c"): (2, b"1")}
    write(data.log("users"), [Record(0, NOW_MS, b"d", b"2", headers)])
    run(data, kind)
    expected = [{"key": "source", "value": b"web"}, {"key": "empty", "value": None}]
    assert {row["key"]: row["headers"] for row in kind.read()} == {b"c": expected, b"d": expected}


@pytest.mark.parametrize(("first", "second"), [("append", "upsert"), ("upsert", "append")])
def test_a_table_keeps_its_mode(data: DataDirectory, kind: Kind, first: str, second: str) -> None:
    fill(data.log("users"), 1)
    table = str(data.path.parent / "table")
    kind.export(ExportRequest(data.source(), table, mode=first))
    with pytest.raises(BadRequestError, match=f"--mode {second}: the table has --mode {first}"):
        kind.export(ExportRequest(data.source(), table, mode=second))


def test_a_recreated_topic_needs_a_new_table(data: DataDirectory, kind: Kind) -> None:
    fill(data.log("users"), 1)
    run(data, kind)
    data.close()
    os.rename(data.path / "users-0", data.path.parent / "gone")
    fill(data.log("users", topic_id=bytes(range(1, 17))), 1)
    with pytest.raises(TopicRecreatedError, match="but not into a table of latest values"):
        run(data, kind, restart_recreated=True)


def test_rows_that_another_writer_deletes_in_place_are_refused(data: DataDirectory, tmp_path: Path) -> None:
    class Task:
        delete_files = ("deletes",)

    class Table:
        def scan(self) -> Any:
            return self

        def plan_files(self) -> list[Task]:
            return [Task()]

        def name(self) -> tuple[str, ...]:
            return ("lake", "events")

    with pytest.raises(JobError, match=r"Iceberg table lake.events has delete files: expected none"):
        iceberg_job._old_files(Table())  # type: ignore[arg-type]


def test_another_writer_between_look_and_commit_is_a_conflict(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_below(tmp_path)
    fill(data.log("users"), 2)
    request = ExportRequest(data.source(), "", mode="upsert")
    export_to_iceberg(None, request, target)
    fill(data.log("users"), 2)
    real = upsert.Merger.merge

    def others_first(*arguments: Any) -> Any:
        monkeypatch.setattr(upsert.Merger, "merge", real)
        table_of(target).delete("offset = 9")
        return real(*arguments)

    monkeypatch.setattr(upsert.Merger, "merge", others_first)
    with pytest.raises(ConflictError):
        export_to_iceberg(None, request, target)
    export_to_iceberg(None, request, target)
    assert sorted(table_of(target).scan().to_arrow()["offset"].to_pylist()) == [10, 15, 16, 17, 18, 19]


def test_an_audit_tells_the_keys_that_differ(data: DataDirectory, kind: Kind) -> None:
    log = data.log("users")
    write(log, [Record(number, NOW_MS, b"key %d" % number, b"old") for number in range(6)])
    run(data, kind)
    old = pa.Table.from_pylist(kind.read(), schema=Columns.default(headers=True).arrow_schema()).sort_by("offset")
    write(log, [Record(0, NOW_MS, b"key 0", b"new"), Record(1, NOW_MS, b"key 1", None)])
    run(data, kind)
    assert not kind.audit(data).is_wrong
    kind.delete("offset = 3")
    stale = old.slice(0, 2)  # of keys that have changed and gone since
    another = old.slice(4, 1)
    changed = old.slice(5, 1).set_column(1, "value", pa.array([b"another"], pa.binary()))
    foreign = old.slice(2, 1).set_column(0, "key", pa.array([b"foreign"], pa.binary()))
    kind.delete("offset = 5")
    kind.append(pa.concat_tables([stale, another, changed, foreign]))
    (found,) = kind.audit(data).partitions[0].comparisons
    assert (found.log_rows, found.table_rows) == (5, 8)
    assert found.shown == {"missing": [3], "different": [1, 5], "twice": [0, 4], "extra": [2]}


def test_an_audit_of_a_damaged_log_names_the_range_that_is_not_compared(data: DataDirectory, kind: Kind) -> None:
    fill(data.log("users"), 3)
    run(data, kind)
    data.close()
    (path,) = (data.path / "users-0").glob("*.log")
    damage_first_batch(path)
    (found,) = kind.audit(data).partitions[0].comparisons
    assert found.unreadable.startswith("the log's records cannot be read: ")
