"""Values as JSON for people and programs, and JSON as values, by a schema of a registry.

Avro has a JSON form of its own: bytes are text of one character for each, a union's value names its type, and logical
types stand as the plain ones below them. Protobuf's is that of protojson, with the names of the schema's fields.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.avro_bounds import AvroBounds
from tidelog.pipeline.values.formats import message_at, parsed_avro
from tidelog.pipeline.values.registry import MAGIC, RegisteredSchema, UndecodableError, read_indices

FIRST_MESSAGE = b"\0"
"""Indices of the first message of a Protobuf file."""


class JsonForm(NamedTuple):
    """The two ways between a payload and JSON. Both raise UndecodableError for what is not of the schema.

    Where ``is_recursive``, reading a hostile payload may need more stack than a thread has.
    """

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    is_recursive: bool = False


@lru_cache(maxsize=100)
def json_form(schema: RegisteredSchema) -> JsonForm:
    """The JSON form of values of a schema. Raises BadRequestError for what is no schema, ImportError."""
    kind = _KINDS.get(schema.kind)
    if kind is None:
        raise BadRequestError(f"schema {schema.id}: values of {schema.kind} have no JSON form")
    return kind(schema)


def with_header(schema: RegisteredSchema, payload: bytes) -> bytes:
    """The bytes of a value whose schema has an id."""
    return bytes([MAGIC]) + schema.id.to_bytes(4, "big") + payload


def _avro_form(schema: RegisteredSchema) -> JsonForm:
    import fastavro

    named: dict[str, Any] = {}
    parsed = parsed_avro(schema, named, set(), expand=False, logical=())
    bounds = AvroBounds(parsed, named)
    if bounds.has_free_items:
        raise BadRequestError(f"schema {schema.id}: an array of items without bytes may have any length")

    def read(payload: bytes) -> Any:
        stream, text = io.BytesIO(payload), io.StringIO()
        try:
            fastavro.json_writer(text, parsed, [fastavro.schemaless_reader(stream, parsed, None)])
            found = json.loads(text.getvalue())
        except _MISFITS as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {error or type(error).__name__}") from error
        if stream.tell() != len(payload):
            raise UndecodableError(f"bytes follow what schema {schema.id} describes")
        return found

    def write(value: Any) -> bytes:
        _refuse_unknown(value, parsed, schema.id)
        stream = io.BytesIO()
        try:
            (one,) = fastavro.json_reader(io.StringIO(json.dumps(value)), parsed)
            fastavro.schemaless_writer(stream, parsed, one)
        except _MISFITS as error:
            reason = f"it is not of schema {schema.id} in Avro's JSON form: {error or type(error).__name__}"
            raise UndecodableError(f'{reason} (a value of a union names its type, as {{"string": "a"}})') from error
        return stream.getvalue()

    return JsonForm(read, write, bounds.is_recursive)


_MISFITS = (
    ValueError, TypeError, EOFError, LookupError, OverflowError, StopIteration, AttributeError, RecursionError,
)  # fmt: skip


def _refuse_unknown(value: Any, parsed: Any, number: int) -> None:
    """Raises UndecodableError for a field that the record has not, which would be left out."""
    fields = parsed.get("fields") if isinstance(parsed, Mapping) else None
    if fields is None or not isinstance(value, Mapping):
        return
    unknown = sorted(set(value) - {field["name"] for field in fields})
    if unknown:
        raise UndecodableError(f"schema {number} has no field {unknown[0]!r}")


def _json_form(schema: RegisteredSchema) -> JsonForm:
    from jsonschema import Draft7Validator, ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    known = {name: Resource.from_contents(json.loads(one.text), DRAFT7) for name, one in _all_references(schema)}
    text = json.loads(schema.text)
    validator = validator_for(text, Draft7Validator)(text, registry=Registry().with_resources(known.items()))

    def read(payload: bytes) -> Any:
        try:
            return json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise UndecodableError(f"it is no JSON: {error}") from error

    def write(value: Any) -> bytes:
        try:
            validator.validate(value)
        except ValidationError as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {error.message}") from error
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")

    return JsonForm(read, write)


def _all_references(schema: RegisteredSchema) -> list[tuple[str, RegisteredSchema]]:
    found = list(schema.references)
    for _, one in schema.references:
        found += _all_references(one)
    return found


def _protobuf_form(schema: RegisteredSchema) -> JsonForm:
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    def read(payload: bytes) -> Any:
        indices, body = read_indices(payload)
        try:
            message = GetMessageClass(message_at(schema, indices)).FromString(body)
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except (DecodeError, json_format.Error) as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {error}") from error

    def write(value: Any) -> bytes:
        message = GetMessageClass(message_at(schema, [0]))()
        try:
            json_format.ParseDict(value, message)
        except (json_format.Error, *_MISFITS) as error:
            raise UndecodableError(f"it is not of schema {schema.id}: {error}") from error
        return FIRST_MESSAGE + bytes(message.SerializeToString())

    return JsonForm(read, write)


_KINDS: dict[str, Callable[[RegisteredSchema], JsonForm]] = {
    "AVRO": _avro_form,
    "JSON": _json_form,
    "PROTOBUF": _protobuf_form,
}
