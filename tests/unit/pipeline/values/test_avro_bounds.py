"""Avro schemas whose values may be far larger or deeper when decoded than their bytes."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.avro_bounds import AvroBounds
from tidelog.pipeline.values.formats import reader_of
from tidelog.pipeline.values.json_form import json_form
from tidelog.pipeline.values.registry import RegisteredSchema


def record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def doubled(leaf: Any, times: int = 40) -> Any:
    """Build a record of two records of two records, and so on, down to a leaf."""
    for number in range(times):
        leaf = record(f"D{number}", leaf, leaf if isinstance(leaf, str) else leaf["name"])
    return leaf


EMPTY_FIXED = {"type": "fixed", "name": "F", "size": 0}
FREE = [
    array("null"), array(record("R")), array(record("R", "null", record("S"))), array(EMPTY_FIXED),
    record("R", record("S"), {"type": "map", "values": array("S")}), ["null", array({"type": "null"})],
    doubled("null"), ["null", doubled("null")], {"type": "map", "values": doubled("null")},
    array(["null", doubled("null")]),
    array(record("R", "int", doubled("null", 10))),
]  # fmt: skip
BOUND = [
    "string", ["null", "long"], array("string"), array(["null"]), array(record("R", "null", "int")), record("R"),
    array({"type": "enum", "name": "E", "symbols": ["A"]}), {"type": "map", "values": "null"}, array(array("int")),
    record("R", record("S", "int"), "S", array("S")), doubled("int"), array(doubled("int")), doubled("null", 5),
    array(record("R", *(["null", "int"] for _ in range(900)))), record("R", *(record(f"S{one}") for one in range(900))),
]  # fmt: skip
RECURSIVE = [
    record("R", ["null", "R"]), record("R", array("R")), record("R", {"type": "map", "values": record("S", "R")}),
]  # fmt: skip


def bounds(schema: Any) -> tuple[bool, bool]:
    named: dict[str, Any] = {}
    found = AvroBounds(fastavro.parse_schema(schema, named_schemas=named), named)
    return found.is_inflated, found.is_recursive


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        *((schema, (True, False)) for schema in FREE),
        *((schema, (False, False)) for schema in BOUND),
        *((schema, (False, True)) for schema in RECURSIVE),
    ],
)
def test_a_schema_is_found_inflated_or_recursive(schema: Any, expected: tuple[bool, bool]) -> None:
    assert bounds(schema) == expected


def test_a_value_of_any_length_has_no_json_form() -> None:
    with pytest.raises(BadRequestError, match="any number"):
        json_form(RegisteredSchema(31, "AVRO", json.dumps(array("null"))))


def test_a_value_of_any_length_has_no_columns() -> None:
    with pytest.raises(BadRequestError, match="any number"):
        reader_of(RegisteredSchema(33, "AVRO", json.dumps(record("R", array(EMPTY_FIXED)))))


def test_the_json_form_says_that_its_schema_contains_itself() -> None:
    assert json_form(RegisteredSchema(32, "AVRO", json.dumps(RECURSIVE[0]))).is_recursive
