"""Requirements of an export on a Delta table: columns, partitions, constraints."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake

from tidelog.pipeline.export.delta_tables import (
    add_columns,
    require_distinct_names,
    require_fitting_table,
    require_removable_files,
)
from tidelog.pipeline.job_errors import JobError

KNOWN = pa.schema([("offset", pa.int64()), ("headers", pa.list_(pa.struct([("key", pa.string())])))])


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    write_deltalake(str(tmp_path), KNOWN.empty_table())
    return DeltaTable(str(tmp_path))


def test_a_table_may_have_more_columns(table: DeltaTable) -> None:
    require_fitting_table(table, "t", pa.schema([("offset", pa.int64())]))
    require_fitting_table(None, "t", KNOWN)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (("time", pa.int64()), "has no column time"),
        (("offset", pa.int32()), "column offset is long: expected integer"),
        (("headers", pa.string()), "column headers is array: expected string"),
    ],
)
def test_a_column_that_does_not_fit_is_named(table: DeltaTable, kind: tuple[str, pa.DataType], message: str) -> None:
    with pytest.raises(JobError, match=f"Delta table t:? {message}"):
        require_fitting_table(table, "t", pa.schema([kind]))


def test_a_partitioned_table_is_refused(tmp_path: Path) -> None:
    """Readers had rows without a topic: the value of a partition column comes from the table's log."""
    write_deltalake(str(tmp_path), KNOWN.empty_table(), partition_by=["offset"])
    with pytest.raises(JobError, match="Delta table t is partitioned by offset: expected no partitions"):
        require_fitting_table(DeltaTable(str(tmp_path)), "t", KNOWN)


def test_constraints_and_tables_that_only_grow(table: DeltaTable) -> None:
    """Rows broke a constraint; an upsert was told that another writer had committed, in each run."""
    require_removable_files(table, "t")
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    require_fitting_table(table, "t", KNOWN)
    with pytest.raises(JobError, match=r"t has delta\.appendOnly=true"):
        require_removable_files(table, "t")
    table.alter.add_constraint({"small": "offset < 50"})
    with pytest.raises(JobError, match="t has the constraint small"):
        require_fitting_table(table, "t", KNOWN)


def test_columns_are_added_and_never_changed(table: DeltaTable) -> None:
    add_columns(table, "t", pa.schema([*KNOWN, ("name", pa.string())]))
    add_columns(table, "t", KNOWN)
    assert [one.name for one in table.schema().fields] == ["offset", "headers", "name"]
    with pytest.raises(JobError, match="the type of offset has changed"):
        add_columns(table, "t", pa.schema([("offset", pa.string())]))


def test_names_of_a_record_differ_in_any_case() -> None:
    inner = pa.struct([("x", pa.int64()), ("X", pa.int64())])
    require_distinct_names(
        "t", pa.schema([("a", pa.struct([("x", pa.int64())])), ("b", pa.struct([("x", pa.int64())]))])
    )
    for kind in (inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.struct([("of", inner)])):
        with pytest.raises(JobError, match="column a has two fields 'X' in different case"):
            require_distinct_names("t", pa.schema([("a", kind)]))
