"""Avro, JSON and Protobuf: the Arrow types of their schemas, and values as Python objects of those types."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.avro_bounds import AvroBounds
from tidelog.pipeline.values.column_bounds import ColumnBounds
from tidelog.pipeline.values.registry import RegisteredSchema, UndecodableError, read_indices
from tidelog.protocol.foreign_text import decode_json, show_json

if TYPE_CHECKING:
    import pyarrow as pa

Reader = Callable[[bytes], Any]
T = TypeVar("T")


def arrow_type(schema: RegisteredSchema) -> pa.StructType:
    """Return the Arrow type of a schema's records; for Protobuf it is that of the first message. Raises
    BadRequestError."""
    import pyarrow as pa

    found = _of_kind(_TYPES, schema)(schema)
    if not pa.types.is_struct(found):
        raise BadRequestError(f"schema {schema.id}: a {found} has no columns, expected a record")
    return found


def _struct(fields: list[pa.Field], number: int) -> pa.StructType:
    import pyarrow as pa

    if not fields:
        raise BadRequestError(f"schema {number}: Parquet has no column for a record without fields")
    return pa.struct(fields)


def reader_of(schema: RegisteredSchema) -> Reader:
    """Return a function that decodes a payload to a dictionary, or raises UndecodableError.

    Raises BadRequestError for a schema that cannot be used, UndecodableError for a Protobuf file without messages.
    """
    return _of_kind(_READERS, schema)(schema)


def _of_kind(functions: Mapping[str, T], schema: RegisteredSchema) -> T:
    """Return the function for a schema's kind. Raises BadRequestError for a kind that is not known here."""
    if schema.kind not in functions:
        raise BadRequestError(f"schema {schema.id} is of kind {schema.kind}; expected one of {', '.join(functions)}")
    return functions[schema.kind]


# ---- Avro


def _avro_type(schema: RegisteredSchema) -> pa.DataType:
    named: dict[str, Any] = {}
    parsed = parsed_avro(schema, named, set())
    return _AvroColumns(schema.id, named).type_of(parsed)


class _AvroColumns:
    """Converter of a parsed Avro schema to Arrow types; ``named`` has the types that it refers to by name."""

    def __init__(self, number: int, named: Mapping[str, Any]) -> None:
        self._number = number
        self._named = named
        self._bounds = ColumnBounds(f"schema {number}")
        self._around: list[str] = []

    def type_of(self, node: Any) -> pa.DataType:
        """Return the type of a node. Raises BadRequestError."""
        if isinstance(node, list):
            return self._of_union(node)
        if isinstance(node, str):
            return self.type_of(self._named[node]) if node in self._named else self._simple_type(node)
        return self._of_definition(node)

    def _of_union(self, node: list[Any]) -> pa.DataType:
        others = [one for one in node if one != "null"]
        if any(isinstance(one, list) for one in others):
            raise BadRequestError(f"schema {self._number}: a union is directly inside a union, which is not Avro")
        if len(others) != 1:
            raise BadRequestError(
                f"schema {self._number}: a union of {len(others)} types has no column, expected one type, or one and "
                "null"
            )
        return self.type_of(others[0])

    def _of_definition(self, node: dict[str, Any]) -> pa.DataType:
        import pyarrow as pa

        kind = node["type"]
        if kind == "record":
            return self._of_record(node)
        if node.get("logicalType") == "decimal":
            return pa.decimal128(node["precision"], node.get("scale", 0))
        if kind in ("enum", "fixed"):
            return pa.string() if kind == "enum" else pa.binary()
        if kind == "array":
            with self._bounds.enter_level():
                return pa.list_(pa.field("element", self.type_of(node["items"])))
        if kind == "map":
            with self._bounds.enter_level():
                return pa.map_(pa.string(), self.type_of(node["values"]))
        return self._simple_type(node.get("logicalType", ""), kind)

    def _of_record(self, node: dict[str, Any]) -> pa.DataType:
        name = node["name"]
        if name in self._around:
            raise BadRequestError(f"schema {self._number}: {name} contains itself, so it has no column")
        self._around.append(name)
        fields = [self._of_field(one) for one in node["fields"]]
        self._around.pop()
        return _struct(fields, self._number)

    def _of_field(self, field: dict[str, Any]) -> pa.Field:
        import pyarrow as pa

        with self._bounds.count_column():
            return pa.field(field["name"], self.type_of(field["type"]))

    def _simple_type(self, name: str, fallback: Any = None) -> pa.DataType:
        return _simple_type(_AVRO_TYPES, name, self._number, fallback)


