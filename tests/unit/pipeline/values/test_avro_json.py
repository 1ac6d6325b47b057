"""Avro's JSON form: each branch of a union, each range, fields at any depth."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tidelog.pipeline.values.avro_json import AvroJson
from tidelog.pipeline.values.json_form import json_form
from tidelog.pipeline.values.registry import RegisteredSchema, UndecodableError


def record(name: str, /, **types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": one} for field, one in types.items()]}


COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
KEY = {"type": "fixed", "name": "Key", "size": 2}
CHAIN = record("Chain", value="int", rest=["null", "Chain"])
EITHER = [record("Cat", name="string"), record("shop.Dog", name="string")]
DEFAULTS = {
    "type": "record",
    "name": "Filled",
    "fields": [
        {"name": "note", "type": ["string", "null"], "default": "none"},
        {"name": "raw", "type": "bytes", "default": "\xff"},
        {"name": "more", "type": ["null", "long"], "default": None},
    ],
}
SAME = [
    (EITHER, {"shop.Dog": {"name": "a"}}),
    (["string", COLOUR, KEY], {"Colour": "BLUE"}),
    (["string", COLOUR, KEY], {"Key": "\xffa"}),
    (["bytes", "string"], {"bytes": "\xff"}),
    (["null", {"type": "array", "items": EITHER}], {"array": [{"Cat": {"name": "a"}}, {"shop.Dog": {"name": "b"}}]}),
    ({"type": "map", "values": ["null", "boolean"]}, {"a": {"boolean": True}, "b": None}),
    (CHAIN, {"value": 1, "rest": {"Chain": {"value": 2, "rest": {"Chain": {"value": 3, "rest": None}}}}}),
    ("double", "NaN"),
    ({"type": "array", "items": "float"}, ["Infinity", "-Infinity", 1.5]),
    ("long", -(2**63)),
    ("null", None),
]  # fmt: skip
REFUSED = [
    (record("Order", price=record("Money", cents="long")), {"price": {"cents": 1, "cent": 2}}, "no field 'cent'"),
    ({"type": "array", "items": record("Item", id="int")}, [{"id": 1, "more": 1}], "no field 'more'"),
    (record("Order", id="long"), {}, "needs the field 'id'"),
    ("int", 2**31, "too large"),
    ("long", -(2**63) - 1, "too large"),
    ("int", True, "expected a number"),
    ("long", 1.5, "expected a number"),
    ("double", True, "expected a number"),
    ("boolean", 1, "expected a boolean"),
    ("string", 1, "expected a string"),
    ("bytes", "\u0100", "latin-1"),
    (KEY, "abc", "2 bytes"),
    (COLOUR, "GREEN", "no symbol"),
    (["null", "string"], "a", "names one of null, string"),
    (["null", "string"], {"long": 1}, "names one of null, string"),
    (["int"], None, "names one of int"),
    ({"type": "map", "values": "int"}, [], "expected a map"),
]


def form_of(schema: Any) -> Any:
    return json_form(RegisteredSchema(7, "AVRO", json.dumps(schema)))


@pytest.mark.parametrize(("schema", "value"), SAME)
def test_encoded_values_are_decoded_to_themselves(schema: Any, value: Any) -> None:
    form = form_of(schema)
    assert form.read(form.write(value)) == value


@pytest.mark.parametrize(("schema", "value", "reason"), REFUSED)
def test_a_value_that_does_not_fit_the_schema_is_refused(schema: Any, value: Any, reason: str) -> None:
    with pytest.raises(UndecodableError, match=reason):
        form_of(schema).write(value)


def test_fields_that_are_missing_have_their_defaults() -> None:
    form = form_of(DEFAULTS)
    assert form.read(form.write({})) == {"note": {"string": "none"}, "raw": "\xff", "more": None}


POINT = record("Point", x=["int", "null"], y="int")
UNION = {"type": "array", "items": ["string", "null"]}


@pytest.mark.parametrize(
    ("kind", "default", "written"),
    [
        (POINT, {"x": 1, "y": 2}, {"x": {"int": 1}, "y": 2}),
        ([POINT, "null"], {"x": 1, "y": 2}, {"Point": {"x": {"int": 1}, "y": 2}}),
        (UNION, ["a", "b"], [{"string": "a"}, {"string": "b"}]),
        ({"type": "map", "values": ["int", "null"]}, {"a": 1}, {"a": {"int": 1}}),
        ([UNION, "null"], ["a"], {"array": [{"string": "a"}]}),
    ],
)
def test_defaults_of_unions_are_values_of_their_first_branches_at_any_depth(
    kind: Any, default: Any, written: Any
) -> None:
    form = form_of({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind, "default": default}]})
    assert form.read(form.write({})) == {"f": written}


def test_a_branch_that_is_named_is_the_one_that_is_written() -> None:
    payload = form_of(["int", "long"]).write({"long": 1})
    assert payload == b"\x02\x02"
    assert form_of(["float", "double"]).write({"float": 1.5}) == b"\x00\x00\x00\xc0\x3f"


def test_json_has_no_numbers_that_are_none() -> None:
    form = AvroJson({})
    assert [form.json_of("double", one) for one in (math.nan, math.inf, -math.inf)] == ["NaN", "Infinity", "-Infinity"]


def test_types_that_stand_at_many_places_are_read_at_once() -> None:
    schema: Any = "int"
    for number in range(60):
        again = schema if number == 0 else f"R{number - 1}"
        schema = record(f"R{number}", left=["null", schema], right=["null", again])
    assert form_of(schema).read(b"\x00\x00") == {"left": None, "right": None}


def test_nested_values_are_refused_where_calls_end() -> None:
    form = form_of(CHAIN)
    value: Any = None
    for _ in range(5_000):
        value = {"Chain": {"value": 1, "rest": value}}
    with pytest.raises(UndecodableError):
        form.write(value["Chain"])
    for payload in (b"\x02\x02" * 5_000, b"\x02\x02" * 500_000):
        with pytest.raises(UndecodableError):
            form.read(payload)
