"""Conversion of values to JSON and of JSON to values, by a schema of a registry.

Avro has a JSON form of its own: bytes are text with one character for each, a union's value names its type, and logical
types appear as their plain types. Protobuf's is protojson, with the field names of the schema.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.avro_json import AvroJson
from tidelog.pipeline.values.formats import check_bounds, message_at, parsed_avro, protobuf_file
from tidelog.pipeline.values.registry import MAGIC, RegisteredSchema, UndecodableError, read_indices
from tidelog.protocol.foreign_text import decode_json

FIRST_MESSAGE = b"\0"
"""Indices of the first message of a Protobuf file."""


class JsonForm(NamedTuple):
    """A function from payload to JSON and one back. Both raise UndecodableError for a value that does not match the
    schema, or is nested too deeply; for a JSON schema ``read`` checks only that the payload is JSON.
    """

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


@lru_cache(maxsize=100)
def json_form(schema: RegisteredSchema) -> JsonForm:
    """Return the JSON form of values of a schema. Raises BadRequestError for an invalid schema, ImportError."""
    kind = _KINDS.get(schema.kind)
    if kind is None:
        raise BadRequestError(f"schema {schema.id}: values of {schema.kind} have no JSON form")
    return kind(schema)


def with_header(schema: RegisteredSchema, payload: bytes) -> bytes:
    """Return the bytes of a value with the header that names its schema."""
    return bytes([MAGIC]) + schema.id.to_bytes(4, "big") + payload


def _avro_form(schema: RegisteredSchema) -> JsonForm:
    # fastavro's compiled reader is not used. A value of a type that contains itself could overflow its stack and end
    # the process, and no other thread runs while it reads many small items. Python's reader limits recursion, and lets
    # other threads run.
    import fastavro
    from fastavro._read_py import schemaless_reader

    named: dict[str, Any] = {}
    parsed = parsed_avro(schema, named, set(), logical=())
    check_bounds(schema, parsed, named)
    form = AvroJson(named)

    def read(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        try:
            found = form.json_of(parsed, schemaless_reader(stream, parsed, None, return_named_type=True))
        except _MISFITS as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {one_line(error)}") from error
        if stream.tell() != len(payload):
            raise UndecodableError(f"bytes follow what schema {schema.id} describes")
        return found

    def write(value: Any) -> bytes:
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, parsed, form.datum_of(parsed, value))
        except _MISFITS as error:
            reason = f"it is not of schema {schema.id} in Avro's JSON form: {one_line(error)}"
            raise UndecodableError(reason) from error
        return stream.getvalue()

    return JsonForm(read, write)


_MISFITS = (
    ValueError, TypeError, EOFError, LookupError, OverflowError, StopIteration, AttributeError, RecursionError,
)  # fmt: skip


def _json_form(schema: RegisteredSchema) -> JsonForm:
    from jsonschema import Draft7Validator, SchemaError, ValidationError
    from jsonschema.exceptions import UnknownType
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT7

    try:
        known = {name: Resource.from_contents(decode_json(one.text), DRAFT7) for name, one in _all_references(schema)}
        text = decode_json(schema.text)
        validator = validator_for(text, Draft7Validator)(text, registry=Registry().with_resources(known.items()))
    except _MISFITS as error:
        raise BadRequestError(f"schema {schema.id}: {one_line(error)}, expected a JSON schema") from error

    def read(payload: bytes) -> Any:
        try:
            return decode_json(payload)
        except ValueError as error:
            raise UndecodableError(f"it is not JSON: {one_line(error)}") from error

    def write(value: Any) -> bytes:
        try:
            validator.validate(value)
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValidationError as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {error.message}") from error
        except (SchemaError, UnknownType, Unresolvable, re.error, *_MISFITS) as error:
            raise UndecodableError(f"it cannot be checked by schema {schema.id}: {one_line(error)}") from error
        return text.encode("utf-8", "backslashreplace")

    return JsonForm(read, write)


def _all_references(schema: RegisteredSchema) -> set[tuple[str, RegisteredSchema]]:
    found: set[tuple[str, RegisteredSchema]] = set()
    waiting = list(schema.references)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += one[1].references
    return found


def _protobuf_form(schema: RegisteredSchema) -> JsonForm:
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    protobuf_file(schema)  # raises BadRequestError now, not with each value

    def read(payload: bytes) -> Any:
        indices, body = read_indices(payload)
        try:
            message = GetMessageClass(message_at(schema, indices)).FromString(body)
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except (DecodeError, json_format.Error, *_MISFITS) as error:  # as an Any of no known type
            raise UndecodableError(f"it is not of schema {schema.id}: {one_line(error)}") from error

    def write(value: Any) -> bytes:
        message = GetMessageClass(message_at(schema, [0]))()
        try:
            json_format.ParseDict(value, message)
        except (json_format.Error, *_MISFITS) as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {one_line(error)}") from error
        return FIRST_MESSAGE + bytes(message.SerializeToString())

    return JsonForm(read, write)


_KINDS: dict[str, Callable[[RegisteredSchema], JsonForm]] = {
    "AVRO": _avro_form,
    "JSON": _json_form,
    "PROTOBUF": _protobuf_form,
}
