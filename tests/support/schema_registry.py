"""A schema registry for tests: the part of Confluent's API that serializers and exports need, in memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Schema = dict[str, Any]


class SchemaRegistry:
    """Subjects and their schemas. A Protobuf schema is kept as its serialized file descriptor."""

    def __init__(self) -> None:
        self.schemas: list[Schema] = []
        #: The answer to everything instead, as of a gateway before it.
        self.gateway: tuple[int, Any] | None = None
        self.subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def serve(self) -> None:
        self._server.serve_forever(0.01)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(self, subject: str, text: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Add a schema; its id."""
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

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Status and body of a request."""
        if self.gateway is not None:
            return self.gateway
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[number - 1]
        if parts[0] == "subjects" and method == "POST":
            given = json.loads(body)
            number = self.register(parts[1], given["schema"], given.get("schemaType", "AVRO"))
            return 200, {"id": number}
        if parts[0] == "subjects" and parts[1] in self.subjects:
            known = self.subjects[parts[1]]
            if len(parts) == 3:
                return 200, list(range(1, len(known) + 1))
            version = len(known) if parts[3] == "latest" else int(parts[3])
            number = known[version - 1]
            return 200, {"subject": parts[1], "version": version, "id": number, **self.schemas[number - 1]}
        return 404, {"error_code": 40401, "message": "Subject not found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                status, body = registry.answer(self.command, self.path, self.rfile.read(size))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET  # noqa: N815 - the name that the server calls

            def log_message(self, format: str, *_: Any) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A server on 127.0.0.1."""
    registry = SchemaRegistry()
    thread = threading.Thread(target=registry.serve, name="schema registry", daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.stop()
        thread.join()
