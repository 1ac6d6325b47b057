"""Limits of columns: how many there may be, and how deeply they may be nested."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2

from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.column_bounds import MAX_COLUMNS, MAX_LEVELS, ColumnBounds
from tidelog.pipeline.values.columns import decode_type, encode_type, inferred_type
from tidelog.pipeline.values.formats import arrow_type
from tidelog.pipeline.values.registry import RegisteredSchema

Build = Callable[[int], RegisteredSchema]


def avro(*fields: Any) -> RegisteredSchema:
    """Build the schema of a record whose fields have these types."""
    return RegisteredSchema(7, "AVRO", json.dumps(avro_record("Top", *fields)))


def avro_record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def avro_list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def nested(wrap: Callable[[Any], Any], innermost: Any, times: int) -> Any:
    for _ in range(times):
        innermost = wrap(innermost)
    return innermost


def json_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def json_list(items: Any) -> dict[str, Any]:
    return {"type": ["null", "array"], "items": items}


def protobuf(*messages: Sequence[int], label: int) -> RegisteredSchema:
    """Build messages by the numbers of messages that their fields have, themselves for integers."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto3")
    for place, fields in enumerate(messages):
        message = file.message_type.add(name=f"M{place}")
        for number, one in enumerate(fields):
            field = message.field.add(name=f"f{number}", number=number + 1, label=label, type=3)
            if one != place:
                field.type, field.type_name = field.TYPE_MESSAGE, f".m.M{one}"
    return RegisteredSchema(7, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode())


def nested_protobuf(count: int, label: int) -> RegisteredSchema:
    """Build messages each of which has the next one as its field, the last one an integer."""
    return protobuf(*[[min(place + 1, count - 1)] for place in range(count)], label=label)


OPTIONAL, REPEATED = 1, 3

WIDE: dict[str, Build] = {
    "Avro": lambda count: avro(*["int"] * count),
    "Avro, nullable": lambda count: avro(*[["null", "int"]] * count),
    "Avro, lists of nullable": lambda count: avro(*[avro_list(["null", "int"])] * count),
    "Avro, maps": lambda count: avro(*[{"type": "map", "values": "int"}] * count),
    "Avro, by name": lambda count: avro(
        {"type": "enum", "name": "E", "symbols": ["A"]}, *[["null", "E"]] * (count - 1)
    ),
    "Avro, records by name": lambda count: avro(
        avro_record("R", "int"), *[["null", "R"]] * (count // 2 - 1), *["int"] * (count % 2)
    ),
    "JSON": lambda count: RegisteredSchema(
        7, "JSON", json.dumps(json_schema({f"f{number}": json_list({"type": "integer"}) for number in range(count)}))
    ),
    "Protobuf": lambda count: protobuf([1] * (count // 100) + [0] * (count % 100), [1] * 99, label=REPEATED),
}
"""Schemas by their number of columns."""

DEEP: dict[str, Build] = {
    "Avro, records": lambda levels: avro(nested_records(levels - 1)),
    "Avro, lists": lambda levels: avro(nested(lambda one: ["null", avro_list(one)], "int", levels - 1)),
    "Avro, maps": lambda levels: avro(nested(lambda one: {"type": "map", "values": one}, "int", levels - 1)),
    "JSON, objects": lambda levels: RegisteredSchema(
        7, "JSON", json.dumps(nested(lambda one: json_schema({"a": one}), {"type": "integer"}, levels))
    ),
    "JSON, lists": lambda levels: RegisteredSchema(
        7, "JSON", json.dumps(json_schema({"a": nested(json_list, {"type": "integer"}, levels - 1)}))
    ),
    "Protobuf": lambda levels: nested_protobuf(levels, OPTIONAL),
    "Protobuf, repeated": lambda levels: nested_protobuf(levels // 2, REPEATED),
}
"""Schemas by their number of levels."""


def nested_records(times: int) -> Any:
    """Build records inside each other, each as a field that may be null."""
    found: Any = "int"
    for number in range(times):
        found = ["null", avro_record(f"R{number}", found)]
    return found


@pytest.mark.parametrize("name", WIDE)
def test_a_schema_may_have_as_many_columns_as_documented(name: str) -> None:
    found = arrow_type(WIDE[name](MAX_COLUMNS))
    assert decode_type(encode_type(found)) == found
    with pytest.raises(BadRequestError, match="schema 7: it has over 10000 columns"):
        arrow_type(WIDE[name](MAX_COLUMNS + 1))


@pytest.mark.parametrize("name", DEEP)
def test_the_deepest_columns_can_be_read_from_parquet(name: str) -> None:
    found = arrow_type(DEEP[name](MAX_LEVELS))
    assert decode_type(encode_type(found)) == found
    file = io.BytesIO()
    pq.write_table(pa.schema(list(found)).empty_table(), file)
    assert pa.struct(list(pq.read_schema(file))) == found
    with pytest.raises(BadRequestError, match="schema 7: it is over 50 levels deep"):
        arrow_type(DEEP[name](MAX_LEVELS + 2))


@pytest.mark.parametrize("times", [1, 400])
def test_a_union_inside_a_union_is_refused(times: int) -> None:
    """Unions count as no level."""
    with pytest.raises(BadRequestError, match="schema 7: a union is directly inside a union"):
        arrow_type(avro(nested(lambda one: [one], ["null", "int"], times)))


def test_columns_of_json_values_are_counted_without_their_lists() -> None:
    row = {f"f{number}": [number] for number in range(MAX_COLUMNS)}
    assert inferred_type([json.dumps(row).encode()]) is not None
    row["one more"] = [1]
    with pytest.raises(BadRequestError, match="the values: it has over 10000 columns"):
        inferred_type([json.dumps(row).encode()])


def test_a_level_ends_with_its_block() -> None:
    bounds = ColumnBounds("schema 7")
    for _ in range(2 * MAX_LEVELS):
        with bounds.count_column(), bounds.enter_level():
            pass