#: Avro's logical types that have an Arrow type; others are read as their plain type.
_LOGICAL = ("decimal", "date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros")
_MAX_DIGITS = 38
"""Digits of the widest decimal column, a decimal128."""

_AVRO_TYPES = {
    "string": "string", "bytes": "binary", "int": "int32", "long": "int64", "float": "float32", "double": "float64",
    "boolean": "bool_", "date": "date32", "timestamp-millis": "utc", "timestamp-micros": "utc",
    "time-millis": "time", "time-micros": "time",
}  # fmt: skip


def _simple_type(types: Mapping[str, str], name: str, number: int, fallback: Any = None) -> pa.DataType:
    import pyarrow as pa

    known = types.get(name) or (types.get(fallback) if isinstance(fallback, str) else None)
    if known is None:
        raise BadRequestError(f"schema {number}: no column for type {name or fallback}")
    if known == "utc":
        return pa.timestamp("us", tz="UTC")
    return pa.time64("us") if known == "time" else getattr(pa, known)()


def parsed_avro(
    schema: RegisteredSchema,
    named: dict[str, Any],
    known: set[int],
    logical: tuple[str, ...] = _LOGICAL,
) -> Any:
    """Parse a schema, after those it refers to. Names become full names; logical types not in ``logical`` are removed.

    ``named`` collects the named types, and ``known`` the ids of the references that were parsed. Raises
    BadRequestError.
    """
    import fastavro
    from fastavro.schema import SchemaParseException

    for _, reference in schema.references:
        if reference.id not in known:
            known.add(reference.id)
            parsed_avro(reference, named, known, logical)
    try:
        return fastavro.parse_schema(_remove_logical(decode_json(schema.text), logical), named_schemas=named)
    except (SchemaParseException, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadRequestError(f"schema {schema.id}: {one_line(error)}, expected an Avro schema") from error


def _remove_logical(node: Any, kept: tuple[str, ...]) -> Any:
    """Replace logical types not in ``kept``, and decimals too wide for a column, by their plain types."""
    if isinstance(node, list):
        return [_remove_logical(one, kept) for one in node]
    if not isinstance(node, dict):
        return node
    logical = node.get("logicalType")
    is_wide = logical == "decimal" and node.get("precision", 0) > _MAX_DIGITS
    gone = ("logicalType",) if logical not in kept or is_wide else ()
    return {
        name: _remove_logical(one, kept) if name in ("type", "items", "values", "fields") else one
        for name, one in node.items()
        if name not in gone
    }


def check_bounds(schema: RegisteredSchema, parsed: Any, named: Mapping[str, Any]) -> None:
    """Check a schema that ``parsed_avro`` parsed, with its ``named`` types.

    Raises BadRequestError if few bytes may decode to any number of items or fields, or types are nested too deeply.
    """
    try:
        bounds = AvroBounds(parsed, named)
    except RecursionError:
        raise BadRequestError(f"schema {schema.id}: its types are nested too deeply") from None
    if bounds.is_inflated:
        raise BadRequestError(f"schema {schema.id}: a few bytes may decode to any number of items or fields")


_DECIMAL = "decimal-of-its-precision"
"""Name of the logical type by which fastavro finds ``_read_decimal``."""


def _read_decimal(data: Any, node: Any, _: object = None) -> Decimal:
    """Read the bytes of a decimal by a node of a parsed schema. fastavro's own reader rounds to the precision, and
    takes 27 s for 500,000 bytes.

    Raises ValueError if the value has more digits than the precision.
    """
    unscaled, digits = int.from_bytes(data, "big", signed=True), node["precision"]
    if abs(unscaled) >= 10**digits:
        raise ValueError(f"a decimal of {len(data)} bytes has more than {digits} digits")
    return Decimal(unscaled).scaleb(-node.get("scale", 0), Context(prec=_MAX_DIGITS))


def _read_own_decimals(node: Any) -> None:
    """Change a parsed schema in place, so that ``_read_decimal`` reads its decimals."""
    if isinstance(node, list):
        for one in node:
            _read_own_decimals(one)
    elif isinstance(node, dict):
        if node.get("logicalType") == "decimal":
            node["logicalType"] = _DECIMAL
        for name in ("type", "items", "values", "fields"):
            _read_own_decimals(node.get(name))


def _avro_reader(schema: RegisteredSchema) -> Reader:
    import fastavro
    from fastavro.read import LOGICAL_READERS

    named: dict[str, Any] = {}
    parsed = parsed_avro(schema, named, set())
    check_bounds(schema, parsed, named)
    _read_own_decimals([parsed, *named.values()])
    LOGICAL_READERS.update({f"{kind}-{_DECIMAL}": _read_decimal for kind in ("bytes", "fixed")})

    def read(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        try:
            found = fastavro.schemaless_reader(stream, parsed, None)
        except (ValueError, TypeError, EOFError, IndexError, KeyError, ArithmeticError, StopIteration) as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {one_line(error)}") from error
        if stream.tell() != len(payload):
            raise UndecodableError(f"bytes follow what schema {schema.id} describes")
        return found

    return read


# ---- JSON


def _json_type(schema: RegisteredSchema) -> pa.DataType:
    what = f"schema {schema.id}"
    try:
        node = decode_json(schema.text)
    except ValueError as error:
        raise BadRequestError(f"{what}: {one_line(error)}, expected a JSON schema") from error
    return _json(node, what, ColumnBounds(what))


def _json(node: Any, what: str, bounds: ColumnBounds) -> pa.DataType:
    """Return the Arrow type of a JSON schema; errors name it as ``what``. Raises BadRequestError."""
    import pyarrow as pa

    kinds = node.get("type") if isinstance(node, dict) else None
    kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" and isinstance(node.get("properties"), dict) and node["properties"]:
        return pa.struct([_json_field(name, one, what, bounds) for name, one in node["properties"].items()])
    if kind == "array" and isinstance(node.get("items"), dict):
        with bounds.enter_level():
            return pa.list_(pa.field("element", _json(node["items"], what, bounds)))
    known = {"integer": pa.int64, "number": pa.float64, "string": pa.string, "boolean": pa.bool_}.get(str(kind))
    if known is None:
        shown = show_json(node, 100)
        raise BadRequestError(f"{what}: no column for {shown}, expected a single type, and properties for an object")
    return known()


def _json_field(name: str, node: Any, what: str, bounds: ColumnBounds) -> pa.Field:
    import pyarrow as pa

    with bounds.count_column():
        return pa.field(name, _json(node, f"{what}, {name}", bounds))


def _json_reader(schema: RegisteredSchema) -> Reader:
    kind = _json_type(schema)
    return lambda payload: read_json_of(payload, kind)


def read_json_of(payload: bytes, kind: pa.DataType) -> Any:
    """Parse a JSON object, and check that its values are of the type. Raises UndecodableError."""
    found = read_json(payload)
    _check_json(found, kind, "")
    return found


def _check_json(value: Any, kind: Any, path: str) -> None:
    """Raise UndecodableError for a value that pyarrow would change to fit the type, such as 1.5 for an integer."""
    import pyarrow as pa

    if value is None:
        return
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for one in kind:
            _check_json(value.get(one.name), one.type, f"{path}.{one.name}")
    elif pa.types.is_list(kind) and isinstance(value, list):
        for item in value:
            _check_json(item, kind.value_type, path)
    elif not _is_json_of(value, kind):
        raise UndecodableError(f"{path.lstrip('.')} is {show_json(value, 100)}, the column is {kind}")


def _is_json_of(value: Any, kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(value, bool) or pa.types.is_boolean(kind):
        return isinstance(value, bool) and pa.types.is_boolean(kind)
    if pa.types.is_integer(kind):
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53)
    return isinstance(value, (int, float)) if pa.types.is_floating(kind) else isinstance(value, str)


def read_json(payload: bytes) -> Any:
    """Parse a JSON object. Raises UndecodableError."""
    try:
        found = decode_json(payload)
    except ValueError as error:
        raise UndecodableError(f"it is not JSON: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise UndecodableError(f"it is not a JSON object, but {type(found).__name__}")
    return found


# ---- Protobuf


@lru_cache(maxsize=1000)
def protobuf_file(schema: RegisteredSchema) -> Any:
    """Return the file descriptor of a schema. It has a pool of its own, so equal names of schemas do not clash.

    Raises BadRequestError for a schema that is not a file of Protobuf, or imports one that is not known.
    """
    from google.protobuf.message import DecodeError

    try:
        return _FilePool(schema.id).add(schema, f"schema-{schema.id}.proto")
    except (ValueError, TypeError, DecodeError) as error:
        raise BadRequestError(
            f"schema {schema.id}: {one_line(error)}, expected the descriptor of a Protobuf file"
        ) from error


class _FilePool:
    """The files that one schema imports, directly or not: those of its references, and those that Protobuf and
    registries have built in."""

    def __init__(self, number: int) -> None:
        from google.protobuf import descriptor_pool

        self._number = number
        self._pool = descriptor_pool.DescriptorPool()
        self._added = set[str]()

    def add(self, schema: RegisteredSchema, name: str) -> Any:
        """Add the file of a schema under a name, after its imports. Raises BadRequestError, ValueError, TypeError,
        DecodeError."""
        from google.protobuf import descriptor_pb2

        proto = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text))
        proto.name = name
        given = dict(schema.references)
        for dependency in proto.dependency:
            if dependency in self._added:
                continue
            if dependency in given:
                self._added.add(dependency)
                self.add(given[dependency], dependency)
            else:
                self._add_built_in(_built_in_file(dependency), dependency)
        self._pool.Add(proto)
        return self._pool.FindFileByName(name)

    def _add_built_in(self, file: Any, name: str) -> None:
        from google.protobuf import descriptor_pb2

        if file is None:
            raise BadRequestError(
                f"schema {self._number}: it imports {name}, which is neither among its references nor built in"
            )
        if name not in self._added:
            self._added.add(name)
            for one in file.dependencies:
                self._add_built_in(one, one.name)
            self._pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb))


