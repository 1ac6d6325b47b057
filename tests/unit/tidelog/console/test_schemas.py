"""Values that the console decodes by the schemas that they name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tidelog.broker.schema_registry import records
from tidelog.broker.schema_registry.records import Reference, schema_record
from tidelog.broker.schema_registry.state import State
from tidelog.console.schemas import MAX_BYTES, DecodedValue, Schemas, decode
from tidelog.pipeline.values.registry import RegisteredSchema, UndecodableError

TEXT = RegisteredSchema(1, "AVRO", '"string"')
NULLS = RegisteredSchema(2, "AVRO", '{"type": "array", "items": "null"}')
DEEP = RegisteredSchema(
    3, "AVRO", json.dumps({"type": "record", "name": "L", "fields": [{"name": "rest", "type": ["null", "L"]}]})
)
BROKEN = RegisteredSchema(4, "AVRO", '{"type": "nothing"}')
PLAIN = RegisteredSchema(5, "JSON", "{}")
BRANCHES = [{"name": name, "type": ["null", "T"]} for name in ("left", "right")]
FREE_FIELDS = [{"name": f"f{number}", "type": "null"} for number in range(900)]
TREE = RegisteredSchema(6, "AVRO", json.dumps({"type": "record", "name": "T", "fields": [*BRANCHES, *FREE_FIELDS]}))
KNOWN = {one.id: one for one in (TEXT, NULLS, DEEP, BROKEN, PLAIN, TREE)}


def value(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (value(1, b"\x02a"), DecodedValue("a", "avro, schema 1")),
        (value(5, b'{"a": null}'), DecodedValue({"a": None}, "json, schema 5")),
        (value(1, b"\x02"), None),
        (value(9, b"\x02a"), None),
        (value(4, b"\x02a"), None),
        (value(2, b"\xff\xff\xff\x7f\x00"), None),
        (value(3, b"\x02" * MAX_BYTES), None),
        (value(3, b"\x02" * (MAX_BYTES - 5)), None),
        (value(3, b"\x02\x00"), DecodedValue({"rest": {"L": {"rest": None}}}, "avro, schema 3")),
        (value(6, b"\x00\x00"), None),
        (value(5, b'"' + b"a" * MAX_BYTES + b'"'), None),
        (value(5, b"[" * 50_000), None),
        (b"\0\0\0", None),
        (b"paid", None),
        (b"", None),
    ],
    ids=["avro", "json", "cut", "unknown", "no schema", "free items", "large and deep", "deep", "recursive",
         "free fields", "large", "nested", "short", "text", "empty"],
)  # fmt: skip
def test_a_value_without_a_known_schema_stays_bytes(content: bytes, expected: DecodedValue | None) -> None:
    assert decode(content, KNOWN.get) == expected


def test_schemas_that_refer_to_each_other_twice_keep_the_loop_free() -> None:
    """Each refers to the one before by two names: 60 of them have 2^60 ways, and each is described once."""
    state = State()
    for number in range(1, 61):
        names = ("a", "b") if number > 1 else ()
        references = tuple(Reference(name, f"s{number - 1}", 1) for name in names)
        state.replay(*schema_record(records.RegisteredSchema(f"s{number}", 1, number, '"int"', "AVRO", references)))
    asked: list[int] = []

    class Counted(State):
        def version(self, subject: str, number: int) -> records.RegisteredSchema | None:
            asked.append(number)
            assert len(asked) < 1_000
            return state.version(subject, number)

    counted = Counted()
    broker: Any = None
    schemas = Schemas(broker)
    (second,), (last,) = state.find_by_id(2), state.find_by_id(60)
    found = asyncio.run(schemas._convert(counted, second))
    assert [name for name, _ in found.references] == ["a", "b"]
    with pytest.raises(UndecodableError):
        asyncio.run(schemas._convert(counted, last))
