"""Schemas of the three formats: which are accepted, their canonical text, and refusals with a reason."""

from __future__ import annotations

import base64
import json
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from time import process_time
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.schema_registry.formats import avro as avro_format
from tidelog.broker.schema_registry.formats import proto_text
from tidelog.broker.schema_registry.formats.formats import ParsedSchemas, parse, reading_faults
from tidelog.broker.schema_registry.formats.json_schema import Documents
from tidelog.broker.schema_registry.formats.protobuf import (
    _PROTOC,
    MAX_DESCRIPTOR_BYTES,
    MAX_PROTOC_BYTES,
    reason_of,
    safe_name,
)
from tidelog.broker.schema_registry.formats.schema import MAX_DEPTH, InvalidSchemaError, ParsedSchema, Source

DEEP = "[" * 100_000


def avro(node: Any, references: tuple[tuple[str, str], ...] = ()) -> ParsedSchema:
    return parse(Source("AVRO", json.dumps(node), references))


def json_schema(node: Any, references: tuple[tuple[str, str], ...] = ()) -> ParsedSchema:
    return parse(Source("JSON", json.dumps(node), references))


def record(name: str, *fields: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **others}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"type": "string"}, '"string"'),
        ({"type": "string", "avro.java.string": "String"}, '{"type":"string","avro.java.string":"String"}'),
        (
            {"fields": [], "doc": "d", "namespace": "n.s", "type": "record", "name": "R"},
            '{"type":"record","name":"R","namespace":"n.s","doc":"d","fields":[]}',
        ),
        (
            record("n.R", {"type": "int", "name": "a", "order": "ascending", "default": 1}),
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":"int","default":1}]}',
        ),
        (
            record("n.R", {"name": "next", "type": ["null", "n.R"], "aliases": ["x"]}, aliases=["n.Q"]),
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"next","type":["null","R"],"aliases":["x"]}],'
            '"aliases":["Q"]}',
        ),
        (
            {"type": "map", "values": {"type": "array", "items": {"type": "fixed", "size": 3, "name": "F"}}},
            '{"type":"map","values":{"type":"array","items":{"type":"fixed","name":"F","size":3}}}',
        ),
        (
            {"symbols": ["A"], "type": "enum", "name": "E", "default": "A", "other": 1},
            '{"type":"enum","name":"E","symbols":["A"],"default":"A","other":1}',
        ),
    ],
)
def test_avro_is_written_in_its_own_order(given: Any, written: str) -> None:
    found = avro(given)
    assert found.canonical == written
    assert parse(Source("AVRO", written)).canonical == written


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"type": "string", "x": {"b": [{"d": 1, "c": 2}], "a": 0}},
            {"type": "string", "x": {"a": 0, "b": [{"c": 2, "d": 1}]}},
        ),
        ({"type": "int", "b": 1, "a": 2}, {"type": "int", "a": 2, "b": 1}),
        (
            record("R", {"name": "m", "type": {"type": "map", "values": "int"}, "default": {"b": 1, "a": 2}}),
            record("R", {"name": "m", "type": {"type": "map", "values": "int"}, "default": {"a": 2, "b": 1}}),
        ),
        (record("R", aliases=["B", "A", "B"]), record("R", aliases=["A", "B"], doc="")),
        (
            record("R", {"name": "a", "type": "int", "aliases": ["z", "y"]}),
            record("R", {"name": "a", "type": "int", "aliases": ["y", "z"]}),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0},
            {"type": "bytes", "precision": 4, "logicalType": "decimal"},
        ),
    ],
)  # fmt: skip
def test_orders_that_mean_nothing_make_one_normalized_avro_schema(one: Any, other: Any) -> None:
    found, equal = avro(one), avro(other)
    assert found.canonical != equal.canonical
    assert found.normalized == equal.normalized
    assert parse(Source("AVRO", found.normalized)).normalized == found.normalized


@pytest.mark.parametrize(
    "text",
    [
        "string",
        "{",
        "7",
        "null",
        "{}",
        '{"type":{"type":"int"}}',
        '"nothing.such"',
        '{"type":"record"}',
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"R","fields":[{"name":"a"}]}',
        '{"type":"record","name":"R","fields":7}',
        '{"type":"record","name":"1R","fields":[]}',
        '{"type":"enum","name":"E","symbols":[1]}',
        '{"type":"fixed","name":"F"}',
        '{"type":"array"}',
        '["int","int"]',
        '["int",["string"]]',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a.b","type":"int"}]}',
        '[{"type":"record","name":"R","fields":[]},{"type":"record","name":"R","fields":[]}]',
        DEEP,
        '{"type":"array","items":' * 500 + '"int"' + "}" * 500,
        f'{{"type":"fixed","name":"F","size":1{"0" * 400},"logicalType":"decimal","precision":4,"scale":2}}',
    ],
)
def test_an_invalid_avro_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(Source("AVRO", text))


