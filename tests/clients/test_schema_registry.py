"""The schema registry with its usual clients: confluent-kafka's serializers, and a broker that is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from tests.support.broker import TidelogProcess, free_port
from tidelog.cli import main
from tidelog.commands.frame.records import parse_json_record
from tidelog.pipeline.values.columns import registered_type
from tidelog.pipeline.values.formats import reader_of
from tidelog.pipeline.values.registry import Registry as PipelineRegistry
from tidelog.pipeline.values.registry import split_header

AVRO = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
JSON = '{"type":"object","title":"Order","properties":{"id":{"type":"integer"}},"additionalProperties":false}'


class Registry:
    """A broker with a registry on a port that it keeps."""

    def __init__(self, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.broker = TidelogProcess(directory, {"schema.registry.listener": self.url.removeprefix("http://")})

        self._clients: list[SchemaRegistryClient] = []

    @property
    def client(self) -> SchemaRegistryClient:
        """A new client, which knows nothing yet."""
        self._clients.append(SchemaRegistryClient({"url": self.url}))
        return self._clients[-1]

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            client._rest_client.session.close()

    def ask(self, method: str, path: str, **options: Any) -> Any:
        return requests.request(method, self.url + path, timeout=60, **options).json()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry(tmp_path_factory.mktemp("registry"))
    with registry.broker:
        yield registry
        registry.close()


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_values_are_serialized_and_deserialized(registry: Registry) -> None:
    data = AvroSerializer(registry.client, AVRO)({"id": 7}, context("avro"))
    assert AvroDeserializer(registry.client)(data, context("avro")) == {"id": 7}
    assert registry.ask("GET", "/subjects/avro-value/versions/latest/schema") == json.loads(AVRO)


def test_json_values_are_serialized_and_deserialized(registry: Registry) -> None:
    data = JSONSerializer(JSON, registry.client)({"id": 7}, context("json"))
    assert JSONDeserializer(JSON, schema_registry_client=registry.client)(data, context("json")) == {"id": 7}


def test_a_normalized_schema_is_the_one_that_is_there(registry: Registry) -> None:
    """Serializers that normalize get one id for orders that mean nothing, in each format."""
    client = registry.client
    fields = '"fields":[{"name":"id","type":"long"}]'
    first = f'{{"type":"record","name":"N",{fields},"b":1,"a":2}}'
    avro = (first, f'{{"a":2,"name":"N","type":"record","b":1,{fields}}}')
    plain = ('{"type":"object","title":"N","required":["a"]}', '{"required":["a"],"title":"N","type":"object"}')
    proto = [f'syntax = "proto3"; {one}; {other}; message N {{}}' for one, other in (IMPORTS, IMPORTS[::-1])]
    for kind, texts in (("AVRO", avro), ("JSON", plain), ("PROTOBUF", proto)):
        one, other = (Schema(text, kind) for text in texts)
        subject = f"normal-{kind}"
        number = client.register_schema(subject, one, normalize_schemas=True)
        assert client.register_schema(subject, other, normalize_schemas=True) == number
        assert client.lookup_schema(subject, other, normalize_schemas=True).schema_id == number
        registry.ask("PUT", f"/config/{subject}", json={"compatibility": "NONE"})
        assert client.register_schema(f"{subject}-plain", one) != client.register_schema(f"{subject}-plain", other)
    serializers = [AvroSerializer(client, text, conf={"normalize.schemas": True}) for text in avro]
    data, other_data = (serialize({"id": 7}, context("normalized")) for serialize in serializers)
    assert data == other_data


IMPORTS = [f'import "google/protobuf/{name}.proto"' for name in ("timestamp", "duration")]


def test_a_client_works_in_a_context(registry: Registry) -> None:
    """Its subjects are those of the context, under a name of their own for everyone else."""
    before = set(registry.ask("GET", "/contexts"))
    inside = SchemaRegistryClient({"url": f"{registry.url}/contexts/.shop"})
    registry._clients.append(inside)
    data = AvroSerializer(inside, AVRO)({"id": 7}, context("held"))
    assert AvroDeserializer(inside)(data, context("held")) == {"id": 7}
    assert inside.get_subjects() == [":.shop:held-value"]
    assert ":.shop:held-value" in registry.client.get_subjects()
    assert registry.client.get_latest_version(":.shop:held-value").version == 1
    contexts = registry.ask("GET", "/contexts")
    assert contexts == sorted(before | {".shop"})
    assert contexts[0] == "."
    assert ":.shop:held-value" not in registry.ask("GET", "/subjects?subjectPrefix=")
    assert registry.ask("GET", "/subjects?subjectPrefix=:.shop:") == [":.shop:held-value"]
    assert registry.ask("GET", "/subjects/held-value/versions")["error_code"] == 40401
    registry.ask("PUT", "/contexts/.shop/config", json={"compatibility": "NONE"})
    assert registry.ask("GET", "/config/:.shop:held-value?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
    assert registry.ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


def test_a_reference_is_to_a_subject_of_its_own_context(registry: Registry) -> None:
    """The default context has a subject of the same name, which is another schema."""
    texts = {
        "": '{"type":"enum","name":"Kind","symbols":["A"]}',
        "/contexts/.near": '{"type":"fixed","name":"Kind","size":2}',
    }
    for base, text in texts.items():
        assert "id" in registry.ask("POST", f"{base}/subjects/kind/versions", json={"schema": text})
    whole = {
        "schema": '{"type":"record","name":"Held","fields":[{"name":"kind","type":"Kind"}]}',
        "references": [{"name": "Kind", "subject": "kind", "version": 1}],
    }
    near = registry.ask("POST", "/contexts/.near/subjects/held/versions", json=whole)["id"]
    assert registry.ask("GET", "/contexts/.near/subjects/kind/versions/1/referencedby") == [near]
    assert registry.ask("GET", "/subjects/kind/versions/1/referencedby") == []
    assert registry.ask("POST", "/contexts/.near/subjects/held", json=whole)["id"] == near
    inside = SchemaRegistryClient({"url": f"{registry.url}/contexts/.near"})
    registry._clients.append(inside)
    held = inside.get_latest_version("held").schema
    assert AvroSerializer(inside, held)({"kind": b"ab"}, context("held"))[-2:] == b"ab"
    whole["references"] = [{"name": "Kind", "subject": ":.:kind", "version": 1}]
    far = registry.ask("POST", "/contexts/.near/subjects/far/versions", json=whole)["id"]
    assert registry.ask("GET", "/subjects/kind/versions/1/referencedby") == [far]


def test_a_context_with_schemas_is_not_imported_into_unless_forced(registry: Registry) -> None:
    assert "id" in registry.ask("POST", "/contexts/.full/subjects/s/versions", json={"schema": '"string"'})
    refused = registry.ask("PUT", "/contexts/.full/mode", json={"mode": "IMPORT"})
    assert refused["error_code"] == 42205
    assert registry.ask("PUT", "/contexts/.full/mode?force=true", json={"mode": "IMPORT"}) == {"mode": "IMPORT"}
    assert registry.ask("PUT", "/contexts/.none/mode", json={"mode": "IMPORT"}) == {"mode": "IMPORT"}


def message_class() -> Any:
    """Build a message of a file that imports another one, and one of Protobuf's own."""
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    money = descriptor_pb2.FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    order = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    order.dependency.extend(["shop/money.proto", "google/protobuf/timestamp.proto"])
    message = order.message_type.add(name="Order")
    message.field.add(name="price", number=1, type=11, label=1, type_name=".shop.Money")
    message.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    for file in (money, order):
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_values_with_imports_are_serialized_and_deserialized(registry: Registry) -> None:
    """The client sends serialized descriptors, and those of imports as references."""
    kind = message_class()
    message = kind(price={"cents": 7}, at={"seconds": 5})
    data = ProtobufSerializer(kind, registry.client)(message, context("protobuf"))
    assert ProtobufDeserializer(kind, schema_registry_client=registry.client)(data, context("protobuf")) == message
    found = registry.ask("GET", "/subjects/protobuf-value/versions/1")
    assert found["schemaType"] == "PROTOBUF"
    assert found["references"] == [{"name": "shop/money.proto", "subject": "shop/money.proto", "version": 1}]
    assert "message Order {\n  .shop.Money price = 1;" in found["schema"]