_BUILT_IN = re.compile(r"(?P<folder>google/(protobuf|type)|confluent(/types?)?)/(?P<name>[a-z_]+)\.proto")
"""Files that schemas import without a reference: a registry has them built in."""


def _built_in_file(name: str) -> Any:
    """Return the descriptor of a file that is built in, None if there is none of this name."""
    match = _BUILT_IN.fullmatch(name)
    if match is None:
        return None
    module = f"{match['folder'].replace('/', '.')}.{match['name']}_pb2"
    try:
        return import_module(
            module if module.startswith("google") else f"confluent_kafka.schema_registry.{module}"
        ).DESCRIPTOR
    except ImportError:
        return None


def _protobuf_type(schema: RegisteredSchema) -> pa.DataType:
    try:
        return _MessageColumns(schema.id).type_of(message_at(schema, [0]))
    except UndecodableError as error:
        raise BadRequestError(str(error)) from error


def message_at(schema: RegisteredSchema, indices: list[int]) -> Any:
    """Return the descriptor of a message. ``indices``: the index of the outermost message in the file, then of each
    nested one, down to the wanted.

    Raises UndecodableError, and BadRequestError as ``protobuf_file``.
    """
    from google.protobuf import descriptor_pb2

    file = protobuf_file(schema)
    order = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb).message_type
    try:
        message = file.message_types_by_name[order[indices[0]].name]
        for index in indices[1:]:
            message = message.nested_types[index]
    except IndexError:
        raise UndecodableError(f"schema {schema.id} has no message {indices}") from None
    return message


