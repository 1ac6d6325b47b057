"""A schema registry for tests: the part of Confluent's API that serializers and exports need, in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.json_server import json_server

Schema = dict[str, Any]
TEXT = 'syntax = "proto3"; message Text {}'
"""The text of every Protobuf schema, for clients that do not request the serialized descriptor."""


class SchemaRegistry:
    """Subjects and their schemas. A Protobuf schema is kept as its serialized file descriptor."""

    def __init__(self) -> None:
        self.schemas: list[Schema] = []
        #: If set, the response to every request, as of a gateway before the registry.
        self.gateway: tuple[int, Any] | None = None
        self.subjects: dict[str, list[int]] = {}
        #: Subjects and versions that were deleted softly: they are only answered with ``deleted=true``.
        self.deleted: set[tuple[str, int]] = set()
        self.url = ""

    def register(self, subject: str, text: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Add a schema; return its id."""
        schema = {"schema": text, "schemaType": kind, "references": list(references)}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        known = self.subjects.setdefault(subject, [])
        if number not in known:
            known.append(number)
        return number

    def register_file(self, subject: str, descriptor: Any, references: Any = ()) -> int:
        """Add a Protobuf file."""
        text = base64.b64encode(descriptor.serialized_pb).decode()
        return self.register(subject, text, "PROTOBUF", references)

    def answer(self, method: str, path: str, _: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """Answer a request with status and body."""
        if self.gateway is not None:
            return self.gateway
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            schema = self.schemas[number - 1]
            is_text = schema["schemaType"] == "PROTOBUF" and "format=serialized" not in urlsplit(path).query
            return 200, {**schema, "schema": TEXT} if is_text else schema
        if parts[0] == "subjects" and method == "POST":
            given = json.loads(body)
            number = self.register(parts[1], given["schema"], given.get("schemaType", "AVRO"))
            return 200, {"id": number}
        if parts[0] == "subjects" and parts[1] in self.subjects:
            known = self.subjects[parts[1]]
            gone = set() if "deleted=true" in urlsplit(path).query.lower() else self.deleted
            if len(parts) == 3:
                there = [one for one in range(1, len(known) + 1) if (parts[1], one) not in gone]
                return (200, there) if there else (404, {"error_code": 40401, "message": "Subject not found"})
            if (parts[1], parts[3]) in {(subject, str(one)) for subject, one in gone}:
                return 404, {"error_code": 40402, "message": "Version not found"}
            version = len(known) if parts[3] == "latest" else int(parts[3])
            number = known[version - 1]
            return 200, {"subject": parts[1], "version": version, "id": number, **self.schemas[number - 1]}
        return 404, {"error_code": 40401, "message": "Subject not found"}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A registry that is served inside the block."""
    registry = SchemaRegistry()
    with json_server(registry.answer, "application/vnd.schemaregistry.v1+json") as registry.url:
        yield registry