def test_exports_read_values_of_all_formats(registry: Registry) -> None:
    """``tidelog pipeline export --values registry`` finds types and readers here, as in Confluent's registry."""
    kind = message_class()
    values = {
        "avro": AvroSerializer(registry.client, AVRO)({"id": 7}, context("export-avro")),
        "json": JSONSerializer(JSON, registry.client)({"id": 7}, context("export-json")),
        "proto": ProtobufSerializer(kind, registry.client)(kind(price={"cents": 7}), context("export-proto")),
    }
    reader = PipelineRegistry((("url", registry.url),))
    for name, value in values.items():
        assert value is not None
        number, payload = split_header(value)
        found = reader_of(reader.schema_by_id(number))(payload)
        assert found == ({"price": {"cents": 7}, "at": None} if name == "proto" else {"id": 7})
        found_type = registered_type(reader, [f"export-{name}"], None)
        assert found_type is not None
        assert found_type.field(0).name == ("price" if name == "proto" else "id")
    reader.close()


def serialized(registry: Registry, value_format: str, topic: str) -> tuple[bytes, Any]:
    """Return a value of Confluent's serializer, and its JSON; the schema is the topic's newest then."""
    value: dict[str, Any] = {"id": 7}
    if value_format == "avro":
        data = AvroSerializer(registry.client, AVRO)(value, context(topic))
    elif value_format == "json-schema":
        data = JSONSerializer(JSON, registry.client)(value, context(topic))
    else:
        kind, value = message_class(), {"price": {"cents": "7"}}
        data = ProtobufSerializer(kind, registry.client)(kind(price={"cents": 7}), context(topic))
    assert data is not None
    return data, value