@pytest.mark.parametrize(
    ("name", "space", "whole"), [("A", "n", "n.A"), ("m.A", "n", "m.A"), ("int", "n", "int"), ("A", "", "A")]
)
def test_names_of_avro_are_within_a_namespace(name: str, space: str, whole: str) -> None:
    assert avro_format.full_name(name, space) == whole


def test_an_avro_schema_knows_the_types_it_refers_to() -> None:
    inner = avro(record("n.Inner")).canonical
    outer = avro(record("n.Outer", {"name": "a", "type": "Inner"}), (("n.Inner", inner),))
    assert json.loads(outer.canonical)["fields"][0]["type"] == "Inner"
    with pytest.raises(InvalidSchemaError):
        avro(record("n.Outer", {"name": "a", "type": "Inner"}))


KEYWORDS = [
    "type", "name", "fields", "items", "symbols", "$ref", "properties", "enum", "size", "$schema", "$id", "pattern",
    "patternProperties", "logicalType", "precision", "scale", "maxLength", "multipleOf",
]  # fmt: skip
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), "http://[", "a{99999999999999999999}", "("])
    | st.text(max_size=5)
    | st.sampled_from(["record", "int", "array", "fixed", "decimal"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner),
    max_leaves=8,
)


@settings(max_examples=60)
@given(json_values)
def test_any_json_is_a_schema_or_refused(node: Any) -> None:
    for kind in ("AVRO", "JSON"):
        try:
            found = parse(Source(kind, json.dumps(node)))
        except InvalidSchemaError:
            continue
        assert parse(Source(kind, found.canonical)).canonical == found.canonical
        assert reading_faults(found, found) == []


# ---- JSON Schema


@pytest.mark.parametrize(
    "text", ["7", "[]", "{", '{"type":"nothing"}', '{"required":"a"}', '{"$ref":"#/definitions/x"}',
             '{"$ref":"other.json"}', DEEP, '{"not":' * 300 + "{}" + "}" * 300, '{"$schema":"http://["}',
             '{"pattern":"a{99999999999999999999}"}', '{"patternProperties":{"a{99999999999999999999}":{}}}']
)  # fmt: skip
def test_an_invalid_json_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(Source("JSON", text))


def test_a_json_schema_is_written_without_spaces_in_its_order() -> None:
    found = parse(Source("JSON", '{ "type": "object", "properties": { "b": {}, "a": true } }'))
    assert found.canonical == '{"type":"object","properties":{"b":{},"a":true}}'


def test_references_of_a_json_schema_lead_somewhere() -> None:
    other = '{"$defs":{"a/b":{"$anchor":"here","type":"string"}}}'
    documents = {"other.json": json.loads(other)}
    for reference in ("other.json#/$defs/a~1b", "other.json#here"):
        json_schema({"$ref": reference}, (("other.json", other),))
        found = Documents(documents).resolve(reference, {})
        assert found is not None
        assert found[0]["type"] == "string"
    assert json_schema({"enum": [{"$ref": "data"}]}).model["documents"].named == {}
    for reference in ("#/a/7", "#/a/²", "#/a/" + "1" * 5_000, "#None"):
        assert Documents({}).resolve(reference, {"a": [1]}) is None


def test_a_property_may_be_called_like_a_keyword_for_data() -> None:
    for name in ("default", "const"):
        with pytest.raises(InvalidSchemaError, match="has no target"):
            json_schema({"properties": {name: {"$ref": "#/nowhere"}}})


