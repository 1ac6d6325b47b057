"""The export into an Iceberg table through pyiceberg: the driver commits, Spark needs no Iceberg of its own.

The files are those of :mod:`tidelog.pipeline.jobs.export`, in ``<location>/data``, and each commit adds them by one
snapshot. Its summary has the exported offsets of each partition, under ``tidelog.export``. A run continues from the
newest snapshot that has them (``export.iceberg_states``), so other writers may add snapshots (compaction, deletes)
between two exports. A commit loads the newest metadata, and is refused if another export has committed since this run
read the table's state. After this load the table's main branch must not change until the snapshot is added. Automatic
retries are switched off in the table's properties, because a retry would add the files after those of another run. An
export of all records (not of latest values) only adds files: small ones are merged by the owner's own maintenance, as
in any Iceberg table.

Dead letters, which have what could not be read or could not be a row, are added to a second table,
``<name>_dead_letter``, after the commit; if the run was killed in between, the next run adds them. Adding a file twice
has no effect there. ``exporting.areas`` describes where files wait for their commit, on a mounted file system and in an
object store.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.export.file import dead_letter_schema
from tidelog.pipeline.export.iceberg_states import STATE_KEY, pack, snapshot_properties, state_of, state_text, unpack
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, UPSERT, Manifest, StagingRun
from tidelog.pipeline.export.store import properties_of
from tidelog.pipeline.files.iceberg_errors import iceberg_errors
from tidelog.pipeline.job_errors import ICEBERG_INSTALL, BadRequestError, ConflictError, JobError, missing_package_error
from tidelog.pipeline.jobs.exporting.areas import TableArea, area_of
from tidelog.pipeline.jobs.exporting.commits import export_into
from tidelog.pipeline.jobs.exporting.data_files import add_files, data_files
from tidelog.pipeline.jobs.exporting.partitioning import apply_spec, is_by_time
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan
from tidelog.pipeline.jobs.exporting.request import ExportRequest, ExportResult
from tidelog.pipeline.jobs.exporting.upsert import Change, Merger, OldFile
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.options.columns import COMPARED, Columns, require_columns

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import SparkSession

NO_RETRIES: dict[str, Any] = {"commit.retry.num-retries": "0"}
#: Bounds are kept for the columns that queries filter by; the files have no bounds of keys, values and headers.
BOUNDS: dict[str, Any] = {
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("topic", "partition", "offset", "timestamp")},
}
DEAD_LETTER_SUFFIX = "_dead_letter"
CATALOG_NAME = "tidelog"
_PASSWORD = re.compile(r"://[^/]*@")


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """A table of a catalog: ``namespace.table``, and the warehouse for the files of a new table.

    ``catalog``: the catalog's URI, or its name in pyiceberg's configuration (``.pyiceberg.yaml``,
    ``PYICEBERG_CATALOG__...``). ``properties``: pyiceberg's own, which override its configuration.
    ``catalog_name``: the name under which a catalog in a database keeps its tables. ``partition_by``: the partition
    spec of a new table (``exporting.partitioning``).
    """

    catalog: str
    name: str
    warehouse: str | None = None
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    catalog_name: str = CATALOG_NAME
    partition_by: tuple[str, ...] = ()

    @property
    def shown_catalog(self) -> str:
        """The catalog's URI or name for messages, without a password."""
        return _PASSWORD.sub("://...@", self.catalog)

    def describe_error(self, error: BaseException) -> str:
        """Write an error in one line, without a password."""
        return (str(error) or type(error).__name__).splitlines()[0].replace(self.catalog, self.shown_catalog)


def export_to_iceberg(
    spark: SparkSession | None, request: ExportRequest, target: IcebergTarget, progress: Progress | None = None
) -> ExportResult:
    """Export new records into an Iceberg table; ``request.table`` is not used.

    Raises the errors of ``export``, and JobError for errors of the catalog.
    """
    if importlib.util.find_spec("pyiceberg") is None:
        raise missing_package_error("pyiceberg", ICEBERG_INSTALL)
    merger = Merger(spark, progress or Progress("export", quiet=True), groups=not request.values)
    with contextlib.closing(_catalog(target)) as catalog, _as_job_errors(target):
        return _export(request, target, catalog, merger)


