"""Compatibility rules: tables of which schema can read which other one's data, for the three formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tidelog.broker.schema_registry.compatibility import avro, json_schema, protobuf
from tidelog.broker.schema_registry.compatibility.bounds import MAX_FAULTS
from tidelog.broker.schema_registry.formats.formats import parse, reading_faults
from tidelog.broker.schema_registry.formats.protobuf import MAIN, compile_files
from tidelog.broker.schema_registry.formats.schema import ParsedSchema, Source
from tidelog.broker.schema_registry.records import RegisteredSchema
from tidelog.broker.schema_registry.service import RegisteredSource, compatibility_faults


def faults(kind: str, reader: str, writer: str) -> list[str]:
    return reading_faults(parse(Source(kind, reader)), parse(Source(kind, writer)))


def record(*fields: Any, name: str = "R", **others: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **others}


def enum(*symbols: str, **others: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **others}


A: dict[str, Any] = {"name": "a", "type": "int"}
B: dict[str, Any] = {"name": "b", "type": "string"}
B_DEFAULT = {**B, "default": ""}
RING = record({"name": "next", "type": ["null", "R"]})

AVRO = [
    # reader, writer, the first fault's type
    ("int", "int", None),
    ("long", "int", None),
    ("float", "long", None),
    ("double", "float", None),
    ("bytes", "string", None),
    ("string", "bytes", None),
    ("int", "long", "TYPE_MISMATCH"),
    ("string", "int", "TYPE_MISMATCH"),
    (["null", "int"], "int", None),
    (["null", "long"], "int", None),
    (["null", "string"], "int", "MISSING_UNION_BRANCH"),
    ("int", ["int"], None),
    ("int", ["null", "int"], "TYPE_MISMATCH"),
    (["null", "int", "string"], ["null", "int"], None),
    (["null", "int"], ["null", "int", "string"], "MISSING_UNION_BRANCH"),
    (record(A, B), record(A), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    (record(A, B_DEFAULT), record(A), None),
    (record(A), record(A, B), None),
    (record({**A, "type": "long"}), record(A), None),
    (record(A), record({**A, "type": "long"}), "TYPE_MISMATCH"),
    (record({"name": "b", "type": "int", "aliases": ["a"]}), record(A), None),
    (record(A, name="S"), record(A), "NAME_MISMATCH"),
    (record(A, name="S", aliases=["R"]), record(A), None),
    (record(A, name="n.R"), record(A), None),
    (RING, RING, None),
    (enum("X", "Y"), enum("X"), None),
    (enum("X"), enum("X", "Y"), "MISSING_ENUM_SYMBOLS"),
    (enum("X", default="X"), enum("X", "Y"), None),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, None),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "TYPE_MISMATCH"),
    ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, None),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, "TYPE_MISMATCH"),
    ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "FIXED_SIZE_MISMATCH"),
    ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "n.F", "size": 2}, None),
]


@pytest.mark.parametrize(("reader", "writer", "fault"), AVRO)
def test_avro_schemas_are_compared(reader: Any, writer: Any, fault: str | None) -> None:
    check(faults("AVRO", json.dumps(reader), json.dumps(writer)), fault)


def check(found: list[str], fault: str | None) -> None:
    if fault is None:
        assert found == []
    else:
        assert any(f"errorType:'{fault}'" in one for one in found), found


def test_avro_unions_of_records_are_compared_in_bounded_time() -> None:
    """Each level names the next one twenty times: without remembered pairs that would be 20 ** 30 comparisons."""
    node: Any = "int"
    for level in range(30):
        field = {"name": "f0", "type": ["null", node]}
        again = [{"name": f"f{number}", "type": ["null", f"R{level - 1}"]} for number in range(1, 20)] if level else []
        node = record(field, *again, name=f"R{level}")
    text = json.dumps(node)
    assert avro.reading_faults(parse(Source("AVRO", text)), parse(Source("AVRO", text.replace('"int"', '"long"'))))


def obj(properties: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties or {}, **others}


STR, INT, NUM = {"type": "string"}, {"type": "integer"}, {"type": "number"}
CLOSED: dict[str, Any] = {"additionalProperties": False}
PARTLY: dict[str, Any] = {"additionalProperties": STR}

JSON = [
    # update, original, the fault's type
    (True, STR, None),
    ({}, STR, None),
    (STR, True, "TYPE_NARROWED"),
    (STR, False, None),
    (False, STR, "TYPE_CHANGED"),
    (STR, INT, "TYPE_CHANGED"),
    (NUM, INT, None),
    (INT, NUM, "TYPE_NARROWED"),
    ({"type": ["string", "null"]}, STR, None),
    (STR, {"type": ["string", "null"]}, "TYPE_NARROWED"),
    ({**STR, "title": "t", "description": "d", "default": ""}, STR, None),
    ({**STR, "maxLength": 5}, {**STR, "maxLength": 4}, None),
    (STR, {**STR, "maxLength": 4}, None),
    ({**STR, "maxLength": 3}, {**STR, "maxLength": 4}, "MAX_LENGTH_DECREASED"),
    ({**STR, "maxLength": 3}, STR, "MAX_LENGTH_ADDED"),
    ({**STR, "minLength": 3}, {**STR, "minLength": 4}, None),
    ({**STR, "minLength": 5}, {**STR, "minLength": 4}, "MIN_LENGTH_INCREASED"),
    ({**NUM, "minimum": 5}, NUM, "MINIMUM_ADDED"),
    ({**NUM, "exclusiveMaximum": 5}, {**NUM, "exclusiveMaximum": 6}, "EXCLUSIVE_MAXIMUM_DECREASED"),
    ({**NUM, "multipleOf": 2}, {**NUM, "multipleOf": 4}, None),
    ({**NUM, "multipleOf": 4}, {**NUM, "multipleOf": 2}, "MULTIPLE_OF_CHANGED"),
    ({**NUM, "multipleOf": 4}, NUM, "MULTIPLE_OF_ADDED"),
    (STR, {**STR, "pattern": "a"}, None),
    ({**STR, "pattern": "a"}, STR, "PATTERN_ADDED"),
    ({**STR, "pattern": "a"}, {**STR, "pattern": "b"}, "PATTERN_CHANGED"),
    ({"enum": [1, 2]}, {"enum": [1]}, None),
    ({"enum": [1]}, {"enum": [1, 2]}, "ENUM_ARRAY_NARROWED"),
    ({**INT, "enum": [1]}, INT, "ENUM_ARRAY_ADDED"),
    (INT, {**INT, "enum": [1]}, None),
    ({"const": 1}, {"const": 2}, "ENUM_ARRAY_NARROWED"),
    (obj({"a": STR}), obj(), "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"),
    (obj({"a": {}}), obj(), None),
    (obj(), obj({"a": STR}), None),
    (obj({"a": STR}, **CLOSED), obj(**CLOSED), None),
    (obj({"a": STR}, required=["a"], **CLOSED), obj(**CLOSED), "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"),
    (obj({"a": {**STR, "default": ""}}, required=["a"], **CLOSED), obj(**CLOSED), None),
    (obj(**CLOSED), obj({"a": STR}, **CLOSED), "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
    (obj(**CLOSED), obj({"a": False}, **CLOSED), None),
    (obj({"a": STR}, **PARTLY), obj(**PARTLY), None),
    (obj({"a": INT}, **PARTLY), obj(**PARTLY), "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"),
    (obj(**PARTLY), obj({"a": STR}, **PARTLY), None),
    (obj(**PARTLY), obj({"a": INT}, **PARTLY), "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"),
    (obj({"ab": INT}, patternProperties={"^a": INT}, **CLOSED), obj(patternProperties={"^a": INT}, **CLOSED), None),
    (obj(patternProperties={"^(?=a)": INT}, **CLOSED), obj({"a": INT}, **CLOSED),
     "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
    (obj(patternProperties={"^(a+)+$": INT}, **CLOSED), obj({"a" * 60 + "b": INT}, **CLOSED),
     "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
    (obj(), obj(**CLOSED), None),
    (obj(**CLOSED), obj(), "ADDITIONAL_PROPERTIES_REMOVED"),
    (obj(**PARTLY), obj(), "ADDITIONAL_PROPERTIES_NARROWED"),
    (obj(), obj(**PARTLY), None),
    (obj({"a": STR}), obj({"a": STR}, required=["a"]), None),
    (obj({"a": STR}, required=["a"]), obj({"a": STR}), "REQUIRED_ATTRIBUTE_ADDED"),
    (obj({"a": {**STR, "default": ""}}, required=["a"]), obj({"a": STR}), None),
    (obj({"a": INT}), obj({"a": STR}), "TYPE_CHANGED"),
    (obj(dependencies={"a": ["b"]}), obj(), "DEPENDENCY_ARRAY_ADDED"),
    (obj(dependencies={"a": ["b"]}), obj(dependencies={"a": ["b", "c"]}), None),
    (obj(dependencies={"a": ["b", "c"]}), obj(dependencies={"a": ["b"]}), "DEPENDENCY_ARRAY_EXTENDED"),
    (obj(dependentSchemas={"a": STR}), obj(), "DEPENDENCY_SCHEMA_ADDED"),
    (obj(dependentSchemas={"a": STR}), obj(dependentSchemas={"a": INT}), "TYPE_CHANGED"),
    ({"type": "array", "items": NUM}, {"type": "array", "items": INT}, None),
    ({"type": "array", "items": INT}, {"type": "array", "items": NUM}, "TYPE_NARROWED"),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, "UNIQUE_ITEMS_ADDED"),
    ({"type": "array", "maxItems": 2}, {"type": "array", "maxItems": 3}, "MAX_ITEMS_DECREASED"),
    ({"type": "array", "items": [STR, INT]}, {"type": "array", "items": [STR, STR]}, "TYPE_CHANGED"),
    ({"type": "array", "items": [STR], "additionalItems": False}, {"type": "array", "items": [STR]}, "TYPE_CHANGED"),
    ({"oneOf": [STR, INT]}, {"oneOf": [STR]}, None),
    ({"oneOf": [STR]}, {"oneOf": [STR, INT]}, "COMBINED_TYPE_SUBSCHEMAS_CHANGED"),
    ({"anyOf": [STR, INT]}, STR, None),
    ({"oneOf": [INT]}, STR, "COMBINED_TYPE_SUBSCHEMAS_CHANGED"),
    (STR, {"oneOf": [STR]}, None),
    (STR, {"oneOf": [STR, INT]}, "TYPE_CHANGED"),
    ({"allOf": [STR]}, STR, None),
    ({"allOf": [STR, {"maxLength": 3}]}, {"allOf": [STR]}, "PRODUCT_TYPE_EXTENDED"),
    ({"allOf": [STR]}, {"allOf": [STR, {"maxLength": 3}]}, None),
    (STR, {"allOf": [STR, {"maxLength": 3}]}, None),
    ({"allOf": [STR]}, {"oneOf": [STR]}, "COMBINED_TYPE_CHANGED"),
    ({"not": STR}, {"not": STR}, None),
    ({"not": STR}, {"type": "integer"}, "NOT_TYPE_EXTENDED"),
    ({"not": INT}, {"not": NUM}, None),
    ({"not": NUM}, {"not": INT}, "NOT_TYPE_EXTENDED"),
    ({"$ref": "#/definitions/x", "definitions": {"x": STR}}, STR, None),
    ({"$ref": "#"}, STR, None),
    (
        obj({"next": {"$ref": "#"}, "v": NUM}, **CLOSED),
        obj({"next": {"$ref": "#"}, "v": INT}, **CLOSED),
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("update", "original", "fault"), JSON)
def test_json_schemas_are_compared(update: Any, original: Any, fault: str | None) -> None:
    check(faults("JSON", json.dumps(update), json.dumps(original)), fault)


def test_combinations_of_combinations_are_compared_in_bounded_time() -> None:
    """Each level names the next one twice, and no branch fits: 4 ** 30 comparisons without a bound."""
    levels = {f"x{n}": {"anyOf": [{"$ref": f"#/definitions/x{n - 1}"}] * 2} for n in range(1, 31)}
    schema = {"$ref": "#/definitions/x30", "definitions": {**levels, "x0": STR}}
    other = {**schema, "definitions": {**levels, "x0": INT}}
    check(faults("JSON", json.dumps(schema), json.dumps(other)), "TOO_COMPLEX_TO_COMPARE")


def test_denials_of_denials_are_compared_in_bounded_time() -> None:
    """The same with ``not``: each level denies the next one."""
    levels = {f"x{n}": {"anyOf": [{"not": {"$ref": f"#/definitions/x{n - 1}"}}] * 2} for n in range(1, 31)}
    schema = {"$ref": "#/definitions/x30", "definitions": {**levels, "x0": STR}}
    other = {**schema, "definitions": {**levels, "x0": INT}}
    check(faults("JSON", json.dumps(schema), json.dumps(other)), "TOO_COMPLEX_TO_COMPARE")


def test_a_schema_that_denies_itself_is_compared() -> None:
    check(faults("JSON", '{"not":{"$ref":"#"},"title":"t"}', '{"not":{"$ref":"#"}}'), None)


@pytest.mark.parametrize("level", ["BACKWARD", "FORWARD", "FULL"])
def test_chains_of_references_end_in_a_verdict(level: str) -> None:
    chain = {f"x{n}": {"properties": {"a": {"$ref": f"#/definitions/x{n + 1}"}}} for n in range(2000)}
    text = json.dumps({"$ref": "#/definitions/x0", "definitions": {**chain, "x2000": STR}})
    old = RegisteredSchema("s", 1, 1, text, "JSON")
    found = compatibility_faults(
        level, parse(Source("JSON", text + " ")), [RegisteredSource(old, Source("JSON", text))]
    )
    check(found[:1], "TOO_COMPLEX_TO_COMPARE")


def test_a_registered_schema_that_this_registry_refuses_is_named() -> None:
    """Another registry wrote it into the topic. The client's own schema is valid."""
    text = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "double", "default": 1e999}]}'
    old = RegisteredSchema("s", 7, 1, text, "AVRO")
    found = compatibility_faults(
        "BACKWARD", parse(Source("AVRO", '"int"')), [RegisteredSource(old, Source("AVRO", text))]
    )
    assert found == ["{errorType:'REGISTERED_SCHEMA_NOT_READABLE', path:'#'}", "{oldSchemaVersion: 7}"]