@pytest.mark.parametrize(
    "text",
    [
        '{"maximum":NaN}',
        '{"maximum":1e999}',
        '{"default":[-Infinity]}',
        '{"prefixItems":[true],"$ref":"#/prefixItems/²"}',
    ],
)
def test_a_json_schema_is_refused_that_could_not_be_read_again(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(Source("JSON", text))


def test_a_default_of_avro_is_a_number_of_json() -> None:
    with pytest.raises(InvalidSchemaError):
        parse(Source("AVRO", '{"type":"record","name":"A","fields":[{"name":"a","type":"double","default":NaN}]}'))


def test_a_long_namespace_is_refused_before_each_type_gets_it() -> None:
    """Each of 20,000 fields could get a name of 500,000 characters, 10 GB in all."""
    fields = [{"name": f"a{n}", "type": "A"} for n in range(50)]
    for names in ({"name": "A", "namespace": "n" * 100_000}, {"name": "n" * 100_000 + ".A"}):
        tracemalloc.start()
        with pytest.raises(InvalidSchemaError, match="more than 1000 characters"):
            avro({"type": "record", **names, "fields": fields})
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 2_000_000


MIXED = [*range(10_000), "a"]


@pytest.mark.parametrize(
    "node",
    [
        {"type": MIXED},
        {"properties": {"default": {"required": MIXED}}},
        {"dependencies": {"a": MIXED}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "enum": MIXED},
        {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [{"a": n} for n in range(10_000)]},
    ],
)
def test_long_lists_of_a_json_schema_are_checked_in_bounded_time(node: Any) -> None:
    """The elements were compared each with each: 10,000 took 17 s, and 1 MiB of numbers would take an hour."""
    began = process_time()
    with pytest.raises(InvalidSchemaError):
        json_schema(node)
    assert process_time() - began < 1


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
        None,
    ],
)
def test_a_long_enum_may_have_null(draft: str | None) -> None:
    """Only in draft 4 are its elements compared with each other."""
    node = {"enum": [*map(str, range(2_000)), None], **({} if draft is None else {"$schema": draft})}
    assert json.loads(json_schema(node).canonical) == node


def test_anchors_of_a_json_schema_are_found_in_bounded_time() -> None:
    """The whole document was searched for each reference."""
    began = process_time()
    json_schema({"$defs": {f"d{n}": {"$anchor": f"a{n}", "$ref": f"#a{n}"} for n in range(4_000)}})
    assert process_time() - began < 2


# ---- Protobuf

FULL = """syntax = "proto3"; package x; import "google/protobuf/timestamp.proto";
message A { int32 a_b = 1; optional string b = 2; map<string, int64> m = 3; google.protobuf.Timestamp t = 4;
  oneof o { A x = 5; string y = 6; } enum E { option allow_alias = true; Z = 0; Y = 0; reserved 4 to max, 2; }
  repeated E e = 7 [packed = false, json_name = "ee"]; reserved 10 to 12, 20; reserved "old"; I i = 8;
  message I { option deprecated = true; bytes z = 1; } }
service S { option deprecated = true; rpc F(A) returns (stream A) { option deprecated = true; } }"""
PROTO2 = """syntax = "proto2"; message A { required int32 a = 1 [default = 5];
  optional bytes s = 3 [default = "a\\001\\"b"]; optional string q = 7 [default = "h\\"\\n"]; extensions 100 to max;
  optional group G = 2 { optional double k = 1 [default = inf]; } enum X { M = -1; } optional X x = 9 [default = M];
  oneof o { int32 c = 10; } } extend A { optional int32 e = 120; }"""
EDITION = 'edition = "2023"; option features.field_presence = IMPLICIT; message A { int32 a = 1; }'


@pytest.mark.parametrize("text", [FULL, PROTO2, EDITION])
def test_a_descriptor_becomes_text_that_compiles_to_it(text: str) -> None:
    found = parse(Source("PROTOBUF", text))
    sent = parse(Source("PROTOBUF", found.model["serialized"]))
    assert found.canonical == text
    assert sent.canonical == sent.identity == found.identity
    assert sent.model["file"] == found.model["file"]


def test_imports_of_a_protobuf_schema_are_its_references() -> None:
    inner = 'syntax = "proto3"; package p; message Inner { int32 a = 1; }'
    outer = 'syntax = "proto3"; import "sub/inner.proto"; message Outer { p.Inner i = 1; }'
    found = parse(Source("PROTOBUF", outer, (("sub/inner.proto", inner),)))
    assert [one.name for one in found.model["imports"]] == ["sub/inner.proto"]
    with pytest.raises(InvalidSchemaError, match=r"sub/inner\.proto"):
        parse(Source("PROTOBUF", outer))