def _describe(name: str) -> str:
    return f"Iceberg table {name}"


@contextlib.contextmanager
def _as_job_errors(target: IcebergTarget) -> Iterator[None]:
    """Turn a catalog's errors inside ``with`` into JobErrors of one line."""
    from pyiceberg import exceptions

    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    try:
        yield
    except (*kinds, *_client_errors()) as error:
        message = f"Iceberg table {target.name} in {target.shown_catalog}: {target.describe_error(error)}"
        raise JobError(message) from error


def _export(request: ExportRequest, target: IcebergTarget, catalog: Catalog, merger: Merger) -> ExportResult:
    columns = Columns.default(headers=request.headers)
    table = _table(catalog, target.name, columns.arrow_schema())
    require_columns(_describe(target.name), table.schema().column_names, columns.names)
    request = replace(request, split_by=apply_spec(table, target.partition_by))
    committing = _IcebergCommits(catalog, table, merger if request.mode == UPSERT else None)
    before = committing.open()
    try:
        return export_into(merger.spark, request, committing, before, merger.progress)
    finally:
        # Files of this run stay only if a commit has them or may still succeed.
        committing.open()


class _IcebergCommits:
    """The target of an export: an Iceberg table. Each part of a run (``exporting.commits``) is a snapshot.

    A later run finds the files of a killed one by its staging directory or by the killed run's id in their names. It
    removes files that are in no snapshot, once a commit of the killed run can no longer succeed: even if the catalog
    still processes that commit, it is only valid for an older snapshot.
    """

    may_grow = False

    def __init__(self, catalog: Catalog, table: Table, merger: Merger | None) -> None:
        """``merger`` is given only for a table of latest values."""
        self._catalog = catalog
        self._table = table
        self._name = ".".join(table.name())
        self._merger = merger
        self._committed: set[str] = set()
        self._area = area_of(table.location(), properties_of(table.io.properties), self._finish)

    def open(self) -> Manifest:
        """Finish or remove files of runs that have ended, and return the table's state. Raises JobError, KafkaError,
        OSError."""
        self._area.open()
        return state_of(self._table)

    def widen(self, request: ExportRequest) -> None:
        """Add the columns of values to the table. Raises JobError if a column would have to change its type otherwise
        than to a wider one."""
        import pyarrow as pa

        if request.columns is None:
            return
        record = Columns.default(headers=request.headers).arrow_schema()
        try:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([*record, *request.columns.fields()]))
        except ValueError as error:
            raise JobError(f"Iceberg table {self._name} does not accept the columns: {error}") from error

    def begin_run(self, run: str) -> StagingRun:
        """Create the staging for the files of one part. Raises JobError, KafkaError, OSError."""
        return self._area.begin_run(run, state_of(self._table).version)

    def commit(self, before: Manifest, after: Manifest, plans: list[PartitionPlan], staged: StagingRun) -> None:
        """Add one snapshot with the new files and the exported offsets. Raises ConflictError, JobError, OSError."""
        with self._area.hold_lock():
            state = replace(after, files=(), dead_letters=(), created_ms=time.time_ns() // 1_000_000)
            self._refresh()
            found = state_of(self._table)
            if (found.version, found.run) != (
                before.version,
                before.run,
            ):  # a rollback repeats versions
                raise _conflict(self._table)
            new = [file.name for file in after.files if file not in before.files]
            change = Change(added=[(name, 0) for name in new])
            if self._merger is not None:
                with iceberg_errors(_describe(self._name)):
                    old = _old_files(self._table)
                change = self._merger.merge(old, plans, staged)
            _commit(self._table, state, change, self._area, staged)
            self._add_dead_letters(staged.run, staged.path)
        self._committed.add(staged.run)

    def _refresh(self) -> None:
        """Load the newest metadata, with the list of the newest snapshot's manifests. Raises JobError, OSError."""
        with iceberg_errors(_describe(self._name)):
            self._table.refresh()
            snapshot = self._table.current_snapshot()
            if snapshot is not None:
                snapshot.manifests(self._table.io)

    def _add_dead_letters(self, run: str, staging: str) -> None:
        """Add a run's dead letters to the dead-letter table; adding them twice has no effect."""
        names = self._area.names_of(run, staging, DEAD_LETTER)
        if names:
            table = _table(self._catalog, self._name + DEAD_LETTER_SUFFIX, dead_letter_schema())
            known = _files_of(table)
            paths = [path for path in self._area.bring_in(staging, DEAD_LETTER, names) if path not in known]
            if paths:
                table.add_files(paths)

    def _finish(self, run: str, staging: str, version: int | None) -> bool:
        """Finish a run: add its dead letters if it has committed, otherwise remove its files.

        Returns False while its commit may still succeed.
        """
        if run in self._committed and self._area.has_locks:
            return True
        self._refresh()
        if run in self._committed or run in _runs_of(self._table):
            self._add_dead_letters(run, staging)
        elif self._is_over(version):
            self._area.remove_letters(run)
        else:
            return False
        self._area.remove_orphans(run, staging, lambda: {os.path.basename(path) for path in _files_of(self._table)})
        return True

    def _is_over(self, version: int | None) -> bool:
        """Return whether a commit for a version of the state can no longer succeed. Without a version the run wrote no
        file.
        """
        return version is None or version < state_of(self._table).version


def _files_of(table: Table) -> set[str]:
    """List the files of all snapshots. Raises JobError, OSError."""
    with iceberg_errors(_describe(".".join(table.name()))):
        files = table.inspect.all_files()
    return {path for path in files.column("file_path").to_pylist() if path is not None}


def _runs_of(table: Table) -> set[str]:
    """Collect the runs that committed a snapshot that has not expired, and the run of the table's state."""
    texts = [state_text(snapshot) for snapshot in table.snapshots()]
    runs = {unpack(text, "a snapshot's summary").run for text in texts if text is not None}
    return runs | {state_of(table).run}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a table at one moment: state of exports, metadata file, and the newest snapshot's data files.

    ``properties``: of the table's file system. ``by_time``: whether the table is partitioned by time. ``letters``:
    metadata file of the dead-letter table, None without dead letters.
    """

    manifest: Manifest
    metadata: str
    files: tuple[str, ...]
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    by_time: bool = False
    letters: str | None = None


def read_newest_snapshot(target: IcebergTarget) -> Snapshot:
    """Read the newest snapshot of a table that exists.

    Raises BadRequestError, JobError, MissingPackageError, OSError.
    """
    if importlib.util.find_spec("pyiceberg") is None:
        raise missing_package_error("pyiceberg", ICEBERG_INSTALL)
    from pyiceberg.exceptions import NoSuchTableError

    with contextlib.closing(_catalog(target)) as catalog, _as_job_errors(target):
        try:
            with iceberg_errors(_describe(target.name)):
                table = catalog.load_table(target.name)
                files = tuple(task.file.file_path for task in table.scan().plan_files())
        except NoSuchTableError:
            raise BadRequestError(f"Iceberg table {target.name} is not in the catalog {target.shown_catalog}") from None
        letters = _letters_of(catalog, target.name)
    store, manifest = properties_of(table.io.properties), state_of(table)
    if manifest.version:  # otherwise it is not a table of an export
        require_columns(_describe(target.name), table.schema().column_names, COMPARED)
    return Snapshot(manifest, table.metadata_location, files, store, is_by_time(table), letters)


def _letters_of(catalog: Catalog, name: str) -> str | None:
    """Find the metadata file of a table's dead letters; None without any."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        with iceberg_errors(_describe(name + DEAD_LETTER_SUFFIX)):
            table = catalog.load_table(name + DEAD_LETTER_SUFFIX)
    except NoSuchTableError:
        return None
    return None if table.current_snapshot() is None else table.metadata_location


def _catalog(target: IcebergTarget) -> Catalog:
    from pyiceberg.catalog import load_catalog

    parts = target.name.split(".")
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise BadRequestError(f"Iceberg table {target.name}: expected NAMESPACE.TABLE")
    name, properties = target.catalog, dict(target.properties)
    if ":" in target.catalog:
        name, properties = target.catalog_name, {"uri": target.catalog, **properties}
    if target.warehouse is not None:
        properties["warehouse"] = _warehouse(target.warehouse, target.catalog)
    try:
        return load_catalog(name, **properties)
    except _catalog_errors() as error:
        raise BadRequestError(f"Iceberg catalog {target.shown_catalog}: {target.describe_error(error)}") from error
    except OSError as error:
        message = f"Iceberg catalog {target.shown_catalog} cannot be reached: {target.describe_error(error)}"
        raise JobError(message) from error


def _warehouse(given: str, catalog: str) -> str:
    """Return a warehouse as the catalog needs it: an address without change, a directory as a ``file:`` address.

    With the address of a REST catalog, the warehouse's name is not changed either.
    """
    if "://" in given or catalog.startswith(("http://", "https://")):
        return given
    return f"file://{os.path.abspath(given)}"


def _catalog_errors() -> tuple[type[Exception], ...]:
    """Return the errors for a catalog that does not exist, refuses the client or, in a database, cannot be opened."""
    from pyiceberg.exceptions import NotInstalledError, RESTError

    return ValueError, ImportError, NotInstalledError, RESTError, *_client_errors()


_CLIENTS = {
    "sqlalchemy.exc": ("SQLAlchemyError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "thrift.Thrift": ("TException",),
}
"""Modules with the errors of the clients of catalogs: databases, Glue and DynamoDB, Hive."""


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the errors of those clients of catalogs that are installed."""
    found: list[type[Exception]] = []
    for module, names in _CLIENTS.items():
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            errors = importlib.import_module(module)
            found += [getattr(errors, name) for name in names]
    return tuple(found)


def _table(catalog: Catalog, name: str, schema: Any) -> Table:
    """Load the table, which is created if it is missing. Raises BadRequestError, JobError."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    namespace = name.rpartition(".")[0]
    try:
        with iceberg_errors(_describe(name)):
            table = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(namespace)
        try:  # another export may create it at the same time
            table = catalog.create_table_if_not_exists(name, schema, properties={**NO_RETRIES, **BOUNDS})
        except (ValueError, NoSuchNamespaceError) as error:
            raise BadRequestError(f"Iceberg table {name} cannot be created: {error} (give a warehouse)") from error
    if table.properties.get("commit.retry.num-retries") != "0":
        with table.transaction() as transaction:
            transaction.set_properties(**NO_RETRIES)
    return table


def _conflict(table: Table) -> ConflictError:
    return ConflictError(
        f"another writer committed to {'.'.join(table.name())} meanwhile: this run kept what it had committed before; "
        "run it again to go on from there"
    )


def _commit(table: Table, state: Manifest, change: Change, area: TableArea, staged: StagingRun) -> None:
    """Commit one snapshot with the change of files and the state. Raises ConflictError, JobError, OSError."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    summary = {STATE_KEY: pack(state)}
    paths = area.bring_in(staged.path, DATA, (name for name, _ in change.added))
    try:
        with table.transaction() as transaction:
            if change.removed:
                _replace_files(transaction, table, paths, change.removed, summary)
            else:
                add_files(transaction, table.io, paths, summary)
            # a copy in the properties, because snapshots expire
            transaction.set_properties({**summary, **snapshot_properties(transaction)})
    except (CommitFailedException, ValidationException):
        raise _conflict(table) from None
    except ValueError as error:
        raise JobError(f"Iceberg table {'.'.join(table.name())} does not accept the files: {error}") from error


def _replace_files(
    transaction: Transaction, table: Table, added: list[str], removed: list[str], summary: dict[str, str]
) -> None:
    known = {_local(task.file.file_path): task.file for task in table.scan().plan_files()}
    with transaction.update_snapshot(snapshot_properties=summary).overwrite() as overwrite:
        for path in removed:
            overwrite.delete_data_file(known[path])
        for file in data_files(table.io, transaction.table_metadata, added):
            overwrite.append_data_file(file)


def _old_files(table: Table) -> list[OldFile]:
    """List the files of the newest snapshot. Raises JobError if delete files delete rows in them."""
    found = []
    for task in table.scan().plan_files():
        if task.delete_files:
            raise JobError(
                f"Iceberg table {'.'.join(table.name())} has delete files: expected none, rewrite its data files first"
            )
        found.append(OldFile(_local(task.file.file_path), task.file.file_size_in_bytes, repr(task.file.partition)))
    return found


def _local(path: str) -> str:
    return path.removeprefix("file://")
