"""Values as the console decodes them, by the schemas that they name."""

from __future__ import annotations

import json

import pytest

from tidelog.console.schemas import MAX_BYTES, Decoded, decode
from tidelog.pipeline.values.registry import RegisteredSchema

TEXT = RegisteredSchema(1, "AVRO", '"string"')
NULLS = RegisteredSchema(2, "AVRO", '{"type": "array", "items": "null"}')
DEEP = RegisteredSchema(
    3, "AVRO", json.dumps({"type": "record", "name": "L", "fields": [{"name": "rest", "type": ["null", "L"]}]})
)
BROKEN = RegisteredSchema(4, "AVRO", '{"type": "nothing"}')
PLAIN = RegisteredSchema(5, "JSON", "{}")
KNOWN = {one.id: one for one in (TEXT, NULLS, DEEP, BROKEN, PLAIN)}


def value(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (value(1, b"\x02a"), Decoded("a", "avro, schema 1")),
        (value(5, b'{"a": null}'), Decoded({"a": None}, "json, schema 5")),
        (value(1, b"\x02"), None),
        (value(9, b"\x02a"), None),
        (value(4, b"\x02a"), None),
        (value(2, b"\xff\xff\xff\x7f\x00"), None),
        (value(3, b"\x02" * MAX_BYTES), None),
        (value(3, b"\x00"), None),
        (value(5, b'"' + b"a" * MAX_BYTES + b'"'), None),
        (value(5, b"[" * 50_000), None),
        (b"\0\0\0", None),
        (b"paid", None),
        (b"", None),
    ],
    ids=["avro", "json", "cut", "unknown", "no schema", "free items", "deep", "recursive", "large", "nested", "short",
         "text", "empty"],
)  # fmt: skip
def test_what_is_no_value_of_a_known_schema_stays_bytes(content: bytes, expected: Decoded | None) -> None:
    assert decode(content, KNOWN.get) == expected