OPTIONS = """syntax = "proto3"; package x; import "google/protobuf/descriptor.proto"; import "tags.proto";
enum Level { LOW = 0; HIGH = 1; }
message Rule { string text = 1; repeated int32 numbers = 2; bytes raw = 3; }
extend google.protobuf.FieldOptions { Rule rule = 50001; repeated Level levels = 50002; double weight = 50003; }
extend google.protobuf.MessageOptions { bool audited = 50004; bytes mark = 50005; }
option (other.owner) = "billing";
message A {
  option (audited) = true; option (mark) = "\\001\\"x";
  string a = 1 [
    (rule) = { text: "say \\"ä\\"" numbers: [1, 2] raw: "\\377" }, (levels) = LOW, (levels) = HIGH, (weight) = -1.5];
  oneof choice { option (other.tag) = "one"; int32 b = 2 [deprecated = true, (x.weight) = inf]; }
}
enum E { option (other.kind) = 7; ZERO = 0 [(other.label) = "none"]; }
service S { option (other.kept) = true; rpc Get(A) returns (A) { option (other.cost) = 12; } }
"""
TAGS = """syntax = "proto2"; package other; import "google/protobuf/descriptor.proto";
extend google.protobuf.FileOptions { optional string owner = 50001; }
extend google.protobuf.OneofOptions { optional string tag = 50001; }
extend google.protobuf.EnumOptions { optional sint32 kind = 50001; }
extend google.protobuf.EnumValueOptions { optional string label = 50001; }
extend google.protobuf.ServiceOptions { optional bool kept = 50001; }
extend google.protobuf.MethodOptions { optional fixed64 cost = 50001; }
"""


def test_custom_options_are_written() -> None:
    references = (("tags.proto", TAGS),)
    found = parse(Source("PROTOBUF", OPTIONS, references))
    sent = parse(Source("PROTOBUF", found.model["serialized"], references))
    assert sent.model["file"] == found.model["file"]
    assert sent.identity == found.identity
    assert parse(Source("PROTOBUF", found.normalized, references)).identity == found.identity
    without = parse(Source("PROTOBUF", OPTIONS.replace("(x.weight) = inf", "(x.weight) = 0"), references))
    assert without.identity != found.identity


def test_custom_options_without_their_definition_are_left_out() -> None:
    options = descriptor_pb2.FieldOptions.FromString(b"\x8a\xb5\x18\x01x")
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    file.message_type.add(name="A").field.add(name="a", number=1, type=9, label=1, options=options)
    found = parse(Source("PROTOBUF", base64.b64encode(file.SerializeToString()).decode()))
    assert "string a = 1;" in found.canonical


def test_a_schema_may_define_its_own_file_descriptor_proto() -> None:
    own = 'syntax = "proto2"; package google.protobuf; message FileDescriptorProto { optional string name = 1; }'
    found = parse(Source("PROTOBUF", own))
    assert "message FileDescriptorProto {" in found.normalized
    user = 'syntax = "proto3"; import "google/protobuf/descriptor.proto"; message A { string a = 1; }'
    found = parse(Source("PROTOBUF", user, (("google/protobuf/descriptor.proto", own),)))
    assert "string a = 1;" in found.normalized


def test_a_descriptor_that_is_not_whole_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    file.message_type.add(name="A").field.add(name="a", number=1, type=11, label=1, type_name=".B")
    with pytest.raises(InvalidSchemaError):
        parse(Source("PROTOBUF", base64.b64encode(file.SerializeToString()).decode()))


@pytest.mark.parametrize("text", ["message A {", "AAAA", 'syntax = "proto3"; message A { B b = 1; }'])
def test_an_invalid_protobuf_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError) as raised:
        parse(Source("PROTOBUF", text))
    assert "/tmp" not in str(raised.value)


def test_log_lines_of_protoc_are_left_out_of_errors() -> None:
    output = b"WARNING: All log messages\nW0000 00:1 parser.cc:1] x\n/d/tidelog_schema.proto:1:2: Expected x.\n"
    assert reason_of(output, "/d/") == "line 1:2: Expected x."
    assert reason_of(b"", "/d/") == "it does not compile"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "a/../../b", "a\0b", "x" * 300])
def test_an_import_stays_in_its_directory(name: str) -> None:
    with pytest.raises(InvalidSchemaError):
        safe_name(name)


def test_names_in_json_are_written_only_where_they_differ() -> None:
    field = descriptor_pb2.FieldDescriptorProto(name="a_bc_d")
    assert proto_text.camel_case(field.name) == "aBcD"


# ---- all


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="Invalid schema type XML"):
        parse(Source("XML", "<a/>"))


def test_types_are_not_compared_with_each_other() -> None:
    assert reading_faults(avro("int"), json_schema({})) == ["Incompatible because of different schema type"]


