"""An Iceberg REST catalog for tests: the part of its protocol that pyiceberg needs, over a catalog in SQLite.

Each commit takes the next of ``faults``:

    kept       commits (as without a fault)
    lost       commits, and answers 500
    refused    answers 500 without committing
    late       answers 504, and keeps the request for ``commit_late``
    beaten     commits the late request first, then this one
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

from tests.support.json_server import json_server

TABLES = 4
"""Number of parts of the path ``/v1/namespaces/{namespace}/tables/{table}`` before the table's name."""


class IcebergRest:
    """The catalog. Requests are answered one after another."""

    def __init__(self, directory: Path, token: str) -> None:
        directory.mkdir()
        self.catalog = SqlCatalog(
            "rest", uri=f"sqlite:///{directory / 'rest.db'}", warehouse=f"file://{directory / 'warehouse'}"
        )
        self.token = token
        self.faults: list[str] = []
        self._late: list[CommitTableRequest] = []
        self._lock = threading.Lock()
        self.uri = ""

    def close(self) -> None:
        self.catalog.close()

    def commit_late(self) -> bool:
        """Execute the request that was answered with 504; returns whether its commit succeeded."""
        with self._lock:
            return "metadata" in self._commit(self._late.pop())[1]

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer a request; returns the status and the body."""
        if headers.get("Authorization") != f"Bearer {self.token}":
            return 401, fault(PermissionError("no such token"))
        parts = path.partition("?")[0].strip("/").split("/")
        with self._lock:
            if parts[1:] == ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            if parts[1:] == ["namespaces"]:
                self.catalog.create_namespace_if_not_exists(tuple(json.loads(body)["namespace"]))
                return 200, {"namespace": json.loads(body)["namespace"], "properties": {}}
            if method == "POST" and len(parts) == TABLES:
                return self._create(parts[2], json.loads(body))
            if method == "POST":
                return self._faulty(CommitTableRequest.model_validate_json(body))
            return self._load((parts[2], parts[TABLES]))

    def _create(self, namespace: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = (namespace, request["name"])
        schema = Schema.model_validate(request["schema"])
        try:
            self.catalog.create_table(name, schema, properties=request.get("properties") or {})
        except TableAlreadyExistsError as error:
            return 409, fault(error)
        return self._load(name)

    def _load(self, name: tuple[str, str]) -> tuple[int, dict[str, Any]]:
        try:
            table = self.catalog.load_table(name)
        except NoSuchTableError as error:
            return 404, fault(error)
        return 200, {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json()),
        }

    def _faulty(self, request: CommitTableRequest) -> tuple[int, dict[str, Any]]:
        kind = self.faults.pop(0) if self.faults else "kept"
        if kind == "late":
            self._late.append(request)
            return 504, fault(TimeoutError("gateway"))
        if kind == "refused":
            return 500, fault(RuntimeError("the catalog's database"))
        if kind == "beaten":
            self._commit(self._late.pop())
        status, answer = self._commit(request)
        return (500, fault(RuntimeError("the answer"))) if kind == "lost" else (status, answer)

    def _commit(self, request: CommitTableRequest) -> tuple[int, dict[str, Any]]:
        name = (*request.identifier.namespace.root, request.identifier.name)
        try:
            self.catalog.commit_table(self.catalog.load_table(name), request.requirements, request.updates)
        except CommitFailedException as error:
            return 409, fault(error)
        return self._load((name[0], name[1]))


def fault(error: Exception) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": type(error).__name__, "code": 500}}


@contextmanager
def iceberg_rest(directory: Path, token: str = "a-token") -> Iterator[IcebergRest]:
    """A catalog that is served inside the block."""
    catalog = IcebergRest(directory, token)
    try:
        with json_server(catalog.answer) as catalog.uri:
            yield catalog
    finally:
        catalog.close()
