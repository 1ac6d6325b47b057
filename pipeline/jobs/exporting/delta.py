"""The export into a Delta table through ``deltalake``: each part of a run is one version of the table.

    TABLE/_delta_log/                     the table's versions; each of an export has txn (``tidelog.export``, N)
    TABLE/_tidelog/delta-00000007.json    the offsets of state 7, written before the version that has txn 7
    TABLE/data/*.parquet                  the rows;   TABLE/_tidelog/dead-letter/   bytes that are no records

Delta keeps an application's transaction number for good, in checkpoints too, where it forgets a commit's own metadata.
So the number says which state counts, and the state's file says the offsets. Exports commit under the area's lock: a
state that was written for a number is replaced as long as the table does not have that number, and never after. Other
writers may append, delete and compact between two commits; a commit that one of them overtakes is a conflict. After a
RESTORE the state of the restored version counts (``exporting.delta_versions``). Needs a directory that is mounted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, DIRECTORY, UPSERT, ExportTable, Manifest, StagingRun
from tidelog.pipeline.job_errors import DELTA_INSTALL, ConflictError, JobError, missing
from tidelog.pipeline.jobs.exporting.areas import name_own_files
from tidelog.pipeline.jobs.exporting.commits import export_into
from tidelog.pipeline.jobs.exporting.delta_versions import APP_ID, STATE_KEY, Position, position_of
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan
from tidelog.pipeline.jobs.exporting.request import ExportRequest, ExportResult
from tidelog.pipeline.jobs.exporting.upsert import Change, Merger, OldFile
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.options.columns import Columns

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession


def export_to_delta(
    spark: SparkSession | None, request: ExportRequest, progress: Progress | None = None
) -> ExportResult:
    """Export new records into the Delta table at ``request.table``, made where it is missing.

    Raises what ``export`` raises, and JobError for what deltalake says.
    """
    if importlib.util.find_spec("deltalake") is None:
        raise missing("deltalake", DELTA_INSTALL)
    from deltalake.exceptions import DeltaError

    progress = progress or Progress("export", quiet=True)
    merger = Merger(spark, progress, groups=not request.values)
    table = _DeltaCommits(request, merger if request.mode == UPSERT else None)
    try:
        return export_into(spark, request, table, table.open(), progress)
    except DeltaError as error:
        raise JobError(f"Delta table {request.table}: {str(error).splitlines()[0]}") from error
    finally:
        table.open()  # clears the staging away


def look_at(path: str) -> tuple[Manifest, int, tuple[str, ...]]:
    """The state that exports left in the table at ``path``, its newest version, and that version's files.

    Raises JobError for a table without exports, MissingPackageError.
    """
    if importlib.util.find_spec("deltalake") is None:
        raise missing("deltalake", DELTA_INSTALL)
    from deltalake import DeltaTable

    table = DeltaTable(path)
    return _manifest_at(ExportTable(path), position_of(table)), table.version(), tuple(table.file_uris())


class _DeltaCommits:
    """A Delta table as an export commits to it."""

    may_grow = False

    def __init__(self, request: ExportRequest, merger: Merger | None) -> None:
        """``merger`` of a table of latest values alone."""
        self._schema = Columns.all(headers=request.headers).arrow_schema()
        self._area = ExportTable(request.table, self._finish)
        self._merger = merger
        self._committed: set[str] = set()
        self._position = Position(0, 0)

    def open(self) -> Manifest:
        """Take away what killed runs left, and return the table's state. Raises JobError, BadRequestError."""
        self._area.open()
        os.makedirs(self._area.directory(DIRECTORY, DEAD_LETTER), exist_ok=True)
        self._position = position_of(self._table())
        return _manifest_at(self._area, self._position)

    def widen(self, request: ExportRequest) -> None:
        """Add the columns of values to the table. Raises JobError where a column would have to change."""
        import pyarrow as pa
        from deltalake import Schema

        if request.columns is None:
            return
        self._schema = pa.schema([*self._schema, *request.columns.fields()])
        table = self._table()
        if table is None:
            return
        wanted: Any = Schema.from_arrow(self._schema)
        known = {one.name: one for one in table.schema().fields}
        changed = [one.name for one in wanted.fields if one.name in known and one.type != known[one.name].type]
        if changed:
            raise JobError(
                f"Delta table {self._area.path}: the type of {', '.join(changed)} has changed, which Delta does not "
                "take; expected a new table"
            )
        new = [one for one in wanted.fields if one.name not in known]
        if new:
            table.alter.add_columns(new)

    def begin_run(self, run: str) -> StagingRun:
        """Make the staging directory of one part. Raises JobError."""
        return name_own_files(self._area.begin_run(run))

    def commit(self, before: Manifest, after: Manifest, plans: list[PartitionPlan], staged: StagingRun) -> None:
        """Add one version with the new files and the number of their state. Raises ConflictError."""
        with self._area.locked():
            table = self._table()
            if position_of(table) != self._position:
                raise self._conflict("export")
            state = replace(after, files=(), dead_letters=(), created_ms=time.time_ns() // 1_000_000)
            OsFileSystem().replace_file(_state_path(self._area, after.version), state.to_json().encode())
            change = Change(added=[(file.name, file.rows) for file in after.files if file not in before.files])
            if self._merger is not None:
                change = self._merger.merge(self._files_of(table), plans, staged)
            self._bring_in(staged.path, DATA, (name for name, _ in change.added))
            self._bring_in(staged.path, DEAD_LETTER, os.listdir(os.path.join(staged.path, DEAD_LETTER)))
            self._add(table, change, after.version)
            self._position = Position(after.version, after.version)
        self._committed.add(staged.run)

    def _conflict(self, writer: str) -> ConflictError:
        return ConflictError(
            f"another {writer} committed to {self._area.path} meanwhile: this run kept what it had committed "
            "before; run it again to go on from there"
        )

    def _add(self, table: DeltaTable | None, change: Change, number: int) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import create_table_with_add_actions

        properties = CommitProperties({STATE_KEY: str(number)}, 0, [Transaction(APP_ID, number)])
        added = [self._add_action(name, rows) for name, rows in change.added]
        schema: Any = Schema.from_arrow(self._schema)
        if table is None:
            create_table_with_add_actions(self._area.path, schema, added, commit_properties=properties)
        else:
            actions = [*added, *(self._remove_action(path) for path in change.removed)]
            try:
                table.create_write_transaction(actions, "append", schema, commit_properties=properties)
            except CommitFailedError:
                raise self._conflict("writer") from None

    def _add_action(self, name: str, rows: int) -> Any:
        from deltalake.transaction import AddAction

        status = os.stat(self._area.directory(DATA, name))
        stats = json.dumps({"numRecords": rows})
        return AddAction(f"{DATA}/{name}", status.st_size, {}, status.st_mtime_ns // 1_000_000, True, stats)

    def _remove_action(self, path: str) -> Any:
        from deltalake.transaction import RemoveAction

        name = os.path.relpath(path, self._area.path)
        return RemoveAction(name, True, time.time_ns() // 1_000_000, os.path.getsize(path), {})

    def _files_of(self, table: DeltaTable | None) -> list[OldFile]:
        """The files of the newest version. Raises JobError where rows in them are deleted by other files."""
        import pyarrow as pa

        if table is None:
            return []
        if pa.table(table.deletion_vectors()).num_rows:
            raise JobError(f"Delta table {self._area.path} has deletion vectors: expected none, purge the table first")
        found = pa.table(table.get_add_actions())
        names, sizes = found.column("path").to_pylist(), found.column("size_bytes").to_pylist()
        return [OldFile(self._area.directory(name), size) for name, size in zip(names, sizes, strict=True)]

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._area.path):
            return None
        return DeltaTable(self._area.path)

    # ---- files

    def _place_of(self, folder: str, name: str) -> str:
        return self._area.directory(*((DIRECTORY, folder) if folder == DEAD_LETTER else (folder,)), name)

    def _bring_in(self, staging: str, folder: str, names: Iterable[str]) -> None:
        """Give staged files their names in the table."""
        for name in names:
            os.link(os.path.join(staging, folder, name), self._place_of(folder, name))

    def _finish(self, run: str, staging: str) -> bool:
        """Take the files of a run that did not commit away again; of one that did, they stay."""
        if run in self._committed or _read_state(self._area, position_of(self._table()).newest).run == run:
            return True
        table = self._table()
        known = set() if table is None else {os.path.basename(uri) for uri in table.file_uris()}
        for folder in (DATA, DEAD_LETTER):
            for name in os.listdir(os.path.join(staging, folder)):
                path = self._place_of(folder, name)
                is_own = os.path.exists(path) and os.path.samefile(os.path.join(staging, folder, name), path)
                if is_own and name not in known:
                    os.unlink(path)
        return True


def _manifest_at(area: ExportTable, position: Position) -> Manifest:
    """The state whose rows the table has; after a restore too the next one has a new number. Raises JobError."""
    return replace(_read_state(area, position.rows), version=position.newest)


def _read_state(area: ExportTable, number: int) -> Manifest:
    """The state of a number. Raises JobError."""
    if not number:
        return Manifest()
    path = _state_path(area, number)
    try:
        with open(path, encoding="utf-8") as file:
            return Manifest.from_json(file.read(), path)
    except FileNotFoundError:
        raise JobError(f"{path} is missing: it says which offsets the table has") from None


def _state_path(area: ExportTable, number: int) -> str:
    return area.directory(DIRECTORY, f"delta-{number:08d}.json")