def test_the_depth_of_a_schema_is_bounded() -> None:
    with pytest.raises(InvalidSchemaError, match=f"{MAX_DEPTH} levels"):
        json_schema({"default": json.loads("[" * 300 + "]" * 300)})


def test_parsed_schemas_are_kept_up_to_a_size() -> None:
    """A comparison asks for READ alone, and each brings up to 1 MiB: kept by number they took gigabytes."""
    known = ParsedSchemas(100)
    kept = [Source("AVRO", '"int"' + " " * 40), Source("AVRO", '"int"', (("r", "x" * 30),))]
    for source in kept:
        known.keep(source, parse(Source("AVRO", '"int"')))
    assert [known.get(source) is not None for source in kept] == [True, True]
    known.get(kept[0])
    known.keep(Source("AVRO", '"int"' + " " * 30), parse(Source("AVRO", '"int"')))
    assert [known.get(source) is not None for source in kept] == [True, False]
    known.keep(Source("AVRO", "x" * 101), parse(Source("AVRO", '"int"')))
    assert known.characters <= 100


def test_all_that_a_schema_refers_to_is_bounded() -> None:
    with pytest.raises(InvalidSchemaError, match="refers to"):
        parse(Source("AVRO", '"int"', tuple((f"r{number}", "x" * (1 << 20)) for number in range(20))))


def test_draft_3_is_read_as_draft_7() -> None:
    """Confluent's registry does not know draft 3, whose ``required`` is no list, so a comparison of schemas failed."""
    node = {"$schema": "http://json-schema.org/draft-03/schema#", "properties": {"a": {"required": True}}}
    with pytest.raises(InvalidSchemaError, match="True is not of type 'array'"):
        json_schema(node)


@pytest.mark.parametrize("names", [("a", "a/b.proto"), ("a/b.proto", "a")])
def test_imports_whose_names_exclude_each_other_are_refused(names: tuple[str, str]) -> None:
    references = tuple((name, 'syntax = "proto3";') for name in names)
    with pytest.raises(InvalidSchemaError, match="cannot be imported beside the others"):
        parse(Source("PROTOBUF", 'syntax = "proto3";', references))


def test_a_name_of_an_import_is_bounded_in_bytes() -> None:
    with pytest.raises(InvalidSchemaError, match="cannot be the name of an import"):
        safe_name("ä" * 200)


def test_a_compiled_protobuf_schema_is_bounded() -> None:
    """A text of 50 KB had a descriptor of 40 MB, and one of 1 MiB one of gigabytes, in the memory of the broker."""
    fields = " ".join(f"A a{n} = {n + 1};" for n in range(1_000))
    with pytest.raises(InvalidSchemaError, match="File too large"):
        parse(Source("PROTOBUF", f'syntax = "proto3"; message {"N" * 20_000} {{ message A {{}} {fields} }}'))


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_FSIZE], ids=["memory", "file size"])
def test_protoc_runs_below_lower_limits_of_the_broker(limit: int) -> None:
    """A process without privileges cannot raise a limit: every Protobuf schema was refused with a traceback."""
    most = {resource.RLIMIT_AS: MAX_PROTOC_BYTES, resource.RLIMIT_FSIZE: MAX_DESCRIPTOR_BYTES}[limit] - 1
    done = subprocess.run(
        [sys.executable, "-c", _PROTOC, "--version"],
        preexec_fn=lambda: resource.setrlimit(limit, (most, most)),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"libprotoc" in done.stdout


def contradictory_descriptors() -> Iterator[bytes]:
    """Yield descriptors with a missing oneof, with an entry of a map that has no fields, and with a name that is not
    UTF-8.
    """
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    file.message_type.add(name="A").field.add(name="a", number=1, oneof_index=3)
    yield file.SerializeToString()
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    message = file.message_type.add(name="A")
    message.nested_type.add(name="E").options.map_entry = True
    message.field.add(name="a", number=1, type_name=".A.E")
    yield file.SerializeToString()
    file = descriptor_pb2.FileDescriptorProto(dependency=["other"])
    yield file.SerializeToString().replace(b"other", b"oth\xff\xfe")


def test_a_descriptor_that_contradicts_itself_is_refused() -> None:
    """It was answered with 500."""
    for descriptor in contradictory_descriptors():
        with pytest.raises(InvalidSchemaError, match="the descriptor is malformed"):
            parse(Source("PROTOBUF", base64.b64encode(descriptor).decode()))
