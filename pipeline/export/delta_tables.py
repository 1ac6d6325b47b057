"""Requirements of an export on a Delta table that exists: its columns, partitions and constraints.

deltalake adds any file to any table. But readers see only the columns of the table's schema, and cannot read a file
that has one of them with another type. They take the values of partition columns from the Delta log, where a file of an
export has none. Delta takes two names for one if they differ only in case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.options.columns import require_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field

_CONSTRAINT = "delta.constraints."


def require_fitting_table(table: DeltaTable | None, uri: str, schema: pa.Schema) -> None:
    """Raise JobError if a table lacks a column of ``schema`` or has it with another type, is partitioned, or has
    constraints, which an export would not check."""
    if table is None:
        return
    metadata = table.metadata()
    if metadata.partition_columns:
        raise JobError(
            f"Delta table {uri} is partitioned by {', '.join(metadata.partition_columns)}: expected no partitions"
        )
    constraints = sorted(name for name in metadata.configuration if name.startswith(_CONSTRAINT))
    if constraints:
        name = constraints[0].removeprefix(_CONSTRAINT)
        raise JobError(f"Delta table {uri} has the constraint {name}, which exports do not check: expected none")
    known = {one.name: one.type for one in table.schema().fields}
    wanted = _fields(schema)
    require_columns(f"Delta table {uri}", known, [one.name for one in wanted])
    for one in wanted:
        if one.type != known[one.name]:
            found, expected = _type_text(known[one.name]), _type_text(one.type)
            raise JobError(f"Delta table {uri}: column {one.name} is {found}: expected {expected}")


def require_removable_files(table: DeltaTable, uri: str) -> None:
    """Raise JobError if an upsert may not replace a table's files: the table is append-only or has deletion vectors."""
    import pyarrow as pa

    if table.metadata().configuration.get("delta.appendOnly") == "true":
        raise JobError(f"Delta table {uri} has delta.appendOnly=true: an upsert removes files, expected false")
    if pa.table(table.deletion_vectors()).num_rows:
        raise JobError(f"Delta table {uri} has deletion vectors: expected none, purge the table first")


def require_distinct_names(uri: str, schema: pa.Schema) -> None:
    """Raise JobError if a struct in a column has two fields whose names differ only in case."""
    for one in schema:
        repeated = _repeated_name(one.type)
        if repeated is not None:
            raise JobError(
                f"Delta table {uri}: column {one.name} has two fields {repeated!r} in different case, which Delta "
                "takes for one; expected another kind of table"
            )


def add_columns(table: DeltaTable, uri: str, schema: pa.Schema) -> None:
    """Add the columns of ``schema`` that a table lacks. Raises JobError if a column would have to change its type."""
    wanted, known = _fields(schema), {one.name: one for one in table.schema().fields}
    changed = [one.name for one in wanted if one.name in known and one.type != known[one.name].type]
    if changed:
        raise JobError(
            f"Delta table {uri}: the type of {', '.join(changed)} has changed, which Delta does not support; expected "
            "a new table"
        )
    new = [one for one in wanted if one.name not in known]
    if new:
        table.alter.add_columns(new)


def _fields(schema: pa.Schema) -> list[Field]:
    from deltalake import Schema

    converted: Any = Schema.from_arrow(schema)
    fields: list[Field] = converted.fields
    return fields


def _repeated_name(kind: Any) -> str | None:
    """Return the first field name in a type that differs at most in case from another field's name in its struct; None
    if there is none."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    seen = set[str]()
    for one in fields:
        if one.name.lower() in seen:
            return str(one.name)
        seen.add(one.name.lower())
    return next((found for one in fields if (found := _repeated_name(one.type)) is not None), None)


def _type_text(found: Any) -> str:
    """Write a column's type with Delta's name."""
    return str(getattr(found, "type", found))
