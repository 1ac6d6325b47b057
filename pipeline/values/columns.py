"""Columns of a table that come from decoded values: their schema, which the table keeps, how it widens, and the columns
of a batch.

A field has the column of its name, or ``value_<name>`` where that is the name of another column in any case: Spark and
Delta do not distinguish ``key`` and ``Key``. All are nullable. The table's schema only widens: a new field adds a
column, in a struct too; an int becomes a long, and a float a double. Any other change of a field's type is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.options.columns import NAMES
from tidelog.pipeline.values.column_bounds import ColumnBounds
from tidelog.pipeline.values.formats import Reader, arrow_type, read_json, read_json_of, reader_of
from tidelog.pipeline.values.registry import RegisteredSchema, Registry, UndecodableError, split_header

if TYPE_CHECKING:
    import pyarrow as pa

#: Metadata of an encoded type whose columns have distinct names in any case; those of former releases do not have it.
_IN_ANY_CASE = {b"names": b"in any case"}
FORMATS = ("json", "registry")
"""Formats of values: plain JSON, and values that begin with the id of a schema in a registry."""


def encode_type(schema: pa.StructType, earlier: str = "") -> str:
    """Encode a struct type as text. ``earlier``: the text of the table so far, whose columns keep their names."""
    import pyarrow as pa

    names = _read_schema(earlier).metadata if earlier else _IN_ANY_CASE
    return base64.b64encode(pa.schema(list(schema), names).serialize().to_pybytes()).decode()


def decode_type(text: str) -> pa.StructType:
    """Decode a struct type from the text of ``encode_type``."""
    import pyarrow as pa

    return pa.struct(list(_read_schema(text)))


def _read_schema(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def column_fields(text: str) -> list[pa.Field]:
    """Return the table columns for the fields of its values, whose type is encoded in ``text``."""
    schema = _read_schema(text)
    fold = str.lower if schema.metadata == _IN_ANY_CASE else str
    known, found = {fold(name) for name in NAMES}, []
    for one in schema:
        name = one.name
        while fold(name) in known:
            name = f"value_{name}"
        known.add(fold(name))
        found.append(one.with_name(name).remove_metadata())
    return found


def widen(known: Any, new: Any, path: str = "") -> Any:
    """Return the type that has the fields of both. Raises TypeError with the first field whose types do not fit."""
    import pyarrow as pa

    if known.equals(new) or {known, new} == {pa.int32(), pa.int64()}:
        return known if known.equals(new) else pa.int64()
    if {known, new} == {pa.float32(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        others = {one.name: one for one in new}
        fields = [
            pa.field(one.name, widen(one.type, others.pop(one.name).type, f"{path}.{one.name}"))
            if one.name in others
            else one
            for one in known
        ]
        return pa.struct([*fields, *others.values()])
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(pa.field("element", widen(known.value_type, new.value_type, path)))
    raise TypeError(f"{path.lstrip('.') or 'the value'} is {known} and {new}")


@dataclass(slots=True)
class ValueColumns:
    """Decoder of a table's values to columns. ``pinned``: the schema of these columns that the table keeps, as the text
    of ``encode_type``. ``registry`` None: plain JSON.

    One process; it is pickled without the schemas that it has read.
    """

    pinned: str
    registry: Registry | None
    _readers: dict[int, Reader] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueColumns, (self.pinned, self.registry)

    def fields(self) -> list[pa.Field]:
        """Return the columns of values, which follow those of the record in a table."""
        return column_fields(self.pinned)

    def add_to(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Add the columns to the batch. Also return row -> reason of the values that could not be decoded, whose
        columns are null. Raises JobError for a schema that has no columns or does not fit the table's, or when the
        registry fails.
        """
        import pyarrow as pa

        schema, wrong = decode_type(self.pinned), dict[int, str]()
        rows = []
        for number, value in enumerate(batch.column("value").to_pylist()):
            try:
                rows.append(None if value is None else self._decode(value, schema, batch, number))
            except UndecodableError as error:
                rows.append(None)
                wrong[number] = str(error)
        found = _array(rows, schema, wrong)
        full = pa.schema([*batch.schema, *self.fields()])
        return pa.RecordBatch.from_arrays([*batch.columns, *found.flatten()], schema=full), wrong

    def _decode(self, value: bytes, schema: pa.StructType, batch: pa.RecordBatch, row: int) -> Any:
        if self.registry is None:
            return read_json_of(value, schema)
        number, payload = split_header(value)
        reader = self._readers.get(number)
        if reader is None:
            registered = self.registry.schema_by_id(number)
            self._require_fitting(registered, schema, batch.slice(row, 1))
            reader = self._readers[number] = reader_of(registered)
        return reader(payload)

    def _require_fitting(self, registered: RegisteredSchema, schema: pa.StructType, record: pa.RecordBatch) -> None:
        """Raise JobError if the schema of a record has fields or types that the table's does not have."""
        assert self.registry is not None
        found, place = arrow_type(registered), f"offset {record.column('offset')[0]} has schema {registered.id}"
        try:
            widened = widen(schema, found)
        except TypeError as error:
            raise JobError(
                f"{place}, which does not fit the table's: {error}. The table has {schema}, the schema {found}"
            ) from None
        if widened.equals(schema):
            return
        subject = f"{record.column('topic')[0]}-value"
        if registered.id in {one.id for one in self.registry.versions(subject)}:
            raise JobError(f"{place}, which is newer than this run; run it again")
        raise JobError(
            f"{place}, which has other fields than the table and is no version of the subject {subject}: expected "
            f"schemas that are registered under {subject}"
        )


