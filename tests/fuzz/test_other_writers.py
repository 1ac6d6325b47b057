"""Exports into a table that other writers change between its steps, in any order: the rows are those that plain Python
computes.

Steps: records come, exports run, and others delete rows, rewrite files, add columns, roll back, expire and vacuum. The
model keeps what each version of the table has, and up to which offsets it was exported. An export brings the newest
version up to date, or refuses where the table can no longer say its offsets.
"""

from __future__ import annotations

import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("polars")
pytest.importorskip("pyiceberg")

import polars
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from pyiceberg.types import StringType

from tests.support.iceberg import NAME, closed_catalogs, table_of, target_below
from tests.support.memory_directory import memory_place
from tests.support.pipelines import NOW_MS, DataDirectory, write
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.iceberg import export_to_iceberg
from tidelog.protocol.record.record_batch import Record

EXAMPLES = int(os.environ.get("TIDELOG_WRITERS_EXAMPLES", "6"))
STEPS = int(os.environ.get("TIDELOG_WRITERS_STEPS", "12"))
#: What an export says of a table that went back to where its offsets are not known any more.
REFUSED = re.compile("which offsets the table has|is not known")
Rows = dict[tuple[int, Any], tuple[int, bytes | None]]
"""Partition and offset, or key, -> offset and value."""


class Version(NamedTuple):
    """Rows of a version of the table, and the ends of what was exported of each partition."""

    rows: Rows
    ends: tuple[int, ...]


class Kind(ABC):
    """A kind of table, as exports and others work at it. ``steps`` are those of others that change no row."""

    steps: ClassVar[tuple[str, ...]]

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def export(self, request: ExportRequest) -> None:
        """Bring the table up to date."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Read the newest version."""

    @abstractmethod
    def version(self) -> int:
        """Return the id of the newest version."""

    @abstractmethod
    def delete(self, partition: int, offset: int) -> None:
        """Delete a row."""

    @abstractmethod
    def go_back(self, version: int) -> bool:
        """Make an earlier version the newest; return whether that was possible."""

    def is_wrong(self, data: DataDirectory) -> bool:
        """Return whether an audit finds the table wrong."""
        return audit(None, AuditRequest(data.source(), str(self.path))).is_wrong


class Iceberg(Kind):
    steps = ("rewrite", "widen", "expire", "expire_all", "branch")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.target = target_below(path.parent)

    def export(self, request: ExportRequest) -> None:
        export_to_iceberg(None, request, self.target)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = table_of(self.target).scan().to_arrow().to_pylist()
        return rows

    def version(self) -> int:
        snapshot = table_of(self.target).current_snapshot()
        return -1 if snapshot is None else snapshot.snapshot_id

    def delete(self, partition: int, offset: int) -> None:
        table_of(self.target).delete(f"partition == {partition} and offset == {offset}")

    def go_back(self, version: int) -> bool:
        table = table_of(self.target)
        if table.snapshot_by_id(version) is None:
            return False
        table.manage_snapshots().set_current_snapshot(version).commit()
        return True

    def is_wrong(self, data: DataDirectory) -> bool:
        return audit(None, AuditRequest(data.source(), NAME, iceberg=self.target)).is_wrong

    def rewrite(self) -> None:
        table = table_of(self.target)
        table.overwrite(table.scan().to_arrow())

    def widen(self) -> None:
        table = table_of(self.target)
        with table.update_schema() as update:
            update.add_column(f"note{len(table.schema().fields)}", StringType())

    def expire(self) -> None:
        self._expire(1)

    def expire_all(self) -> None:
        self._expire(1000)

    def _expire(self, limit: int) -> None:
        table = table_of(self.target)
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in kept]
        if old:
            table.maintenance.expire_snapshots().by_ids(old[:limit]).commit()

    def branch(self) -> None:
        table = table_of(self.target)
        table.manage_snapshots().create_branch(self.version(), f"b{len(table.metadata.refs)}").commit()


