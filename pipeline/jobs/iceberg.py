"""The export into an Iceberg table through pyiceberg: the driver commits, Spark needs no Iceberg of its own.

The files are those of :mod:`tidelog.pipeline.jobs.export`, staged and named in the same way, moved to
``<location>/data`` and added by one snapshot. Its summary holds the offset vector under ``tidelog.export``; a run goes
on from the newest snapshot that has one, so that snapshots of others (compaction, deletes) may lie between. The commit
asks that the table's main branch is still where the run found it, and automatic retries are switched off in the table's
properties: a retry would add the files after another run's. Files are added and never taken out: small ones are put
together by the maintenance of the catalog's owner, as for any Iceberg table.

Damaged batches go to a second table, ``<name>_dead_letter``, before the commit; adding a file twice is a no-op there.
Only tables on a local or mounted file system (``file:``): staging needs names and links.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.export.file import dead_letter_schema, write_file
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, DIRECTORY, ExportTable, Manifest, StagingRun
from tidelog.pipeline.job_errors import ICEBERG_INSTALL, BadRequestError, ConflictError, JobError, missing
from tidelog.pipeline.jobs.export import (
    ExportRequest,
    ExportResult,
    Look,
    PartitionPlan,
    next_version,
    plan_files,
    plan_partition,
)
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.options.columns import Columns

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

STATE_KEY = "tidelog.export"
NO_RETRIES: dict[str, Any] = {"commit.retry.num-retries": "0"}
#: Bounds are kept for what queries choose by; the files have none of keys, values and headers.
BOUNDS: dict[str, Any] = {
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("partition", "offset", "timestamp")},
}
DEAD_LETTER_SUFFIX = "_dead_letter"
CATALOG_NAME = "tidelog"


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """A table of a catalog: the catalog's URI, ``namespace.table``, and where a new table's files go."""

    catalog_uri: str
    name: str
    warehouse: str | None = None


def export_to_iceberg(
    spark: SparkSession | None, request: ExportRequest, target: IcebergTarget, progress: Progress | None = None
) -> ExportResult:
    """Export new records into an Iceberg table (``request.table`` is not used). Raises what ``export`` raises, and
    JobError for what the catalog says."""
    if importlib.util.find_spec("pyiceberg") is None:
        raise missing("pyiceberg", ICEBERG_INSTALL)
    with contextlib.closing(_catalog(target)) as catalog, _catalog_trouble(target):
        return _export(spark, request, target, catalog, progress or Progress("export", quiet=True))


@contextlib.contextmanager
def _catalog_trouble(target: IcebergTarget) -> Iterator[None]:
    """A catalog's errors as JobErrors of one line."""
    from pyiceberg import exceptions

    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    if importlib.util.find_spec("sqlalchemy") is not None:
        from sqlalchemy.exc import SQLAlchemyError

        kinds.append(SQLAlchemyError)
    try:
        yield
    except tuple(kinds) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise JobError(f"Iceberg table {target.name} in {target.catalog_uri}: {reason}") from error


def _export(
    spark: SparkSession | None, request: ExportRequest, target: IcebergTarget, catalog: Catalog, progress: Progress
) -> ExportResult:
    columns = Columns.all(headers=request.headers)
    table = _table(catalog, target.name, columns.arrow_schema())
    before, area = state_of(table), _staging_area(table)
    looked = Look.at(request.source)
    plans = [plan_partition(p, before, request, may_grow=False) for p in looked.partitions]
    plans = [plan for plan in plans if plan.is_new]
    if not plans:
        return looked.unchanged(before)
    staged = area.begin_run(uuid.uuid4().hex)
    try:
        _write(spark, request, plans, staged, progress)
        after = next_version(before, plans, staged.run)
        _add_dead_letters(catalog, target.name, area, staged, plans)
        _commit(table, before, after, area, staged)
    finally:
        staged.close()
        area.open()  # clears the staging away
    return looked.result(after, plans)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a table at one moment: the state its exports left, its metadata file, the newest
    snapshot's id and the paths of that snapshot's data files."""

    manifest: Manifest
    metadata: str
    snapshot: int
    files: tuple[str, ...]


def look_at(target: IcebergTarget) -> Snapshot:
    """The newest snapshot of a table that exists. Raises BadRequestError, JobError, MissingPackageError."""
    if importlib.util.find_spec("pyiceberg") is None:
        raise missing("pyiceberg", ICEBERG_INSTALL)
    from pyiceberg.exceptions import NoSuchTableError

    catalog = _catalog(target)
    try:
        table = catalog.load_table(target.name)
        files = tuple(task.file.file_path for task in table.scan().plan_files())
    except NoSuchTableError:
        raise BadRequestError(f"Iceberg table {target.name} is not in the catalog {target.catalog_uri}") from None
    finally:
        catalog.close()
    snapshot = table.current_snapshot()
    return Snapshot(state_of(table), table.metadata_location, -1 if snapshot is None else snapshot.snapshot_id, files)


def _catalog(target: IcebergTarget) -> Catalog:
    from pyiceberg.catalog import load_catalog

    properties = {"uri": target.catalog_uri}
    if target.warehouse is not None:
        properties["warehouse"] = f"file://{os.path.abspath(target.warehouse)}"
    if "." not in target.name:
        raise BadRequestError(f"Iceberg table {target.name}: expected NAMESPACE.TABLE")
    try:
        return load_catalog(CATALOG_NAME, **properties)
    except _catalog_errors() as error:
        raise BadRequestError(f"Iceberg catalog {target.catalog_uri}: {str(error).splitlines()[0]}") from error
    except OSError as error:
        raise JobError(f"Iceberg catalog {target.catalog_uri} cannot be reached: {error}") from error


def _catalog_errors() -> tuple[type[Exception], ...]:
    """Errors for a catalog that does not exist or, in a database, cannot be opened."""
    if importlib.util.find_spec("sqlalchemy") is None:
        return ValueError, ImportError
    from sqlalchemy.exc import SQLAlchemyError

    return ValueError, ImportError, SQLAlchemyError


def _table(catalog: Catalog, name: str, schema: Any) -> Table:
    """The table, made where it is missing. Raises JobError."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    namespace = name.rpartition(".")[0]
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(namespace)
        try:  # another export may make it at the same time
            table = catalog.create_table_if_not_exists(name, schema, properties={**NO_RETRIES, **BOUNDS})
        except (ValueError, NoSuchNamespaceError) as error:
            raise BadRequestError(f"Iceberg table {name} cannot be made: {error} (give a warehouse)") from error
    if not table.location().startswith(("file:", "/")):
        raise BadRequestError(f"Iceberg table {name} lies in {table.location()}: expected a file: location")
    if table.properties.get("commit.retry.num-retries") != "0":
        with table.transaction() as transaction:
            transaction.set_properties(**NO_RETRIES)
    return table