@pytest.mark.parametrize("value_format", ["avro", "json-schema", "protobuf"])
def test_commands_read_and_write_values_as_the_serializers_do(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str], value_format: str
) -> None:
    topic, file, server = f"commands-{value_format}", tmp_path / "value", ["--bootstrap", registry.broker.bootstrap]
    data, value = serialized(registry, value_format, topic)
    file.write_bytes(data)
    schemas = ["--registry", registry.url, "--value-format", value_format]
    assert main(["produce", topic, str(file), "--format", "file", *server]) == 0
    capsys.readouterr()
    assert main(["consume", topic, "--json", *server, *schemas]) == 0
    line = capsys.readouterr().out
    assert json.loads(line)["value"] == value
    file.write_text(line)
    assert main(["produce", topic, str(file), "--format", "json", *server, *schemas]) == 0
    capsys.readouterr()
    assert main(["consume", topic, "--json", *server]) == 0
    assert [parse_json_record(one).value for one in capsys.readouterr().out.splitlines()] == [data, data]


def test_produce_registers_a_schema(registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, lines = tmp_path / "order.avsc", tmp_path / "lines"
    schema.write_text(AVRO)
    lines.write_text('{"id": 7}\n')
    words = ["--bootstrap", registry.broker.bootstrap, "--registry", registry.url, "--value-format", "avro"]
    assert main(["produce", "registered", str(lines), *words]) == 1
    assert "the registry has no subject registered-value" in capsys.readouterr().err
    assert main(["produce", "registered", str(lines), *words, "--value-schema", str(schema)]) == 0
    assert registry.ask("GET", "/subjects/registered-value/versions") == [1]
    capsys.readouterr()
    assert main(["consume", "registered", "--format", "value", *words]) == 0
    assert capsys.readouterr().out == '{"id": 7}\n'


def test_the_client_registers_references_and_checks_compatibility(registry: Registry) -> None:
    client = registry.client
    client.register_schema("inner", Schema('{"type":"record","name":"Inner","namespace":"n","fields":[]}', "AVRO"))
    outer = '{"type":"record","name":"Outer","namespace":"n","fields":[{"name":"a","type":"n.Inner"}]}'
    schema = Schema(outer, "AVRO", [SchemaReference("n.Inner", "inner", 1)])
    number = client.register_schema("outer", schema)
    assert client.lookup_schema("outer", schema).schema_id == number
    assert client.test_compatibility("outer", schema)
    assert not client.test_compatibility("outer", Schema('"int"', "AVRO"))
    with pytest.raises(SchemaRegistryError) as raised:
        client.register_schema("outer", Schema('"int"', "AVRO"))
    assert (raised.value.http_status_code, raised.value.error_code) == (409, 409)
    client.set_compatibility("outer", "NONE")
    assert client.get_compatibility("outer") == "NONE"
    assert client.register_schema("outer", Schema('"int"', "AVRO")) > number
    assert client.delete_subject("outer") == [1, 2]
    assert client.delete_subject("outer", permanent=True) == [1, 2]
    assert "outer" not in client.get_subjects()


def test_a_kill_loses_no_acknowledged_schema_and_gives_no_id_twice(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    answered: dict[str, int] = {}
    with registry.broker:
        stop = threading.Event()

        def register() -> None:
            for number in range(10_000):
                try:
                    found = registry.ask("POST", f"/subjects/s{number}/versions", json={"schema": schema_of(number)})
                except requests.RequestException:
                    return  # it is killed
                answered[f"s{number}"] = found["id"]
                if number == 10:
                    stop.set()

        thread = threading.Thread(target=register, daemon=True)
        thread.start()
        assert stop.wait(120)
        registry.broker.kill()
        thread.join(120)
        assert not thread.is_alive()
        registry.broker.start()
        for subject, number in answered.items():
            assert registry.ask("GET", f"/subjects/{subject}/versions/1")["id"] == number
        every = registry.ask("GET", "/schemas")
        assert len({one["id"] for one in every}) == len(every)
        fresh = registry.ask("POST", "/subjects/fresh/versions", json={"schema": '"string"'})
        assert fresh["id"] == max(one["id"] for one in every) + 1


def schema_of(number: int) -> str:
    return json.dumps({"type": "fixed", "name": f"F{number}", "size": 1})


def test_the_example_of_the_guide_prints_its_output(registry: Registry) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "schema-registry.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    printed = re.search(r"It prints\n\n((?:    .*\n)+)", page)
    assert printed is not None
    told = [line.strip() for line in printed[1].splitlines()]
    registry.ask("DELETE", "/subjects/orders-value")
    example = example.replace("http://127.0.0.1:8081", registry.url)
    found = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    subjects, value = found.stdout.splitlines()
    assert "orders-value" in subjects
    assert told == ["['orders-value']", value]
