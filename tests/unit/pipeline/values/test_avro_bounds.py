"""Avro schemas whose values may be far larger when decoded than their bytes."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import Any

import fastavro
import pytest

from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.avro_bounds import FREE_NODES, NODES_PER_BYTE, AvroBounds
from tidelog.pipeline.values.formats import reader_of
from tidelog.pipeline.values.json_form import json_form
from tidelog.pipeline.values.registry import RegisteredSchema, UndecodableError


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
    record("R", ["null", "R"], ["null", "R"], *["null"] * 29),
]  # fmt: skip
RECURSIVE_FREE = [
    record("R", "R"), record("R", record("S", "R")), record("R", ["null", "R"], *["null"] * 15),
    record("R", ["null", "R"], ["null", "R"], *["null"] * 900), record("R", array("R"), *["null"] * 16),
    record("R", ["null", record("S", ["null", "R"], *["null"] * 40)]),
    ["null", {"type": "map", "values": record("R", ["null", "R"], *["null"] * 15)}],
]  # fmt: skip


def is_inflated(schema: Any) -> bool:
    named: dict[str, Any] = {}
    return AvroBounds(fastavro.parse_schema(schema, named_schemas=named), named).is_inflated


@pytest.mark.parametrize(
    ("schema", "expected"),
    [(schema, schema in (*FREE, *RECURSIVE_FREE)) for schema in (*FREE, *BOUND, *RECURSIVE, *RECURSIVE_FREE)],
)
def test_a_schema_is_found_inflated(schema: Any, expected: bool) -> None:
    assert is_inflated(schema) == expected


def random_record(source: random.Random, known: list[str], depth: int = 2) -> Any:
    """Build a record of nulls, numbers, and types that may have this record or those around it."""
    name = f"R{len(known)}"
    known.append(name)
    fields = [random_type(source, known, depth) for _ in range(source.randrange(1, 4))]
    return record(name, *fields, *["null"] * source.choice([0, 0, 5, 14, 30, 200]))


def random_type(source: random.Random, known: list[str], depth: int) -> Any:
    if source.random() < 0.2:
        return "int"
    inside = source.choice(known) if depth == 0 or source.random() < 0.6 else random_record(source, known, depth - 1)
    return source.choice([["null", inside], ["null", inside], array(inside), {"type": "map", "values": inside}])


def count_random_value(
    source: random.Random, node: Any, named: dict[str, Any], counts: Counter[str], depth: int = 0
) -> None:
    """Count nodes and bytes of a random value: while there are few, most branches and arrays are not empty."""
    goes_on = counts["nodes"] < 1_000 and depth < 100 and source.random() < 0.7
    if isinstance(node, list):
        counts["bytes"] += 1
        return count_random_value(source, node[1 if goes_on else 0], named, counts, depth + 1)
    counts["nodes"] += 1
    if node in ("null", "int"):
        counts["bytes"] += node == "int"
        return None
    node = named.get(node, node) if isinstance(node, str) else node
    inside = [node.get("items") or node.get("values")] * (2 * goes_on)
    if node["type"] == "record":
        inside = [one["type"] for one in node["fields"]]
    else:
        counts["bytes"] += 2 if inside else 1  # the number of items, and the end
        counts["bytes"] += 2 * len(inside) * (node["type"] == "map")  # keys of one letter
    for one in inside:
        count_random_value(source, one, named, counts, depth + 1)
    return None


def test_a_value_of_a_schema_with_bounds_has_few_nodes_for_each_byte() -> None:
    found = Counter[bool]()
    for seed in range(100):
        source, named = random.Random(seed), dict[str, Any]()
        schema = fastavro.parse_schema(random_record(source, []), named_schemas=named)
        found[is_inflated(schema)] += 1
        for _ in range(0 if is_inflated(schema) else 3):
            counts = Counter[str]()
            count_random_value(source, schema, named, counts)
            assert counts["nodes"] <= NODES_PER_BYTE * counts["bytes"] + FREE_NODES, schema
    assert min(found[False], found[True]) > 20


def test_a_value_of_any_length_has_no_json_form() -> None:
    with pytest.raises(BadRequestError, match="any number"):
        json_form(RegisteredSchema(31, "AVRO", json.dumps(array("null"))))


def test_a_value_of_any_length_has_no_columns() -> None:
    with pytest.raises(BadRequestError, match="any number"):
        reader_of(RegisteredSchema(33, "AVRO", json.dumps(record("R", array(EMPTY_FIXED)))))


@pytest.mark.parametrize("schema", RECURSIVE)
@pytest.mark.parametrize("byte", range(0, 8, 2))
def test_a_payload_of_any_depth_is_decoded_or_refused_in_a_small_stack(schema: Any, byte: int) -> None:
    form, found = json_form(RegisteredSchema(32, "AVRO", json.dumps(schema))), list[bool]()

    def read(payload: bytes) -> bool:
        try:
            form.read(payload)
        except UndecodableError:
            return False
        return True

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(
            target=lambda: found.extend(read(bytes([byte]) * size) for size in (*range(200), 64 * 1024)),
            daemon=True,
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert len(found) == 201