def test_patterns_of_properties_are_run_by_re2() -> None:
    assert json_schema.matches("^a", "abc")
    assert not json_schema.matches("b$", "abc")
    assert not json_schema.matches("(?=a)", "abc")


def proto(body: str, package: str = "p", syntax: str = "proto3") -> ParsedSchema:
    return parse(Source("PROTOBUF", f'syntax = "{syntax}"; package {package}; {body}'))


PROTOBUF = [
    # update, original, the fault's type
    ("message A { int32 a = 1; int32 b = 2; }", "message A { int32 a = 1; }", None),
    ("message A { int32 a = 1; }", "message A { int32 a = 1; int32 b = 2; }", None),
    ("message A { int64 renamed = 1; }", "message A { int32 a = 1; }", None),
    ("message A { bytes a = 1; }", "message A { string a = 1; }", None),
    ("message A { string a = 1; }", "message A { int32 a = 1; }", "FIELD_SCALAR_KIND_CHANGED"),
    ("message A { sint32 a = 1; }", "message A { int32 a = 1; }", "FIELD_SCALAR_KIND_CHANGED"),
    ("enum E { Z = 0; } message A { E a = 1; }", "message A { int32 a = 1; }", None),
    ("message A { A a = 1; }", "message A { int32 a = 1; }", "FIELD_KIND_CHANGED"),
    ("message A { map<string, int32> a = 1; }", "message A { int32 a = 1; }", "FIELD_KIND_CHANGED"),
    ("message A { map<string, int64> a = 1; }", "message A { map<string, int32> a = 1; }", None),
    (
        "message A { map<string, string> a = 1; }",
        "message A { map<string, int32> a = 1; }",
        "FIELD_SCALAR_KIND_CHANGED",
    ),
    ("message A { B a = 1; } message B {} message C {}", "message A { C a = 1; } message B {} message C {}",
     "FIELD_NAMED_TYPE_CHANGED"),
    ("message A {} message B {}", "message A {}", None),
    ("message A {}", "message A {} message B {}", "MESSAGE_REMOVED"),
    ("message A {}", "message A { message I {} }", "MESSAGE_REMOVED"),
    ("message A { message I { string x = 1; } }", "message A { message I { int32 x = 1; } }",
     "FIELD_SCALAR_KIND_CHANGED"),
    ("message A {} enum E { Z = 0; }", "message A {} enum F { Y = 0; }", None),
    ("message A { oneof o { int32 a = 1; } }", "message A { int32 a = 1; }", None),
    ("message A { oneof o { int32 a = 1; int32 b = 2; } }", "message A { int32 a = 1; int32 b = 2; }",
     "MULTIPLE_FIELDS_MOVED_TO_ONEOF"),
    ("message A { oneof o { int32 a = 1; int32 b = 2; } }", "message A { int32 a = 1; oneof o { int32 b = 2; } }",
     "FIELD_MOVED_TO_EXISTING_ONEOF"),
    ("message A { oneof o { int32 a = 1; } }", "message A { oneof o { int32 a = 1; int32 b = 2; } }",
     "ONEOF_FIELD_REMOVED"),
    ("message A { oneof o { int32 a = 1; int32 b = 2; } }", "message A { oneof o { int32 a = 1; } }", None),
    ("message A { int32 a = 1; }", "message A { oneof o { int32 a = 1; } }", None),
    ("message A { optional int32 a = 1; }", "message A { int32 a = 1; }", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> dict[str, ParsedSchema]:
    """All schemas of the table, from one call of protoc: each in a package of its own, which is renamed afterwards."""
    texts = sorted({text for update, original, _ in PROTOBUF for text in (update, original)})
    files = {f"p{n:02}.proto": f'syntax = "proto3"; package p{n:02}; {text}' for n, text in enumerate(texts)}
    imports = "".join(f'import "{name}"; ' for name in files)
    found = compile_files({**files, MAIN: f'syntax = "proto3"; {imports}'})
    by_name = {one.name: one for one in found.file}
    schemas = {}
    for n, text in enumerate(texts):
        name = f"p{n:02}".encode()
        file = FileDescriptorProto.FromString(by_name[f"p{n:02}.proto"].SerializeToString().replace(name, b"p00"))
        schemas[text] = ParsedSchema(Source("PROTOBUF", text), text, text, {"file": file, "imports": ()}, text)
    return schemas


@pytest.mark.parametrize(("update", "original", "fault"), PROTOBUF)
def test_protobuf_schemas_are_compared(
    compiled: dict[str, ParsedSchema], update: str, original: str, fault: str | None
) -> None:
    check(protobuf.reading_faults(compiled[update], compiled[original]), fault)


def test_required_fields_and_packages_of_protobuf() -> None:
    empty, required = (
        proto("message A {}", syntax="proto2"),
        proto("message A { required int32 a = 1; }", syntax="proto2"),
    )
    check(reading_faults(required, empty), "REQUIRED_FIELD_ADDED")
    check(reading_faults(empty, required), "REQUIRED_FIELD_REMOVED")
    check(reading_faults(proto("message A {}", package="q", syntax="proto2"), empty), "PACKAGE_CHANGED")


@pytest.mark.parametrize(
    ("update", "original", "fault"),
    [
        ({"multipleOf": 0.5}, {"multipleOf": 10**400}, "MULTIPLE_OF_CHANGED"),
        ({"multipleOf": 10**400}, {"multipleOf": 10**400}, None),
        ({"$ref": "other", "type": "string"}, {"$ref": "other"}, None),
    ],
)
def test_numbers_and_documents_that_no_check_has_seen(update: Any, original: Any, fault: str | None) -> None:
    """Such schemas once failed a request with the status 500."""
    other = json.dumps({"type": [{"a": 1}], "required": 7, "prefixItems": 3, "dependencies": {"b": [{}]}})
    sides = [parse(Source("JSON", json.dumps(node), (("other", other),))) for node in (update, original)]
    check(reading_faults(*sides), fault)


def test_long_enums_are_compared_in_bounded_time() -> None:
    """Each symbol was looked up in a list: 20,000 symbols took seconds, and 100,000 would take minutes."""
    symbols = [f"s{n}" for n in range(20_000)]
    began = process_time()
    assert faults("AVRO", json.dumps(enum(*symbols)), json.dumps(enum(*reversed(symbols)))) == []
    assert faults("JSON", json.dumps({"enum": symbols}), json.dumps({"enum": symbols[::-1]})) == []
    assert process_time() - began < 2


def test_many_patterns_of_properties_are_compared_in_bounded_time() -> None:
    properties: dict[str, Any] = {f"p{n}": {} for n in range(2_000)}
    update = {"patternProperties": {f"q{n}": {} for n in range(200)}, "additionalProperties": False}
    began = process_time()
    check(faults("JSON", json.dumps(update), json.dumps({"properties": properties})), "TOO_COMPLEX_TO_COMPARE")
    assert process_time() - began < 2


def test_reasons_are_few_and_short() -> None:
    """Each of 20,000 reasons could have a path of 700,000 characters."""
    path = "n" * 3_000
    for kind, original, update in (
        (
            "JSON",
            {"properties": {path: {}}},
            {"properties": {path: obj({f"p{n}": {"type": "null"} for n in range(500)})}},
        ),
        ("AVRO", record(), record(*({"name": f"{path}{n}", "type": "int"} for n in range(500)))),
        ("AVRO", record({"name": "e", "type": enum(path)}), record({"name": "e", "type": enum("B")})),
    ):
        found = faults(kind, json.dumps(update), json.dumps(original))
        assert 0 < len(found) <= MAX_FAULTS
        assert max(map(len, found)) < 1_500


def test_one_and_true_are_different_values() -> None:
    check(faults("JSON", '{"enum":[1]}', '{"enum":[true]}'), "ENUM_ARRAY_NARROWED")


def test_a_union_of_many_records_may_evolve() -> None:
    """Each branch was compared with each other one: from 280 events on the comparison was given up."""
    old = [record(A, {"name": f"f{n}", "type": "int"}, name=f"n{n % 7}.Event{n}") for n in range(500)]
    new = [record(*one["fields"], B_DEFAULT, name=one["name"]) for one in old]
    check(faults("AVRO", json.dumps(new), json.dumps(old)), None)
    check(faults("AVRO", json.dumps(old[1:]), json.dumps(new)), "MISSING_UNION_BRANCH")


@pytest.mark.parametrize(
    ("branch", "kind"),
    [
        (record(A, name="o.R"), None),
        (record(A, name="S", aliases=["n.R"]), None),
        (record(A, name="n.S", aliases=["R"]), None),
        (record(A, name="S", aliases=["R"]), "MISSING_UNION_BRANCH"),
        (record(B, name="n.R"), "MISSING_UNION_BRANCH"),
        (enum("A"), "MISSING_UNION_BRANCH"),
    ],
)
def test_a_branch_of_a_union_reads_a_record_of_its_name_or_alias(branch: Any, kind: str | None) -> None:
    check(faults("AVRO", json.dumps(["null", branch, "int"]), json.dumps(record(A, name="n.R"))), kind)


def fixed_types(size: int) -> list[dict[str, object]]:
    return [{"type": "fixed", "size": size, "name": f"n{n}.F"} for n in range(1_500)]


def constants(letter: str) -> dict[str, object]:
    return {"anyOf": [{"const": f"{letter}{n}"} for n in range(1_500)]}


@pytest.mark.parametrize(
    ("kind", "build", "variants", "longest_s"),
    [("AVRO", fixed_types, (1, 2), 1.2), ("JSON", constants, ("a", "b"), 0.8)],
    ids=["avro", "json"],
)
def test_long_unions_are_compared_in_bounded_time(
    kind: str, build: Callable[[Any], object], variants: tuple[object, object], longest_s: float
) -> None:
    """Each branch was compared with each: 15,000 in a schema of 1 MiB would take minutes, and gigabytes of verdicts."""
    began = process_time()
    check(faults(kind, *(json.dumps(build(variant)) for variant in variants)), "TOO_COMPLEX_TO_COMPARE")
    assert process_time() - began < longest_s
