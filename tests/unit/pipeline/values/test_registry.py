"""The Protobuf indices in the header of a value, and schemas with their references."""

from __future__ import annotations

import gc
import socket
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.pipeline.job_errors import BadRequestError, MissingPackageError
from tidelog.pipeline.values import registry
from tidelog.pipeline.values.registry import (
    MAX_DEPTH,
    MAX_PATHS,
    TIMEOUT_S,
    RegisteredSchema,
    Registry,
    UndecodableError,
    read_indices,
)


@pytest.mark.parametrize(
    "payload",
    [b"\x01", b"\x03\x00\x00", b"\x02\x01", b"\x04\x00\x05", b"\xff" * 6 + b"\x00", b"\x02" + b"\x80" * 60_000],
)
def test_indices_that_no_message_has_are_refused(payload: bytes) -> None:
    with pytest.raises(UndecodableError):
        read_indices(payload)


def test_indices_are_read_with_the_bytes_after_them() -> None:
    assert read_indices(b"\x00rest") == ([0], b"rest")
    assert read_indices(b"\x04\x02\x80\x01rest") == ([1, 64], b"rest")


def test_references_that_double_with_each_step_are_refused() -> None:
    schema = RegisteredSchema(1, "AVRO", "{}")
    while 2 * schema.paths < MAX_PATHS:
        schema = RegisteredSchema(schema.id + 1, "AVRO", "{}", (("a", schema), ("b", schema)))
    with pytest.raises(UndecodableError, match="has over 1000 paths of references"):
        RegisteredSchema(0, "AVRO", "{}", (("a", schema), ("b", schema)))


def test_references_may_be_some_deep() -> None:
    schema = RegisteredSchema(1, "AVRO", "{}")
    for number in range(2, MAX_DEPTH + 1):
        schema = RegisteredSchema(number, "AVRO", "{}", (("a", schema),))
    assert {schema: 1}[schema] == 1
    with pytest.raises(UndecodableError):
        RegisteredSchema(0, "AVRO", "{}", (("a", schema),))


def test_a_subject_whose_schema_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(schema_id=7)
    client = SimpleNamespace(get_versions=lambda *_, **__: [1], get_version=lambda *_, **__: found)

    def refused(_settings: object, number: int) -> RegisteredSchema:
        raise UndecodableError(f"schema {number} has over 1000 paths of references")

    monkeypatch.setattr(registry, "_client", lambda _settings: client)
    monkeypatch.setattr(registry, "_load_schema", refused)
    with pytest.raises(BadRequestError, match="subject orders-value: schema 7"):
        Registry(()).versions("orders-value")


@pytest.mark.parametrize(
    "url",
    [
        "svc:s3cret@host:8081",
        "ftp://svc:s3cret@host",
        "http://svc:s3cret@host:x",
        "http://svc:s3cret/2@host",
        "https://svc:s3cret@[::1",
        "http://127.0.0.1:1,svc:s3cret@host",
    ],
)
def test_a_registry_that_is_no_url_is_refused_without_its_login(url: str) -> None:
    """The client's error showed it, or was a traceback."""
    with pytest.raises(BadRequestError, match="is no URL of http or https") as raised:
        Registry((("url", url),)).schema_by_id(1)
    assert "s3cret" not in str(raised.value)


QUESTIONS: dict[str, Callable[[Registry], object]] = {
    "schema_by_id": lambda one: one.schema_by_id(1),
    "versions": lambda one: one.versions("orders-value"),
    "deleted_versions": lambda one: one.deleted_versions("orders-value"),
    "latest_schema": lambda one: one.latest_schema("orders-value"),
    "register": lambda one: one.register("orders-value", "AVRO", "{}"),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("missing", ["cachetools", "confluent_kafka"])
def test_without_the_extra_it_is_named(question: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "confluent_kafka"]:
        monkeypatch.delitem(sys.modules, name)
    absent: Any = None
    monkeypatch.setitem(sys.modules, missing, absent)
    with pytest.raises(MissingPackageError, match=r"is not installed: pip install 'tidelog\[registry\]'"):
        QUESTIONS[question](Registry((("url", "http://127.0.0.1:1/no-client"),)))


def test_connections_of_a_displaced_client_are_closed() -> None:
    """Clients are cached; when one leaves the cache, the registry sees its connection close."""
    answer = b'{"schema":"{}"}'
    ended: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.settimeout(TIMEOUT_S)
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
                ended.append(connection.recv(1))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client: Any = registry._client.__wrapped__((("url", f"http://127.0.0.1:{server.getsockname()[1]}"),))
        assert client.get_schema(1).schema_str == "{}"
        del client
        gc.collect()
        thread.join()
    assert ended == [b""]
