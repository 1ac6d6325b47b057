"""The export into a Delta table through ``deltalake``: each part of a run is one version of the table.

    TABLE/_delta_log/                           the table's versions; the one of state N has txn (``tidelog.export``, N)
    TABLE/_tidelog/delta-00000007-<run>.json    state 7: the exported offsets, written before the version with txn 7
    TABLE/data/*.parquet                        the rows;   TABLE/_tidelog/dead-letter/   bytes that are not records

Delta keeps an application's transaction number forever, also in checkpoints, while a commit's own metadata expires. So
the number says which state is current, and the state's file has the offsets. A commit is only valid for the state with
which its part began, so only one of two runs succeeds. Files of the other run, including its state file, are removed at
its end or by a later run (``exporting.areas``). Until then the commit's metadata says whose state file is valid. Other
writers may append, delete and compact between two commits; if one commits during a commit, that is a conflict. After a
RESTORE the state of the restored version is current (``exporting.delta_versions``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.export.delta_tables import (
    add_columns,
    require_distinct_names,
    require_fitting_table,
    require_removable_files,
)
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, DIRECTORY, UPSERT, Manifest, StagingRun
from tidelog.pipeline.export.store import LOCAL, AddressStore, TableStore
from tidelog.pipeline.files.delta_address import DeltaAddress, delta_errors
from tidelog.pipeline.job_errors import DELTA_INSTALL, BadRequestError, ConflictError, JobError, missing_package_error
from tidelog.pipeline.jobs.exporting.areas import Finish, MountedArea, StoreArea, TableArea
from tidelog.pipeline.jobs.exporting.commits import export_into
from tidelog.pipeline.jobs.exporting.delta_versions import (
    APP_ID,
    RUN_KEY,
    STATE_KEY,
    Commit,
    Position,
    commit_of,
    position_of,
)
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan
from tidelog.pipeline.jobs.exporting.request import ExportRequest, ExportResult
from tidelog.pipeline.jobs.exporting.upsert import Change, Merger, OldFile
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.options.columns import COMPARED, Columns, require_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

LETTERS = f"{DIRECTORY}/{DEAD_LETTER}"
"""The folder of dead letters: Delta's vacuum keeps names that begin with an underscore."""
#: Former releases wrote the names of state files without a run.
_STATE = re.compile(r"delta-(?P<number>[0-9]{8})(-(?P<run>[0-9a-f]+))?\.json")


def export_to_delta(
    spark: SparkSession | None, request: ExportRequest, progress: Progress | None = None
) -> ExportResult:
    """Export new records into the Delta table at ``request.table``, which is created if it is missing.

    Raises the errors of ``export``, and JobError for errors of deltalake.
    """
    if importlib.util.find_spec("deltalake") is None:
        raise missing_package_error("deltalake", DELTA_INSTALL)
    progress = progress or Progress("export", quiet=True)
    merger = Merger(spark, progress, groups=not request.values)
    table = _DeltaCommits(request, merger if request.mode == UPSERT else None)
    try:
        return export_into(spark, request, table, table.open(), progress)
    finally:
        # Files of this run stay only if a commit has them or may still succeed.
        table.open()


def read_newest_version(given: str) -> tuple[Manifest, int, tuple[str, ...], tuple[str, ...]]:
    """Read the table's state of exports, its newest version, that version's files, and the files of dead letters.

    The state of a table without exports is empty, of version 0. Raises JobError if there is no table, OptionError,
    RemoteError, MissingPackageError.
    """
    if importlib.util.find_spec("deltalake") is None:
        raise missing_package_error("deltalake", DELTA_INSTALL)
    address = DeltaAddress.of(given)
    table = address.open()
    store, folder = _store_of(address), os.path.join(address.path, LETTERS)
    with delta_errors(address):
        manifest = _States(address.path, store).manifest_of(table)
        if manifest.version:  # otherwise it is not a table of an export
            require_columns(f"Delta table {given}", [one.name for one in table.schema().fields], COMPARED)
        letters = tuple(os.path.join(folder, name) for name in store.names_in(folder))
        return manifest, table.version(), tuple(table.file_uris()), letters


def _store_of(address: DeltaAddress) -> TableStore:
    return AddressStore() if address.is_remote else LOCAL


def _area_of(address: DeltaAddress, finish: Finish) -> TableArea:
    """Return the area of the table's new files. Raises BadRequestError if the directory has other files or cannot be
    created, OSError."""
    names = _store_of(address).names_in(address.path)
    if names and DIRECTORY not in names:
        raise BadRequestError(f"{address.uri} is not empty and no exported table: expected an empty or new directory")
    if address.is_remote:
        return StoreArea(address.path, AddressStore(), finish, LETTERS)
    return MountedArea(address.path, finish, LETTERS)