def _array(rows: list[Any], schema: pa.StructType, wrong: dict[int, str]) -> pa.StructArray:
    """Build an array of rows; those that do not fit the schema become null, and their reasons are added to
    ``wrong``."""
    import pyarrow as pa

    try:
        return pa.array(rows, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for number, row in enumerate(rows):
            try:
                pa.array([row], schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                rows[number] = None
                wrong[number] = f"it does not fit the columns: {one_line(error)}"
        return pa.array(rows, schema)


def registered_type(registry: Registry, topics: Sequence[str], known: pa.StructType | None) -> pa.StructType | None:
    """Return the type that has the fields of ``known`` and of all schemas of the topics' subjects, ``<topic>-value``;
    None if both are missing.

    Deleted versions count, too, because records may have their ids, but only if their fields fit. Raises
    BadRequestError for a version that does not fit, JobError when the registry fails.
    """
    for topic in topics:
        for schema in registry.versions(f"{topic}-value"):
            new = arrow_type(schema)
            try:
                known = new if known is None else widen(known, new)
            except TypeError as error:
                raise BadRequestError(
                    f"schema {schema.id} of {topic}-value does not fit: {error}. "
                    f"The table has {known}, the schema {new}"
                ) from None
    for topic in topics:
        for schema in registry.deleted_versions(f"{topic}-value"):
            with suppress(TypeError, BadRequestError):
                new = arrow_type(schema)
                known = new if known is None else widen(known, new)
    return known


def inferred_type(values: Iterable[bytes | None]) -> pa.StructType | None:
    """Infer the type of JSON values; None if no value has a field that is not null. Fields that are always null are
    left out. Values that are no JSON objects, or that Arrow cannot represent, are skipped. Raises BadRequestError.
    """
    import pyarrow as pa

    rows = []
    for value in values:
        try:
            rows.append(None if value is None else read_json(value))
            pa.infer_type(rows[-1:])
        except UndecodableError:
            continue
        except (pa.ArrowException, UnicodeError):  # a list of several types, or a name with a lone surrogate
            rows.pop()
    try:
        found = pa.infer_type(rows)
    except pa.ArrowException as error:
        raise BadRequestError(f"the values have no common schema: {error}") from None
    without = _remove_nulls(found, ColumnBounds("the values"))
    return without if without is not None and pa.types.is_struct(without) else None


def _remove_nulls(found: Any, bounds: ColumnBounds) -> Any:
    import pyarrow as pa

    if pa.types.is_null(found):
        return None
    if pa.types.is_struct(found):
        kept = []
        for one in found:
            with bounds.count_column():
                kind = _remove_nulls(one.type, bounds)
            if kind is not None:
                kept.append(pa.field(one.name, kind))
        return pa.struct(kept) if kept else None
    if pa.types.is_list(found):
        with bounds.enter_level():
            inner = _remove_nulls(found.value_type, bounds)
        return None if inner is None else pa.list_(pa.field("element", inner))
    return found