class _MessageColumns:
    """Converter of a schema's Protobuf messages to Arrow types."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._bounds = ColumnBounds(f"schema {number}")
        self._around: list[str] = []

    def type_of(self, message: Any) -> pa.DataType:
        """Return the type of a message. Raises BadRequestError."""
        import pyarrow as pa

        name = message.full_name
        if name == "google.protobuf.Timestamp":
            return pa.timestamp("us", tz="UTC")
        if name in self._around:
            raise BadRequestError(f"schema {self._number}: {name} contains itself, so it has no column")
        self._around.append(name)
        fields = [self._of_field(one) for one in message.fields]
        self._around.pop()
        return _struct(fields, self._number)

    def _of_field(self, field: Any) -> pa.Field:
        import pyarrow as pa

        with self._bounds.count_column():
            return pa.field(field.name, self._of_values(field))

    def _of_values(self, field: Any) -> pa.DataType:
        import pyarrow as pa

        if _is_map(field):
            entry = field.message_type.fields_by_name
            with self._bounds.enter_level():
                return pa.map_(self._of_one(entry["key"]), self._of_one(entry["value"]))
        if _is_repeated(field):
            with self._bounds.enter_level():
                return pa.list_(pa.field("element", self._of_one(field)))
        return self._of_one(field)

    def _of_one(self, field: Any) -> pa.DataType:
        return self.type_of(field.message_type) if field.message_type else _scalar_type(field)


def _scalar_type(field: Any) -> pa.DataType:
    import pyarrow as pa

    types: dict[int, Any] = {
        field.CPPTYPE_INT32: pa.int32, field.CPPTYPE_INT64: pa.int64, field.CPPTYPE_UINT32: pa.int64,
        field.CPPTYPE_FLOAT: pa.float32, field.CPPTYPE_DOUBLE: pa.float64, field.CPPTYPE_BOOL: pa.bool_,
        field.CPPTYPE_ENUM: pa.string,
    }  # fmt: skip
    if field.cpp_type == field.CPPTYPE_UINT64:
        return pa.decimal128(20, 0)
    if field.cpp_type == field.CPPTYPE_STRING:
        return pa.binary() if field.type == field.TYPE_BYTES else pa.string()
    found: pa.DataType = types[field.cpp_type]()
    return found


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _protobuf_reader(schema: RegisteredSchema) -> Reader:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    def read(payload: bytes) -> Any:
        indices, body = read_indices(payload)
        if indices != [0]:
            raise UndecodableError(f"it is message {indices} of schema {schema.id}, expected the first one")
        try:
            return _convert_message(message_class.FromString(body))
        except DecodeError as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {one_line(error)}") from error

    message_class = GetMessageClass(message_at(schema, [0]))
    return read


def _convert_message(message: Any) -> Any:
    """Convert a message to a dictionary. A field that is not set is None if it has presence, else its default."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        return message.seconds * 1_000_000 + message.nanos // 1000

    def convert_value(field: Any, value: Any) -> Any:
        if field.message_type:
            return _convert_message(value)
        if field.enum_type:
            known = field.enum_type.values_by_number.get(value)
            return str(value) if known is None else known.name
        return Decimal(value) if field.cpp_type == field.CPPTYPE_UINT64 else value

    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, convert_value(of_value, value[key])) for key in value]
        elif _is_repeated(field):
            found[field.name] = [convert_value(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = convert_value(field, value)
    return found


_TYPES: dict[str, Callable[[RegisteredSchema], Any]] = {
    "AVRO": _avro_type, "JSON": _json_type, "PROTOBUF": _protobuf_type,
}  # fmt: skip
_READERS: dict[str, Callable[[RegisteredSchema], Reader]] = {
    "AVRO": _avro_reader, "JSON": _json_reader, "PROTOBUF": _protobuf_reader,
}  # fmt: skip