class _States:
    """The state files, which have the offsets of each state."""

    def __init__(self, path: str, store: TableStore) -> None:
        self._folder = os.path.join(path, DIRECTORY)
        self._store = store

    def manifest_of(self, table: DeltaTable | None) -> Manifest:
        """Read the state of the table's rows, with the newest number, so that the next state gets a new one. Raises
        JobError.
        """
        position = position_of(table)
        return replace(self.read(position.rows, table), version=position.newest)

    def read(self, number: int, table: DeltaTable | None) -> Manifest:
        """Read the state of a number that was committed. Raises JobError."""
        if not number or table is None:
            return Manifest()
        path = os.path.join(self._folder, self._name_of(number, table))
        try:
            return Manifest.from_json(self._store.read(path), path)
        except FileNotFoundError:
            raise JobError(f"{path} is missing, which has the table's offsets") from None

    def write(self, state: Manifest) -> None:
        """Write the file of a state, before the state is committed."""
        path = os.path.join(self._folder, _state_name(state.version, state.run))
        self._store.put(path, state.to_json().encode())

    def remove(self, number: int, run: str) -> None:
        """Remove the state file of a run that did not commit."""
        name = _state_name(number, run)
        if name in self._store.names_in(self._folder):
            self._store.remove(os.path.join(self._folder, name))

    def _name_of(self, number: int, table: DeltaTable) -> str:
        """Find the name of a committed state's file. Runs that did not commit may have left others with its number."""
        found = {match["run"] or "": match[0] for match in map(_STATE.fullmatch, self._store.names_in(self._folder))
                 if match is not None and int(match["number"]) == number}  # fmt: skip
        if len(found) < 2:
            return next(iter(found.values()), f"delta-{number:08d}.json")
        commit = commit_of(table, number)
        if commit is None or commit.run not in found:
            raise JobError(f"{self._folder} has {len(found)} files of state {number}: expected one, and the table's "
                           "history does not have its commit")  # fmt: skip
        return found[commit.run]


def _state_name(number: int, run: str) -> str:
    return f"delta-{number:08d}-{run}.json"