class Delta(Kind):
    steps = ("rewrite", "widen", "vacuum", "checkpoint")

    def _table(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def export(self, request: ExportRequest) -> None:
        export_to_delta(None, request)

    def rows(self) -> list[dict[str, Any]]:
        return polars.read_delta(str(self.path)).to_dicts() if self.version() >= 0 else []

    def version(self) -> int:
        return self._table().version() if DeltaTable.is_deltatable(str(self.path)) else -1

    def delete(self, partition: int, offset: int) -> None:
        self._table().delete(f"partition = {partition} and offset = {offset}")

    def go_back(self, version: int) -> bool:
        if version == self.version():
            return False
        for file in DeltaTable(str(self.path), version=version).file_uris():
            if not os.path.exists(file):
                return False  # vacuum took it
        self._table().restore(version)
        return True

    def rewrite(self) -> None:
        self._table().optimize.compact()

    def widen(self) -> None:
        table = self._table()
        table.alter.add_columns(Field(f"note{len(table.schema().fields)}", PrimitiveType("string")))

    def vacuum(self) -> None:
        self._table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def checkpoint(self) -> None:
        self._table().create_checkpoint()


class Writers(RuleBasedStateMachine):
    """A table of two partitions, its exports, and other writers of it; a subclass sets the kind of the table."""

    kind_of: Callable[[Path], Kind]
    mode: str
    versions: Bundle[int] = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(dir=memory_place())
        self._patch = pytest.MonkeyPatch()
        self._catalogs = closed_catalogs(self._patch)
        self._catalogs.__enter__()
        below = Path(self._directory.name)
        self.data = DataDirectory(below / "data")
        for partition in (0, 1):
            self.data.log("t", partition)
        self.table = type(self).kind_of(below / "table")
        self.records: list[list[tuple[bytes, bytes | None]]] = [[], []]
        self.now = Version({}, (0, 0))
        self.history: list[tuple[int, Version]] = []
        self.is_made = self.was_changed = False

    def teardown(self) -> None:
        self.data.close()
        self._catalogs.__exit__(None, None, None)
        self._patch.undo()
        self._directory.cleanup()

    def note(self, now: Version) -> int:
        """Note the rows of the newest version, and compare the table with them; return their place in the history."""
        self.now = now
        self.history.append((self.table.version(), now))
        found = sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in self.table.rows())
        wanted = sorted((place[0], offset, self.records[place[0]][offset][0], value)
                        for place, (offset, value) in now.rows.items())  # fmt: skip
        assert found == wanted
        return len(self.history) - 1

    def exported(self) -> Version:
        """Return the rows that the table has once it is up to date."""
        rows = dict(self.now.rows)
        for partition, records in enumerate(self.records):
            for offset in range(self.now.ends[partition], len(records)):
                key, value = records[offset]
                place: tuple[int, Any] = (partition, offset if self.mode == "append" else key)
                if self.mode == "upsert" and value is None:
                    rows.pop(place, None)
                else:
                    rows[place] = offset, value
        return Version(rows, (len(self.records[0]), len(self.records[1])))

    @rule(partition=st.integers(0, 1), changes=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1))
    def append(self, partition: int, changes: list[tuple[int, bool]]) -> None:
        """Append a batch."""
        log, known = self.data.log("t", partition), self.records[partition]
        records = [(b"key %d" % key, None if gone else b"%d" % len(known)) for key, gone in changes]
        write(log, [Record(n, NOW_MS, key, value) for n, (key, value) in enumerate(records)])
        known += records

    @rule(target=versions, file_bytes=st.sampled_from((1, 1 << 20)))
    def export(self, file_bytes: int) -> int:
        """Run the export."""
        request = ExportRequest(self.data.source(), str(self.table.path), file_bytes=file_bytes, mode=self.mode)
        try:
            self.table.export(request)
        except JobError as error:
            if not self.was_changed or not REFUSED.search(str(error)):
                raise
            return self.note(self.now)
        self.is_made = self.table.version() >= 0
        place = self.note(self.exported())
        assert self.was_changed or not any(self.records) or not self.table.is_wrong(self.data)
        return place

    @precondition(lambda self: self.is_made)
    @rule(target=versions, data=st.data())
    def others_keep_the_rows(self, data: st.DataObject) -> int:
        """Let another writer do one of the steps that change no row."""
        step = data.draw(st.sampled_from(type(self.table).steps))
        getattr(self.table, step)()
        return self.note(self.now)

    @precondition(lambda self: self.is_made and self.now.rows)
    @rule(target=versions, data=st.data())
    def others_delete(self, data: st.DataObject) -> int:
        """Let others delete a row."""
        rows = dict(self.now.rows)
        place = data.draw(st.sampled_from(sorted(rows)))
        self.table.delete(place[0], rows.pop(place)[0])
        self.was_changed = True
        return self.note(self.now._replace(rows=rows))

    @precondition(lambda self: self.is_made)
    @rule(target=versions, place=versions)
    def others_go_back(self, place: int) -> int:
        """Let others make an earlier version the newest."""
        version, then = self.history[place]
        if version >= 0 and self.table.go_back(version):
            self.was_changed = True
            return self.note(then)
        return self.note(self.now)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("kind", [Iceberg, Delta])
def test_rows_are_right_whatever_others_do(kind: type[Kind], mode: str) -> None:
    machine = type(f"{kind.__name__}Writers", (Writers,), {"kind_of": kind, "mode": mode})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
