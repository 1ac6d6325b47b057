"""Values as columns: Avro, JSON and Protobuf with a registry, plain JSON, undecodable values, wider tables."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("fastavro")
pytest.importorskip("authlib")
pytest.importorskip("deltalake")

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support.iceberg import NAME, closed_catalogs, table_of, target_below
from tests.support.pipelines import NOW_MS, DataDirectory, write
from tests.support.schema_registry import SchemaRegistry, schema_registry
from tidelog.log.files.checkpoints import REPLICATION_OFFSET_FILE, write_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.export.manifest import Manifest
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.exporting.values import choose_value_columns
from tidelog.pipeline.jobs.iceberg import export_to_iceberg
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.values.columns import column_fields, decode_type, encode_type, inferred_type, widen
from tidelog.pipeline.values.formats import arrow_type, read_json, reader_of
from tidelog.pipeline.values.json_form import json_form
from tidelog.pipeline.values.registry import (
    RegisteredSchema,
    Registry,
    UndecodableError,
    _client,
    read_indices,
    split_header,
)
from tidelog.protocol.record.record_batch import Record

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"]},
    {"name": "key", "type": "string"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
ORDER = {"id": 1, "name": "ann", "key": "k", "tags": ["a", "b"], "at": NOW_MS}


def avro(*more: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [*FIELDS, *more]})


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    """A registry without TLS, for whose clients no certificates are loaded: that takes 20 ms for each one."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # it would be read in place of the directory
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)
    with schema_registry() as running:
        yield running


def put(data: DataDirectory, *values: bytes | None, topic: str = "orders") -> None:
    write(data.log(topic), [Record(n, NOW_MS, b"k%d" % n, value) for n, value in enumerate(values)])


def table_at(data: DataDirectory) -> Path:
    return data.path.parent / "table"


def request(data: DataDirectory, registry: SchemaRegistry | None, **fields: Any) -> ExportRequest:
    known = None if registry is None else Registry((("url", registry.url),))
    values = "json" if registry is None else "registry"
    return ExportRequest(data.source(), str(table_at(data)), values=values, registry=known, **fields)


def run(data: DataDirectory, registry: SchemaRegistry | None, **fields: Any) -> ExportResult:
    return export(None, request(data, registry, **fields))


def dataset(source: Any, schema: pa.Schema | None = None) -> Any:
    import pyarrow.dataset  # and pandas with it: only in the worker that runs these tests

    return pyarrow.dataset.dataset(source, schema)


def rows(data: DataDirectory) -> list[dict[str, Any]]:
    """Read the table's rows by offset, with the columns of its widest file."""
    files = [dataset(path) for path in sorted((table_at(data) / "data").glob("*.parquet"))]
    schema = pa.unify_schemas([file.schema for file in files])
    found: list[dict[str, Any]] = dataset(files, schema).to_table().sort_by("offset").to_pylist()
    return found


def letters(data: DataDirectory) -> list[tuple[int, str]]:
    found = dataset(table_at(data) / "dead-letter").to_table().to_pylist()
    return sorted((row["offset"], row["reason"]) for row in found)


