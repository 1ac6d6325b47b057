"""Values as JSON and back, by schemas of all formats."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.json_form import json_form, with_header
from tidelog.pipeline.values.registry import RegisteredSchema, UndecodableError, split_header

INNER = RegisteredSchema(
    1, "AVRO", json.dumps({"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]})
)
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "raw", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": "Money"},
]
AVRO = RegisteredSchema(
    7, "AVRO", json.dumps({"type": "record", "name": "Order", "fields": FIELDS}), (("Money", INNER),)
)
ORDER = {"id": 5, "note": {"string": "a"}, "raw": "\xff\x00", "at": 2**62, "price": {"cents": 3}}
JSON_INNER = RegisteredSchema(2, "JSON", '{"type": "integer"}')
JSON = RegisteredSchema(
    8,
    "JSON",
    '{"type": "object", "properties": {"n": {"$ref": "n.json"}}, "additionalProperties": false}',
    (("n.json", JSON_INNER),),
)


def protobuf() -> RegisteredSchema:
    """Build a file with two messages: the first has a number, the second contains a third one with a text."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First").field.add(name="whole_number", number=1, type=5, label=1)
    second = file.message_type.add(name="Second")
    second.nested_type.add(name="Inside").field.add(name="text", number=1, type=9, label=1)
    return RegisteredSchema(9, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode())


CASES = [
    pytest.param(AVRO, ORDER, id="avro"),
    pytest.param(AVRO, {**ORDER, "note": None}, id="null of a union"),
    pytest.param(RegisteredSchema(3, "AVRO", '"string"'), "a", id="avro text"),
    pytest.param(RegisteredSchema(4, "AVRO", '["null", "long"]'), {"long": 4}, id="avro union"),
    pytest.param(JSON, {"n": 4}, id="json"),
    pytest.param(protobuf(), {"whole_number": 4}, id="protobuf"),
]


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_encoded_values_are_decoded_to_themselves(schema: RegisteredSchema, value: Any) -> None:
    form = json_form(schema)
    number, payload = split_header(with_header(schema, form.write(value)))
    assert number == schema.id
    assert form.read(payload) == value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (AVRO, {**ORDER, "id": "five"}),
        (AVRO, {**ORDER, "note": "a"}),
        (AVRO, {**ORDER, "nothing": 1}),
        (AVRO, {"id": 5}),
        (AVRO, []),
        (AVRO, 3),
        (JSON, {"n": "a"}),
        (JSON, {"m": 1}),
        (protobuf(), {"whole_number": "a"}),
        (protobuf(), {"nothing": 1}),
        (protobuf(), {"no\nthing": 1}),
        (protobuf(), {"whole_number": "a\nb"}),
        (protobuf(), 3),
        (AVRO, {**ORDER, "a\nb": 1}),
        (AVRO, {**ORDER, "note": {"a\nb": 1}}),
        (RegisteredSchema(12, "AVRO", '{"type": "enum", "name": "E", "symbols": ["A"]}'), "a\nb"),
        (RegisteredSchema(13, "AVRO", '["null", "long"]'), {"a\nb": 1}),
        (JSON, {"a\nb": 1}),
        (RegisteredSchema(14, "JSON", '{"enum": ["a\\nb"], "description": "a\\nb"}'), "c"),
        (RegisteredSchema(15, "JSON", '{"type": "a\\nb"}'), "c"),
        (RegisteredSchema(16, "JSON", '{"$ref": "#/a\\nb"}'), "c"),
        (RegisteredSchema(17, "JSON", '{"pattern": "a\\n("}'), "c"),
    ],
)
def test_a_value_that_does_not_fit_the_schema_is_not_encoded(schema: RegisteredSchema, value: Any) -> None:
    """The error is one line."""
    with pytest.raises(UndecodableError, match=f"schema {schema.id}") as raised:
        json_form(schema).write(value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("schema", [AVRO, JSON, protobuf()])
@pytest.mark.parametrize("payload", [b"", b"\xff", b"\xff" * 40])
def test_bytes_that_do_not_fit_the_schema_are_not_decoded(schema: RegisteredSchema, payload: bytes) -> None:
    with pytest.raises(UndecodableError) as raised:
        json_form(schema).read(payload)
    assert len(str(raised.value).splitlines()) == 1


def test_bytes_after_a_value_are_an_error() -> None:
    form = json_form(AVRO)
    with pytest.raises(UndecodableError, match="bytes follow"):
        form.read(form.write(ORDER) + b"\0")


def test_a_message_is_found_by_its_indices() -> None:
    body = b"\x0a\x01x"
    assert json_form(protobuf()).read(b"\x04\x02\x00" + body) == {"text": "x"}
    with pytest.raises(UndecodableError, match="no message"):
        json_form(protobuf()).read(b"\x02\x0c" + body)


def test_a_message_that_has_no_json_is_not_read() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/any.proto"])
    message = file.message_type.add(name="First")
    message.field.add(name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp")
    message.field.add(name="any", number=2, type=11, label=1, type_name=".google.protobuf.Any")
    form = json_form(RegisteredSchema(10, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode()))
    for body in (b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f", b"\x12\x05\x0a\x03a/b"):
        with pytest.raises(UndecodableError, match="schema 10"):
            form.read(b"\x00" + body)


@pytest.mark.parametrize(
    ("text", "value"), [("{}", float("nan")), ('{"$ref": "http://none/x.json"}', 1), ('{"pattern": "("}', "a")]
)
def test_a_value_that_cannot_be_validated_or_is_no_json_is_not_encoded(text: str, value: Any) -> None:
    with pytest.raises(UndecodableError, match="schema 11"):
        json_form(RegisteredSchema(11, "JSON", text)).write(value)


TWICE = descriptor_pb2.FileDescriptorProto(name="t.proto", package="shop")
TWICE.message_type.add(name="First")
TWICE.message_type.add(name="First")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '{"type": "nothing"}'),
        ("AVRO", '{"type": {"type": 1}}'),
        ("AVRO", '{"type": "record"}'),
        ("AVRO", '{"type": "no\\nthing"}'),
        ("AVRO", '{"type": "enum", "name": "E", "symbols": ["a\\nb"]}'),
        ("JSON", "{"),
        ("JSON", '{"$schema": "a\\nb", "$id": "a\\nb"'),
        ("THRIFT", ""),
        ("PROTOBUF", "e30="),
        ("PROTOBUF", base64.b64encode(TWICE.SerializeToString()).decode()),
    ],
)
def test_an_invalid_schema_is_refused(kind: str, text: str) -> None:
    """The error is one line."""
    with pytest.raises(BadRequestError, match="schema 1") as raised:
        json_form(RegisteredSchema(1, kind, text))
    assert len(str(raised.value).splitlines()) == 1