def state_of(table: Table) -> Manifest:
    """The newest state that an export has left in a snapshot's summary. Raises JobError."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        text = snapshot.summary[STATE_KEY] if snapshot.summary is not None and STATE_KEY in snapshot.summary else None
        if text is not None:
            return Manifest.from_json(text, f"the summary of snapshot {snapshot.snapshot_id}")
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return Manifest()


def _staging_area(table: Table) -> ExportTable:
    area = ExportTable(table.location())
    os.makedirs(area.directory(DIRECTORY), exist_ok=True)
    area.open()
    return area


def _write(
    spark: SparkSession | None,
    request: ExportRequest,
    plans: list[PartitionPlan],
    staged: StagingRun,
    progress: Progress,
) -> None:
    owned = [(plan, file) for plan in plans for file in plan_files(plan, request, staged.path)]
    tasks = [Task(file.name, file.log_bytes, file) for _, file in owned]
    for (plan, _), result in zip(owned, run_tasks(spark, tasks, write_file, progress), strict=True):
        plan.results.append(result)


def _bring_in(area: ExportTable, staged: StagingRun, folder: str, names: list[str]) -> list[str]:
    """Give staged files their names in the table. One that is there already holds the same range and stays."""
    paths = []
    for name in names:
        path = area.directory(folder, name)
        if not os.path.exists(path):
            os.replace(os.path.join(staged.path, folder, name), path)
        paths.append(f"file://{path}")
    return paths


def _add_dead_letters(
    catalog: Catalog, name: str, area: ExportTable, staged: StagingRun, plans: list[PartitionPlan]
) -> None:
    letters = [r.dead_letters.name for plan in plans for r in plan.results if r.dead_letters is not None]
    if not letters:
        return
    table = _table(catalog, name + DEAD_LETTER_SUFFIX, dead_letter_schema())
    known = {path for path in table.inspect.files().column("file_path").to_pylist() if path is not None}
    paths = [path for path in _bring_in(area, staged, DEAD_LETTER, letters) if path not in known]
    if paths:
        table.add_files(paths)


def _commit(table: Table, before: Manifest, after: Manifest, area: ExportTable, staged: StagingRun) -> None:
    """One snapshot with the new files and the offset vector. Raises ConflictError, JobError."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    conflict = ConflictError(
        f"another writer committed to {'.'.join(table.name())} meanwhile: nothing of this run was kept; "
        "run it again to go on from there"
    )
    new = [file.name for file in after.files if file not in before.files]
    state = replace(after, files=(), dead_letters=(), created_ms=time.time_ns() // 1_000_000)
    text = json.dumps(json.loads(state.to_json()), separators=(",", ":"))
    table.refresh()
    if state_of(table).version != before.version:
        raise conflict
    paths = _bring_in(area, staged, DATA, new)
    try:
        with table.transaction() as transaction:
            transaction.add_files(paths, snapshot_properties={STATE_KEY: text})
    except (CommitFailedException, ValidationException):
        raise conflict from None
    except ValueError as error:
        raise JobError(f"Iceberg table {'.'.join(table.name())} does not take the files: {error}") from error