def serialized(registry: SchemaRegistry, text: str, value: dict[str, Any], kind: Any = AvroSerializer) -> bytes:
    """Write a value as Confluent's serializer does."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        given = (client, text) if kind is AvroSerializer else (text, client)
        found: bytes = kind(*given)(value, SerializationContext("orders", MessageField.VALUE))
    return found


def test_avro_values_become_columns(data: DataDirectory, registry: SchemaRegistry) -> None:
    good = serialized(registry, avro(), ORDER)
    put(data, good, None, b"{}", good[:-1], b"\0\0\0\0\1", b"\0\0\0\1\0")
    assert run(data, registry).dead_letters == 4
    found = rows(data)
    assert [row["id"] for row in found] == [1, None, None, None, None, None]
    first = {name: found[0][name] for name in ("name", "value_key", "tags", "key", "value")}
    assert first == {"name": "ann", "value_key": "k", "tags": ["a", "b"], "key": b"k0", "value": good}
    assert found[0]["at"].timestamp() * 1000 == NOW_MS
    assert [offset for offset, _ in letters(data)] == [2, 3, 4, 5]
    assert letters(data)[-1][1] == "the registry has no schema 256"
    assert letters(data)[0][1] == "it does not begin with the id of a schema"
    assert not audit(None, AuditRequest(data.source(), str(table_at(data)))).is_wrong


def test_a_new_field_widens_the_table(data: DataDirectory, registry: SchemaRegistry) -> None:
    put(data, serialized(registry, avro(), ORDER))
    run(data, registry)
    wider = avro({"name": "price", "type": "double", "default": 0.5})
    put(data, serialized(registry, avro(), ORDER), serialized(registry, wider, {**ORDER, "price": 2.5}))
    run(data, registry)
    assert [row["price"] for row in rows(data)] == [None, None, 2.5]


def test_another_type_stops_with_both_schemas(data: DataDirectory, registry: SchemaRegistry) -> None:
    put(data, serialized(registry, avro(), ORDER))
    run(data, registry)
    other = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})
    hidden = registry.register("another", other)
    put(data, b"\0" + hidden.to_bytes(4, "big") + b"\2a")
    with pytest.raises(JobError, match=r"offset 1 has schema \d+, which does not .*id is int64 and string.*struct<id"):
        run(data, registry)
    registry.register("orders-value", other)
    with pytest.raises(BadRequestError, match=r"schema \d+ of orders-value does not fit: id is int64 and string"):
        run(data, registry)


def test_a_schema_that_came_after_the_run_began_is_reported(data: DataDirectory, registry: SchemaRegistry) -> None:
    put(data, serialized(registry, avro(), ORDER))
    asked, _ = choose_value_columns(request(data, registry), Manifest())
    assert asked.columns is not None
    newer = registry.register("orders-value", avro({"name": "price", "type": "double"}))
    record = pa.RecordBatch.from_pydict(
        {"topic": ["orders"], "offset": [1], "value": [b"\0" + newer.to_bytes(4, "big")]}
    )
    with pytest.raises(JobError, match=r"offset 1 has schema \d+, which is newer than this run; run it again"):
        asked.columns.add_to(record)


def test_a_schema_of_another_subject_is_not_taken_for_a_newer_one(
    data: DataDirectory, registry: SchemaRegistry
) -> None:
    """Serializers may register it under the record's name. Each run ended with: newer than this run; run it again."""
    put(data, serialized(registry, avro(), ORDER))
    other = registry.register("orders-shop.Order", avro({"name": "price", "type": "double"}))
    put(data, b"\0" + other.to_bytes(4, "big"))
    with pytest.raises(
        JobError, match=r"offset 1 has schema \d+, which has other fields .* no version of the subject "
    ):
        run(data, registry)


