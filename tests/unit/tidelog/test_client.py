from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog import cli
from tidelog.client import Client, ClientError, parse_bootstrap
from tidelog.client.cluster import ask
from tidelog.client.security import Security
from tidelog.commands.running.ping import local_bootstrap
from tidelog.protocol.errors import UnsupportedVersionError
from tidelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

Answer = Callable[[int, int, int], bytes]


def frame(correlation_id: int, body: bytes, *, flexible: bool = False) -> bytes:
    payload = struct.pack(">i", correlation_id) + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(payload)) + payload


def normal(api_key: int, version: int, correlation_id: int) -> bytes:
    """Answer as a broker that serves Metadata up to version 9 and describes an empty cluster."""
    if api_key == 18:
        keys = [ApiVersion(api_key=3, min_version=2, max_version=9)]
        return frame(correlation_id, ApiVersionsResponse(api_keys=keys).encode(version))
    response = MetadataResponse(cluster_id=f"version {version}")
    return frame(correlation_id, response.encode(version), flexible=version >= 9)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], None]]:
    """Makes ``create_connection`` give one end of a pair, the other answered by a function in a thread."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: ours)
    monkeypatch.setattr(ours.__class__, "setsockopt", lambda *args: None)
    threads: list[threading.Thread] = []

    def start(answer: Answer) -> None:
        def loop() -> None:
            with theirs, contextlib.suppress(ConnectionResetError):  # a client may leave with bytes unread
                while head := theirs.recv(4):
                    request = theirs.recv(struct.unpack(">i", head)[0])
                    answered = answer(*struct.unpack_from(">hhi", request))
                    if not answered:
                        return
                    theirs.sendall(answered)

        threads.append(threading.Thread(target=loop, daemon=True))
        threads[0].start()

    yield start
    ours.close()
    if not threads:
        theirs.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h:1", ("h", 1)), ("[::1]:7", ("::1", 7))],
)
def test_bootstrap_addresses_are_parsed(text: str, expected: tuple[str, int]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize("text", ["", "h", "[::1]", ":9092", "h:x", "h:", "h:0", "h:65536"])
def test_bad_bootstrap_addresses_are_refused(text: str) -> None:
    with pytest.raises(ClientError, match="HOST:PORT"):
        parse_bootstrap(text)


def test_the_newest_common_version_is_used(serve: Callable[[Answer], None]) -> None:
    serve(normal)
    with Client("h:1") as client:
        assert client.api_versions() == {3: (2, 9)}
        assert client.call(MetadataRequest(), MetadataResponse).cluster_id == "version 9"


def test_several_requests_are_under_way_and_answered_in_order(serve: Callable[[Answer], None]) -> None:
    serve(normal)
    with Client("h:1") as client:
        for version in (2, 9, 5):
            client.post(MetadataRequest(), version)
        with pytest.raises(ClientError, match="h:1 has left 3 requests without an answer"):
            client.send(MetadataRequest(), MetadataResponse, 9)
        answers = [client.answer(MetadataResponse).cluster_id for _ in range(3)]
        assert answers == ["version 2", "version 9", "version 5"]
        assert client.call(MetadataRequest(), MetadataResponse).cluster_id == "version 9"


def test_an_api_that_is_not_served_is_reported(serve: Callable[[Answer], None]) -> None:
    serve(lambda key, version, number: frame(number, ApiVersionsResponse().encode(version)))
    with Client("h:1") as client, pytest.raises(UnsupportedVersionError, match="METADATA"):
        client.call(MetadataRequest(), MetadataResponse)


def test_an_api_that_is_not_served_has_no_versions(serve: Callable[[Answer], None]) -> None:
    serve(lambda key, version, number: frame(number, ApiVersionsResponse().encode(version)))
    with Client("h:1") as client:
        with pytest.raises(UnsupportedVersionError, match=r"^h:1 does not serve METADATA$"):
            client.call(MetadataRequest(), MetadataResponse)
        with pytest.raises(ClientError, match=r"^h:1 does not serve METADATA$"):
            ask(client, MetadataRequest(), MetadataResponse, 9)


def test_versions_that_are_not_served_are_reported(serve: Callable[[Answer], None]) -> None:
    serve(normal)
    with Client("h:1") as client, pytest.raises(ClientError, match=r"^h:1 serves METADATA 2 to 9, not 0 to 1$"):
        ask(client, MetadataRequest(), MetadataResponse, 1)


def test_ping_asks_the_first_server_of_a_list_that_answers(
    serve: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(normal)
    connect = socket.create_connection

    def refuse_first(address: tuple[str, int], timeout: float) -> socket.socket:
        if address[0] == "away":
            raise ConnectionRefusedError(111, "Connection refused")
        return connect(address, timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", refuse_first)
    assert cli.main(["ping", "--bootstrap", "away:1,h:2"]) == 0
    assert capsys.readouterr().out.startswith("h:2 answers: 1 APIs, ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda key, version, number: b"", "closed the connection"),
        (lambda key, version, number: b"HTTP/1.1 400 Bad Request\r\n", "this is not a Kafka broker"),
        (lambda key, version, number: frame(number + 1, b""), "instead of"),
        (lambda key, version, number: frame(number, ApiVersionsResponse(error_code=35).encode(version)), "error 35"),
    ],
)
def test_a_malformed_answer_is_an_error(serve: Callable[[Answer], None], answer: Answer, message: str) -> None:
    serve(answer)
    with Client("h:1") as client, pytest.raises(ClientError, match=message):
        client.api_versions()


def test_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: object, timeout: float) -> socket.socket:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ClientError, match="h:1"):
        Client("h:1")


def test_ping_says_how_long_it_took(serve: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]) -> None:
    serve(normal)
    assert cli.main(["ping", "--bootstrap", "h:1"]) == 0
    assert capsys.readouterr().out.startswith("h:1 answers: 1 APIs, ")


def test_ping_can_be_quiet(serve: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]) -> None:
    serve(normal)
    assert cli.main(["ping", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("address", ["foo", "foo:", "foo:x"])
def test_ping_names_the_form_of_an_address(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ping", "--bootstrap", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"tidelog ping: --bootstrap {address!r}: expected HOST:PORT with a port from 1 to 65535"


def test_ping_fails_with_one_line(serve: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]) -> None:
    serve(lambda key, version, number: b"")
    assert cli.main(["ping"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tidelog ping: ")


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        (None, "127.0.0.1:9092"),
        ("PLAINTEXT://:9094", "127.0.0.1:9094"),
        ("PLAINTEXT://0.0.0.0:9094", "127.0.0.1:9094"),
        ("PLAINTEXT://[::]:9094", "[::1]:9094"),
        ("PLAINTEXT://kafka:9094", "kafka:9094"),
    ],
)
def test_ping_finds_the_broker_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, listeners: str | None, expected: str
) -> None:
    monkeypatch.delenv("KAFKA_LISTENERS", raising=False)
    if listeners is not None:
        monkeypatch.setenv("KAFKA_LISTENERS", listeners)
    assert local_bootstrap() == expected


def test_ping_asks_the_broker_of_this_machine(
    serve: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://:9094")
    serve(normal)
    assert cli.main(["ping", "--local"]) == 0
    assert capsys.readouterr().out.startswith("127.0.0.1:9094 answers")


def test_a_connection_that_could_not_be_secured_is_closed(tmp_path: Path) -> None:
    """A truststore that cannot be read is found once the connection stands."""
    security = Security({"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "none.pem")})
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(ClientError, match=r"none\.pem") as refused:
            Client(f"127.0.0.1:{server.getsockname()[1]}", security=security)
        with server.accept()[0] as connection:
            connection.settimeout(10)
            assert connection.recv(1) == b"", refused  # the error holds the client: nothing else would close it


def test_one_answer_may_take_longer() -> None:
    has_failed = threading.Event()

    def answer_late(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            for wait in (lambda: time.sleep(0.3), has_failed.wait):
                request = connection.recv(65536)
                key, version, number = struct.unpack_from(">hhi", request, 4)
                wait()
                with contextlib.suppress(OSError):  # the client has closed the connection
                    connection.sendall(normal(key, version, number))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_late, args=(server,), daemon=True)
        thread.start()
        with Client(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.1) as client:
            with client.extend_timeout(60.0):
                assert client.api_versions() == {3: (2, 9)}
            with pytest.raises(ClientError, match="timed out"):
                client.call(MetadataRequest(), MetadataResponse)
        has_failed.set()
        thread.join()


def test_a_host_that_is_no_name_is_an_error_of_the_client() -> None:
    """The encoder of international names refuses a label of 70 characters, before the system is asked."""
    with pytest.raises(ClientError, match=r"cannot connect to a{70}\.b:9092: not the name of a host"):
        Client(f"{'a' * 70}.b:9092", 1.0)