class _DeltaCommits:
    """A Delta table as the target of an export."""

    may_grow = False

    def __init__(self, request: ExportRequest, merger: Merger | None) -> None:
        """``merger`` is given only for a table of latest values. Raises OptionError, BadRequestError, OSError."""
        self._schema = Columns.default(headers=request.headers).arrow_schema()
        self._address = DeltaAddress.of(request.table)
        self._area = _area_of(self._address, self._finish)
        self._store = _store_of(self._address)
        self._states = _States(self._address.path, self._store)
        self._merger = merger
        self._position = Position(0, 0)

    def open(self) -> Manifest:
        """Finish or remove files of runs that have ended, and return the table's state. Raises PipelineError,
        KafkaError, OSError."""
        self._area.open()
        table = self._address.open_if_there()
        with delta_errors(self._address):
            self._position = position_of(table)
            return self._states.manifest_of(table)

    def widen(self, request: ExportRequest) -> None:
        """Add the columns of values to the table. Raises JobError if a column would have to change its type, or the
        table cannot take the files (``export.delta_tables``); RemoteError."""
        import pyarrow as pa

        table = self._address.open_if_there()
        with delta_errors(self._address):
            require_fitting_table(table, self._address.uri, self._schema)
            if request.columns is None:
                return
            self._schema = pa.schema([*self._schema, *request.columns.fields()])
            require_distinct_names(self._address.uri, self._schema)
            if table is not None:
                add_columns(table, self._address.uri, self._schema)

    def begin_run(self, run: str) -> StagingRun:
        """Create the staging for the files of one part. Raises JobError, KafkaError, OSError."""
        return self._area.begin_run(run, self._position.newest)

    def commit(self, before: Manifest, after: Manifest, plans: list[PartitionPlan], staged: StagingRun) -> None:
        """Add one version with the new files and the number of the new state. Raises ConflictError, other
        PipelineErrors, KafkaError, OSError."""
        with self._area.hold_lock():
            table = self._address.open_if_there()
            with delta_errors(self._address):
                if position_of(table) != self._position:
                    raise self._conflict("export")
                require_fitting_table(table, self._address.uri, self._schema)
            state = replace(after, files=(), dead_letters=(), created_ms=time.time_ns() // 1_000_000)
            self._states.write(state)
            try:
                self._commit(table, before, after, plans, staged)
            except FileNotFoundError:  # in a store, the run that was faster may have removed the files of this one
                if position_of(self._address.open_if_there()) != self._position:
                    raise self._conflict("export") from None
                raise
            self._add_dead_letters(staged.run, staged.path)
            self._position = Position(after.version, after.version)

    def _commit(
        self,
        table: DeltaTable | None,
        before: Manifest,
        after: Manifest,
        plans: list[PartitionPlan],
        staged: StagingRun,
    ) -> None:
        change = Change(added=[(file.name, file.rows) for file in after.files if file not in before.files])
        if self._merger is not None:
            change = self._merger.merge(self._files_of(table), plans, staged)
        self._area.bring_in(staged.path, DATA, (name for name, _ in change.added))
        self._add(table, change, after)

    def _add_dead_letters(self, run: str, staging: str) -> None:
        self._area.bring_in(staging, DEAD_LETTER, self._area.names_of(run, staging, DEAD_LETTER))

    def _conflict(self, writer: str) -> ConflictError:
        return ConflictError(
            f"another {writer} committed to {self._address.uri} meanwhile: this run kept what it had committed "
            "before; run it again to go on from there"
        )

    def _add(self, table: DeltaTable | None, change: Change, state: Manifest) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import create_table_with_add_actions

        number = state.version
        metadata = {STATE_KEY: str(number), RUN_KEY: state.run}
        properties = CommitProperties(metadata, 0, [Transaction(APP_ID, number)])
        added = [self._add_action(name, rows) for name, rows in change.added]
        schema: Any = Schema.from_arrow(self._schema)
        with delta_errors(self._address):
            try:
                if table is None:
                    options = dict(self._address.options)
                    create_table_with_add_actions(
                        self._address.uri, schema, added, storage_options=options, commit_properties=properties
                    )
                else:
                    actions = [*added, *(self._remove_action(path) for path in change.removed)]
                    table.create_write_transaction(actions, "append", schema, commit_properties=properties)
            except CommitFailedError:
                raise self._conflict("writer") from None

    def _add_action(self, name: str, rows: int) -> Any:
        from deltalake.transaction import AddAction

        size = self._store.size_of(self._path_of(DATA, name))
        stats = json.dumps({"numRecords": rows})
        return AddAction(f"{DATA}/{name}", size, {}, time.time_ns() // 1_000_000, True, stats)

    def _remove_action(self, path: str) -> Any:
        from deltalake.transaction import RemoveAction

        name = path.removeprefix(self._path_of(""))
        return RemoveAction(name, True, time.time_ns() // 1_000_000, self._store.size_of(path), {})

    def _files_of(self, table: DeltaTable | None) -> list[OldFile]:
        """List the files of the newest version. Raises JobError if an upsert may not replace them
        (``export.delta_tables``)."""
        import pyarrow as pa

        if table is None:
            return []
        with delta_errors(self._address):
            require_removable_files(table, self._address.uri)
            found = pa.table(table.get_add_actions())
        names, sizes = found.column("path").to_pylist(), found.column("size_bytes").to_pylist()
        return [OldFile(self._path_of(name), size) for name, size in zip(names, sizes, strict=True)]

    def _path_of(self, *names: str) -> str:
        return os.path.join(self._address.path, *names)

    # ---- files of killed runs

    def _finish(self, run: str, staging: str, version: int | None) -> bool:
        """Finish a run: move its dead letters into the table if it has committed, otherwise remove its files.

        Returns False while its commit may still succeed. ``version``: the number of the newest state when it began,
        None if not known.
        """
        table = self._address.open_if_there()
        with delta_errors(self._address):
            newest = position_of(table).newest
            number = next((one for one in self._numbers_of(version, newest) if self._run_of(one, table) == run), 0)
            if number:
                self._add_dead_letters(run, staging)
            elif self._area.has_locks or version is None or version < newest:
                self._area.remove_letters(run)
                self._states.remove((version or 0) + 1, run)
            else:
                return False
            self._area.remove_orphans(run, staging, lambda: self._names_of(table, number))
        return True

    def _numbers_of(self, version: int | None, newest: int) -> tuple[int, ...]:
        """Return the number of the state that a run may have committed; empty if there is no such state yet.

        The number is ``version`` + 1, or the newest one if ``version`` is None.
        """
        number = newest if version is None else version + 1
        return (number,) if 0 < number <= newest else ()

    def _run_of(self, number: int, table: DeltaTable | None) -> str:
        return self._states.read(number, table).run

    def _names_of(self, table: DeltaTable | None, number: int) -> set[str]:
        """Collect the names of the files of the newest version, and of the version that committed state ``number``."""
        if table is None:
            return set()
        uris = set(table.file_uris())
        commit: Commit | None = commit_of(table, number) if number else None
        if commit is not None:
            uris |= set(self._address.open(commit.version).file_uris())
        return {os.path.basename(uri) for uri in uris}