def test_values_of_a_deleted_version_are_decoded(data: DataDirectory, registry: SchemaRegistry) -> None:
    """Its id stays valid. Its fields were in no column, so each run ended with: newer than this run; run it again."""
    put(data, serialized(registry, avro(), ORDER))
    priced = serialized(registry, avro({"name": "price", "type": "double"}), {**ORDER, "price": 2.5})
    registry.register("orders-value", json.dumps({"type": "record", "name": "O", "fields": [FIELDS[1]]}))
    wrong = registry.register(
        "orders-value", json.dumps({"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}]})
    )
    registry.deleted |= {("orders-value", 2), ("orders-value", 4)}
    put(data, priced)
    run(data, registry)
    assert [(row["id"], row["price"]) for row in rows(data)] == [(1, None), (1, 2.5)]
    put(data, b"\0" + wrong.to_bytes(4, "big") + b"\2a")
    with pytest.raises(JobError, match=r"offset 2 has schema \d+, which does not fit the table's: id is int64"):
        run(data, registry)


def test_a_deleted_subject_still_has_its_schemas(data: DataDirectory, registry: SchemaRegistry) -> None:
    put(data, serialized(registry, avro(), ORDER))
    registry.deleted.add(("orders-value", 1))
    run(data, registry)
    assert rows(data)[0]["name"] == "ann"


def test_directories_of_several_brokers_are_exported(
    data: DataDirectory, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """They were refused, because each has the partition."""
    put(data, serialized(registry, avro(), ORDER))
    write_offset_checkpoint(OsFileSystem(), str(data.path / REPLICATION_OFFSET_FILE), {TopicPartition("orders", 0): 1})
    data.close()
    shutil.copytree(data.path, tmp_path / "other")
    asked = replace(request(data, registry), source=LogSource((str(data.path), str(tmp_path / "other"))))
    assert export(None, asked).rows == 1
    assert rows(data)[0]["name"] == "ann"


def test_columns_have_names_that_differ_in_any_case(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark and Delta take ``key`` and ``Key`` for one; two columns ``value_key`` could not be read at all."""
    put(data, b'{"key": 1, "value_key": 2, "Offset": 3, "a": 4, "A": 5}')
    found = {"value_key": 1, "value_value_key": 2, "value_Offset": 3, "a": 4, "value_A": 5}
    run(data, None)
    put(data, b'{"key": 1, "value_key": 2, "Offset": 3, "a": 4, "A": 5}')
    run(data, None)
    export_to_delta(None, replace(request(data, None), table=str(table_at(data) / "delta")))
    with closed_catalogs(monkeypatch):
        target = target_below(data.path.parent)
        export_to_iceberg(None, request(data, None), target)
        tables = [rows(data), table_of(target).scan().to_arrow().to_pylist(),
                  DeltaTable(str(table_at(data) / "delta")).to_pyarrow_table().to_pylist()]  # fmt: skip
    for table in tables:
        assert [{name: row[name] for name in found} for row in table] == [found, found]


def test_a_table_keeps_the_names_that_an_earlier_release_gave() -> None:
    known = pa.struct([("Key", pa.int64())])
    earlier = base64.b64encode(pa.schema(list(known)).serialize().to_pybytes()).decode()
    wider = pa.struct([*known, ("key", pa.int64())])
    assert [one.name for one in column_fields(encode_type(wider, earlier))] == ["Key", "value_key"]
    assert [one.name for one in column_fields(encode_type(wider))] == ["value_Key", "value_value_key"]


def test_fields_that_delta_takes_for_one_are_reported(data: DataDirectory) -> None:
    put(data, b'{"a": [{"x": 1, "X": 2}]}')
    with pytest.raises(JobError, match="column a has two fields 'X' in different case"):
        export_to_delta(None, request(data, None))


def test_json_values_with_a_schema_become_columns(data: DataDirectory, registry: SchemaRegistry) -> None:
    schema = {
        "title": "order", "type": "object",
        "properties": {"id": {"type": "integer"}, "at": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }  # fmt: skip
    value = {"id": 5, "at": {"x": 1.5}, "more": 1}
    put(data, serialized(registry, json.dumps(schema), value, JSONSerializer))
    put(data, b"\0" + (1).to_bytes(4, "big") + b"no")
    number = registry.subjects["orders-value"][0]
    put(data, b"\0" + number.to_bytes(4, "big") + b'{"id": "text"}')
    run(data, registry)
    assert [(row["id"], row["at"]) for row in rows(data)] == [(5, {"x": 1.5}), (None, None), (None, None)]


def message_file() -> Any:
    """Build a Protobuf file with a message of many kinds."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    fields: list[tuple[str, int, int, str]] = [
        ("id", kinds.TYPE_INT64, kinds.LABEL_OPTIONAL, ""),
        ("name", kinds.TYPE_STRING, kinds.LABEL_OPTIONAL, ""),
        ("tags", kinds.TYPE_STRING, kinds.LABEL_REPEATED, ""),
        ("big", kinds.TYPE_UINT64, kinds.LABEL_OPTIONAL, ""),
        ("at", kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
    ]
    for number, (name, kind, label, type_name) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    __import__("google.protobuf.timestamp_pb2")
    pool = descriptor_pool.DescriptorPool()
    stamp = descriptor_pool.Default().FindFileByName("google/protobuf/timestamp.proto")
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(stamp.serialized_pb))
    pool.Add(file)
    return pool.FindFileByName("order.proto")


def test_protobuf_values_become_columns(data: DataDirectory, registry: SchemaRegistry) -> None:
    file = message_file()
    number = registry.register_file("orders-value", file)
    order: Any = message_factory.GetMessageClass(file.message_types_by_name["Order"])(id=7, tags=["a"], big=2**64 - 1)
    order.at.FromMilliseconds(NOW_MS)
    header = b"\0" + number.to_bytes(4, "big")
    body = order.SerializeToString()
    put(data, header + b"\0" + body, header + b"\2\0" + body, header + b"\2\2" + body, header + b"\0\xff")
    run(data, registry)
    found = rows(data)
    assert [row["id"] for row in found] == [7, 7, None, None]
    assert (found[0]["name"], found[0]["tags"], int(found[0]["big"])) == ("", ["a"], 2**64 - 1)
    assert found[0]["at"].timestamp() * 1000 == NOW_MS
    assert [offset for offset, _ in letters(data)] == [2, 3]


def test_plain_json_is_inferred_once(data: DataDirectory) -> None:
    put(data, b'{"id": 1, "of": {"x": null, "y": [1]}}', b"no", b'{"id": 2, "name": "ann"}')
    run(data, None)
    put(data, b'{"id": 3, "later": 1}', b'{"id": {}}')
    run(data, None)
    assert [(row["id"], row["name"], row["of"]) for row in rows(data)] == [
        (1, None, {"y": [1]}), (None, None, None), (2, "ann", None), (3, None, None), (None, None, None),
    ]  # fmt: skip
    assert [offset for offset, _ in letters(data)] == [1, 4]


def protobuf(*imports: str, content: bytes | None = None) -> RegisteredSchema:
    """Return a schema with a message of one field, whose file has imports; ``content`` replaces the file."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="x", syntax="proto3", dependency=imports)
    file.message_type.add(name="M").field.add(name="a", number=1, type=3, label=1)
    data = file.SerializeToString() if content is None else content
    return RegisteredSchema(7, "PROTOBUF", base64.b64encode(data).decode())


@pytest.mark.parametrize(
    "name",
    ["google/protobuf/api.proto", "google/type/date.proto", "confluent/meta.proto", "confluent/types/decimal.proto"],
)
def test_files_that_registries_have_built_in_may_be_imported(name: str) -> None:
    """A module of google.protobuf was looked for, and google was told as not installed."""
    assert arrow_type(protobuf(name)) == pa.struct([("a", pa.int64())])
    assert reader_of(protobuf(name, "google/protobuf/any.proto"))(b"\0\x08\x07") == {"a": 7}
    assert json_form(protobuf(name)).read(b"\0\x08\x07") == {"a": "7"}


@pytest.mark.parametrize("name", ["other.proto", "google/protobuf/none.proto", "../google/protobuf/any.proto"])
def test_an_import_of_an_unknown_file_is_an_error_with_its_name(name: str) -> None:
    for read in (arrow_type, reader_of, json_form):
        with pytest.raises(
            BadRequestError, match=f"schema 7: it imports {name}, which is neither among its references"
        ):
            read(protobuf(name))


@pytest.mark.parametrize("content", [b"", b"\xff\xff"])
def test_a_file_that_is_no_descriptor_is_reported(content: bytes) -> None:
    with pytest.raises(BadRequestError, match="schema 7"):
        arrow_type(protobuf(content=content))
    with pytest.raises(BadRequestError, match=r"schema 7: .*, expected the descriptor of a Protobuf file"):
        arrow_type(RegisteredSchema(7, "PROTOBUF", 'syntax = "proto3"; message Text {}'))


@pytest.mark.parametrize("use", [arrow_type, reader_of])
def test_a_schema_of_an_unknown_kind_is_reported(use: Callable[[RegisteredSchema], object]) -> None:
    with pytest.raises(BadRequestError, match="of kind XML"):
        use(RegisteredSchema(7, "XML", "<a/>"))


def test_values_without_a_type_do_not_decide_the_columns(data: DataDirectory) -> None:
    """Each of the first two ended the export: one in a traceback."""
    put(data, b'{"\\ud800": 1}', b'{"a": [1, "x"]}', b'{"a": [2]}')
    run(data, None)
    assert [row["a"] for row in rows(data)] == [None, None, [2]]
    assert [offset for offset, _ in letters(data)] == [1]


def exported_twice(data: DataDirectory, registry: SchemaRegistry, export_once: Callable[[], object]) -> None:
    """Export a value and one that cannot be read, then a value of a wider schema."""
    put(data, serialized(registry, avro(), ORDER), b"bad")
    export_once()
    put(data, serialized(registry, avro({"name": "price", "type": "double"}), {**ORDER, "price": 2.5}))
    export_once()


def test_values_become_columns_of_iceberg_tables(
    data: DataDirectory, registry: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_below(tmp_path)
    with closed_catalogs(monkeypatch):
        exported_twice(data, registry, lambda: export_to_iceberg(None, request(data, registry), target))
        found = table_of(target).scan().to_arrow().sort_by("offset").to_pylist()
        assert [(row["id"], row["price"]) for row in found] == [(1, None), (None, None), (1, 2.5)]
        assert table_of(target, NAME + "_dead_letter").scan().to_arrow().column("offset").to_pylist() == [1]


def test_values_become_columns_of_delta_tables(data: DataDirectory, registry: SchemaRegistry) -> None:
    delta = request(data, registry, mode="upsert")
    exported_twice(data, registry, lambda: export_to_delta(None, delta))
    latest = DeltaTable(str(table_at(data))).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [(row["key"], row["price"]) for row in latest] == [(b"k1", None), (b"k0", 2.5)]


def test_a_table_keeps_its_values(data: DataDirectory, registry: SchemaRegistry) -> None:
    put(data, serialized(registry, avro(), ORDER))
    run(data, registry)
    with pytest.raises(BadRequestError, match="--values not given: the table was made with it"):
        export(None, ExportRequest(data.source(), str(table_at(data))))


def test_a_registry_without_the_subject_is_reported(data: DataDirectory, registry: SchemaRegistry) -> None:
    put(data, b"x")
    with pytest.raises(BadRequestError, match="the registry has no schema of orders-value"):
        run(data, registry)


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_gateways_answer_decides_nothing_about_values(
    data: DataDirectory, registry: SchemaRegistry, status: int
) -> None:
    put(data, serialized(registry, avro(), ORDER))
    run(data, registry)
    other = registry.register("orders-value", avro({"name": "price", "type": "double"}))
    put(data, b"\0" + other.to_bytes(4, "big"))
    settings = (("url", registry.url), ("max.retries", "0"))
    registry.gateway = status, "default backend"
    for asking in (lambda: Registry(settings).schema_by_id(other), lambda: Registry(settings).versions("orders-value")):
        with pytest.raises(JobError, match=r"schema registry [\w.:]+, (schema|subject) .*default backend"):
            asking()


def test_a_registry_that_is_away_or_asked_wrongly_is_reported() -> None:
    away = Registry((("url", "http://127.0.0.1:1"), ("max.retries", "0"), ("timeout", "20")))
    for asking in (lambda: away.schema_by_id(1), lambda: away.versions("orders-value")):
        with pytest.raises(JobError, match=r"schema registry [\w.:]+, (schema|subject) .*refused"):
            asking()
    for wrong in ("http://127.0.0.1:1", "nonsense"):
        with pytest.raises(BadRequestError, match="schema registry: "):
            Registry((("url", wrong), ("no.such.setting", "1"))).schema_by_id(1)
    client: Any = _client((("url", "http://127.0.0.1:1"),))
    assert client._rest_client.timeout > 0


def test_json_of_other_types_is_not_changed_for_the_columns(data: DataDirectory) -> None:
    put(data, b'{"n": 1, "of": [{"x": 1.5}], "s": "a", "b": true}')
    run(data, None)
    wrong = (b'{"n": 1.5}', b'{"n": true}', b'{"of": [{"x": true}]}', b'{"s": 1}', b'{"b": 1}', b'{"n": 1e300}')
    put(data, *wrong, b'{"n": 2.0, "of": [{"x": 2}, null], "b": null}')
    assert run(data, None).dead_letters == len(wrong)
    assert letters(data)[0][1] == "n is 1.5, the column is int64"
    last = rows(data)[-1]
    assert (last["n"], last["of"], last["s"]) == (2, [{"x": 2.0}, None], None)
    assert [row["n"] for row in rows(data)] == [1] + [None] * len(wrong) + [2]


def test_json_that_is_too_deep_is_a_dead_letter() -> None:
    with pytest.raises(UndecodableError, match="it is not JSON"):
        read_json(b'{"n": ' + b"[" * 1_000_000)


def test_columns_wait_for_the_first_value(data: DataDirectory) -> None:
    data.log("orders")
    assert run(data, None).committed is False
    for _ in range(11):
        put(data, *[None] * 100)
    assert run(data, None).committed is False
    put(data, b'{"id": 1}')
    assert run(data, None).rows == 1101
    assert rows(data)[-1]["id"] == 1


AVRO_TYPES: list[tuple[Any, Any, Any, Any]] = [
    ({"type": "string", "logicalType": "uuid"}, "string", "ab", "ab"),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, "int64", 5, 5),
    ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "binary", b"\1", b"\1"),
    ({"type": "fixed", "name": "d", "size": 4, "logicalType": "duration"}, "binary", b"abcd", b"abcd"),
    ({"type": "enum", "name": "e", "symbols": ["a", "b"]}, "string", "b", "b"),
]


@pytest.mark.parametrize(("kind", "column", "written", "read"), AVRO_TYPES)
def test_avro_types_become_arrow_types(kind: Any, column: str, written: Any, read: Any) -> None:
    text = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}
    plain = {name: value for name, value in kind.items() if name != "logicalType"}
    schema = RegisteredSchema(7, "AVRO", json.dumps(text))
    assert str(arrow_type(schema).field("a").type) == column
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, {**text, "fields": [{"name": "a", "type": plain}]}, {"a": written})
    assert reader_of(schema)(stream.getvalue()) == {"a": read}


def test_avro_names_of_namespaces_and_other_schemas() -> None:
    inner = {"type": "record", "name": "In", "namespace": "one", "fields": [{"name": "x", "type": "int"}]}
    other = {**inner, "namespace": "two", "fields": [{"name": "y", "type": "string"}]}
    known = RegisteredSchema(5, "AVRO", json.dumps(other))
    fields = [("a", inner), ("b", "one.In"), ("c", "two.In"), ("d", ["null", "two.In"])]
    text = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    schema = RegisteredSchema(7, "AVRO", json.dumps(text), (("two.In", known), ("again", known)))
    one, two = pa.struct([("x", pa.int32())]), pa.struct([("y", pa.string())])
    assert arrow_type(schema) == pa.struct([("a", one), ("b", one), ("c", two), ("d", two)])
    found = reader_of(schema)(b"\2\4\2k\2\2m")
    assert found == {"a": {"x": 1}, "b": {"x": 2}, "c": {"y": "k"}, "d": {"y": "m"}}


def test_a_log_without_values_settles_nothing(data: DataDirectory) -> None:
    data.log("orders")
    asked = request(data, None)
    assert choose_value_columns(asked, Manifest()) == (asked, Manifest())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}),
        ("AVRO", "string"),
        ("AVRO", {"type": "record", "name": "r", "fields": []}),
        ("AVRO", {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}),
        ("AVRO", {"type": "record", "name": "r", "fields": [{"name": "a", "type": "unknown"}]}),
        ("JSON", {"type": "object", "properties": {"a": {"oneOf": []}}}),
        ("JSON", {"type": "string"}),
    ],
)
def test_schemas_without_columns_are_refused(kind: str, text: Any) -> None:
    with pytest.raises(BadRequestError, match=r"schema 7.*(expected|no column)"):
        arrow_type(RegisteredSchema(7, kind, json.dumps(text)))


def doubling_avro(levels: int) -> RegisteredSchema:
    """Build records each of which has the next one twice: 2 to the power of ``levels`` fields."""
    inner: Any = "int"
    for level in reversed(range(levels)):
        again = inner if isinstance(inner, str) else inner["name"]
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        inner = {"type": "record", "name": f"r{level}", "fields": fields}
    return RegisteredSchema(7, "AVRO", json.dumps(inner))


def chained_avro(levels: int, kind: str = "record") -> RegisteredSchema:
    """Build nested types, each in its own schema, which the next one refers to if the types are named."""
    text: Any = "int"
    for level in range(levels):
        fields = [{"name": "a", "type": text}]
        text = {"type": "record", "name": f"r{level}", "fields": fields} if kind == "record" else {
            "type": "array", "items": text
        }  # fmt: skip
    return RegisteredSchema(7, "AVRO", json.dumps({"type": "record", "name": "top",
                                                   "fields": [{"name": "a", "type": text}]}))  # fmt: skip


def doubling_protobuf(levels: int, times: int = 2) -> RegisteredSchema:
    file = descriptor_pb2.FileDescriptorProto(name="deep.proto", package="deep", syntax="proto3")
    for level in range(levels):
        message = file.message_type.add(name=f"M{level}")
        for number in range(1, times + 1):
            field = message.field.add(name=f"f{number}", number=number)
            field.label = field.LABEL_OPTIONAL
            if level + 1 < levels:
                field.type, field.type_name = field.TYPE_MESSAGE, f".deep.M{level + 1}"
            else:
                field.type = field.TYPE_INT64
    return RegisteredSchema(7, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode())


def nested_json(levels: int) -> RegisteredSchema:
    text = '{"type": "object", "properties": {"a": ' * levels + '{"type": "integer"}' + "}}" * levels
    return RegisteredSchema(7, "JSON", text)


LARGE = {
    "Avro, doubling": doubling_avro(40),
    "Avro, deep records": chained_avro(60),
    "Avro, deep arrays": chained_avro(60, "array"),
    "Avro, deeper than Python": RegisteredSchema(
        7, "AVRO", '{"type": "array", "items": ' * 5000 + '"int"' + "}" * 5000
    ),
    "Protobuf, doubling": doubling_protobuf(40),
    "Protobuf, deep": doubling_protobuf(2000, 1),
    "JSON, deep": nested_json(60),
    "JSON, deeper than Python": nested_json(5000),
}


@pytest.mark.parametrize("name", LARGE)
def test_schemas_of_too_many_columns_are_refused(name: str) -> None:
    """A schema whose levels double has 2 to the power of 40 fields: a walk over all of them would not end."""
    with pytest.raises(BadRequestError, match="schema 7"):
        arrow_type(LARGE[name])


@pytest.mark.parametrize("schema", [doubling_avro(10), chained_avro(20), doubling_protobuf(10), nested_json(40)])
def test_schemas_of_many_columns_are_pinned(schema: RegisteredSchema) -> None:
    found = arrow_type(schema)
    assert decode_type(encode_type(found)) == found


def test_deep_json_values_are_refused_as_columns() -> None:
    with pytest.raises(BadRequestError, match="the values: it is over 50 levels deep"):
        inferred_type([b'{"a":' * 60 + b"1" + b"}" * 60])
    found = inferred_type([b'{"a":' * 40 + b"1" + b"}" * 40])
    assert found is not None
    assert decode_type(encode_type(found)) == found


@pytest.mark.parametrize("text", ["no JSON", "true", '{"type": "object", "properties": [1]}', '{"type": {}}'])
def test_json_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="schema 7"):
        arrow_type(RegisteredSchema(7, "JSON", text))


def test_headers_of_values_are_split_off() -> None:
    assert split_header(b"\0\0\0\1\2rest") == (258, b"rest")
    assert read_indices(b"\0rest") == ([0], b"rest")
    assert read_indices(b"\4\2\4rest") == ([1, 2], b"rest")
    for bad in (b"", b"\4\2"):
        with pytest.raises(UndecodableError):
            read_indices(bad)


def test_types_widen_and_are_pinned() -> None:
    one = pa.struct([("a", pa.int32()), ("b", pa.struct([("x", pa.string())]))])
    two = pa.struct([("b", pa.struct([("y", pa.list_(pa.field("element", pa.float32())))])), ("a", pa.int64())])
    both = widen(one, two)
    assert decode_type(encode_type(both)) == both
    assert (both.field("a").type, [field.name for field in both.field("b").type]) == (pa.int64(), ["x", "y"])
    with pytest.raises(TypeError, match=r"b\.x is string and int64"):
        widen(one, pa.struct([("b", pa.struct([("x", pa.int64())]))]))
    assert inferred_type([b"[1]", b"1", None]) is None


PRICE = {"name": "Price", "precision": 4, "scale": 2, "logicalType": "decimal"}


def read_prices(payload: bytes, **kind: Any) -> Any:
    """Decode a record of an optional decimal and a list of decimals; a fixed type has its name in the second place."""
    fields = [
        {"name": "one", "type": ["null", {**PRICE, **kind}]},
        {"name": "more", "type": {"type": "array", "items": "Price" if kind["type"] == "fixed" else {**PRICE, **kind}}},
    ]
    text = json.dumps({"type": "record", "name": "P", "fields": fields})
    return reader_of(RegisteredSchema(1, "AVRO", text))(payload)


@pytest.mark.parametrize("value", [9999, -9999, 0, -1, 120])
def test_decimals_are_exact_up_to_their_precision(value: int) -> None:
    number = Decimal(value) / 100
    for size in (2, 6):
        data = value.to_bytes(size, "big", signed=True)
        counted = bytes([2 * size]) + data
        read = read_prices(b"\2" + counted + b"\4" + counted * 2 + b"\0", type="bytes")
        assert read == {"one": number, "more": [number, number]}
        assert read_prices(b"\2" + data + b"\4" + data * 2 + b"\0", type="fixed", size=size) == read


@pytest.mark.parametrize("data", [b"\x27\x10", b"\xd8\xf0", b"\1" * 500_000], ids=len)
def test_a_decimal_beyond_its_precision_is_a_dead_letter(data: bytes) -> None:
    """It was rounded; one of many bytes took minutes."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema("bytes"), data)
    with pytest.raises(UndecodableError, match=rf"a decimal of {len(data)} bytes has more than 4 digits"):
        read_prices(b"\2" + stream.getvalue() + b"\0", type="bytes")
