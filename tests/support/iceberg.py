"""Iceberg tables of unit tests: a catalog in a file, closed when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.pipelines import DataDirectory
from tidelog.pipeline.jobs import iceberg as iceberg_job
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg

if TYPE_CHECKING:
    from pyiceberg.table import Table

NAME = "lake.events"
_READERS: dict[IcebergTarget, Any] = {}
"""The catalogs by which a test reads; to open one takes 15 ms."""


def target_below(directory: Path, partition_by: tuple[str, ...] = ()) -> IcebergTarget:
    """Return the target of a table in a new catalog and warehouse below ``directory``."""
    warehouse = directory / "warehouse"
    warehouse.mkdir()
    return IcebergTarget(f"sqlite:///{directory / 'catalog.db'}", NAME, str(warehouse), partition_by=partition_by)


@contextmanager
def closed_catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block at whose end all catalogs that were opened inside are closed, because they hold connections."""
    opened = []
    real = iceberg_job._catalog

    def opening(target: IcebergTarget) -> Any:
        catalog = real(target)
        opened.append(catalog)
        return catalog

    monkeypatch.setattr(iceberg_job, "_catalog", opening)
    yield
    _READERS.clear()
    for catalog in opened:
        catalog.close()


def table_of(target: IcebergTarget, name: str = NAME) -> Table:
    """Load the current state of a table. All tables of a test are loaded by one catalog."""
    if target not in _READERS:
        _READERS[target] = iceberg_job._catalog(target)
    table: Table = _READERS[target].load_table(name)
    return table


def run(data: DataDirectory, target: IcebergTarget, **fields: Any) -> ExportResult:
    """Export the new records of a data directory, without Spark."""
    return export_to_iceberg(None, ExportRequest(data.source(), "", **fields), target)


def offsets(target: IcebergTarget) -> list[int]:
    """Read the offsets of the table's rows, in order."""
    found: list[int] = sorted(table_of(target).scan().to_arrow().column("offset").to_pylist())
    return found
