"""The address of the admin interface: which broker is asked for it, and how long an answer is waited for."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from tidelog import find
from tidelog.admin_interface import AdminInterface, ask_admin_address
from tidelog.broker.admin.find import parse_request
from tidelog.cli import main
from tidelog.client import ClientError
from tidelog.client.cluster import Cluster
from tidelog.client.security import Security
from tidelog.log.find.lookup import MAX_TIME
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker


class Broker:
    """A connection to a broker of a cluster, whose id is the number of its port."""

    is_broken = False

    def __init__(self, server: str, ids: list[int]) -> None:
        self.bootstrap = server
        self._id = int(server.rpartition(":")[2])
        self._ids = ids

    def close(self) -> None:
        """Keep the connection."""

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(100), (0, 99))

    def call(self, request: Any, response_type: type) -> Any:
        return self.send(request, response_type, 1)

    def send(self, request: Any, _response_type: type, _version: int) -> Any:
        if isinstance(request, MetadataRequest):
            found = [MetadataResponseBroker(node_id=one, host="h", port=one) for one in self._ids]
            return MetadataResponse(brokers=found)
        assert isinstance(request, DescribeConfigsRequest)
        return DescribeConfigsResponse(results=[self._describe(request.resources[0].resource_name)])

    def _describe(self, name: str) -> DescribeConfigsResult:
        if name != str(self._id):
            return DescribeConfigsResult(error_code=InvalidRequestError.code, error_message="Unexpected broker id")
        entry = DescribeConfigsResourceResult(name="admin.listener", value=f"0.0.0.0:{9000 + self._id}")
        return DescribeConfigsResult(configs=[entry])


@pytest.mark.parametrize(
    ("servers", "ids", "expected"),
    [
        ("h:2", [1, 2, 3], AdminInterface("h", 9002, is_encrypted=False)),
        ("h:3,h:2", [1, 2, 3], AdminInterface("h", 9003, is_encrypted=False)),
        ("balancer:2", [1, 2, 3], AdminInterface("h", 9001, is_encrypted=False)),
        ("container:2", [2], AdminInterface("container", 9002, is_encrypted=False)),
    ],
)
def test_a_broker_is_asked_for_its_own_address(servers: str, ids: list[int], expected: AdminInterface) -> None:
    connect: Any = lambda server: Broker(server, ids)  # noqa: E731
    assert ask_admin_address(Cluster(servers, 1.0, connect=connect)) == expected


@pytest.mark.parametrize("words", [["find", "orders", "--key", "1"], ["compaction", "status"]])
def test_the_timeout_ends_the_wait_for_a_silent_broker(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        assert main([*words, "--bootstrap", f"127.0.0.1:{server.getsockname()[1]}", "--timeout", "0.1"]) == 1
        assert time.monotonic() - begin < 5
    assert "timed out" in capsys.readouterr().err


def test_the_timeout_ends_the_wait_for_a_silent_interface() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = find.Tidelog(admin=f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.1)
        with pytest.raises(TimeoutError):
            next(client.find("orders", key="1"))


@pytest.mark.parametrize("body", [b"", b"no", b"[" * 60_000], ids=["empty", "no JSON", "nested"])
def test_an_answer_that_is_not_json_is_an_error_of_the_client(body: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        interface = AdminInterface("127.0.0.1", port, is_encrypted=False)
        with pytest.raises(ClientError, match=f"the admin interface at 127.0.0.1:{port} sent no valid response"):
            interface.ask(Security({}), "GET", "/", 10.0)
        thread.join(10.0)


@pytest.mark.parametrize("moment", [0, 1, -1, 5, -12_345_678, 20_261_121, 99_999_999, 1_700_000_000_000, MAX_TIME])
def test_a_number_is_sent_in_a_form_that_is_only_milliseconds(moment: int) -> None:
    """Zero was refused, and 20261121 was the date of which it has the digits."""
    sent: list[dict[str, str]] = []

    class Client(find.Tidelog):
        def _ask(self, topic: str, parameters: dict[str, str]) -> dict[str, Any]:
            sent.append(parameters)
            return {"records": [], "next": None}

    assert list(Client().find("orders", begin=moment, end=moment)) == []
    query = parse_request("orders", sent[0], now_ms=0).query
    assert (query.begin, query.end) == (moment, moment)


def test_the_address_is_asked_again_after_a_restart_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``admin.listener`` the interface may have another port after it."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    asked: list[int] = []

    def find_admin(_settings: object) -> AdminInterface:
        asked.append(port)
        return AdminInterface("127.0.0.1", port, is_encrypted=False)

    monkeypatch.setattr(find, "find_admin", find_admin)
    client = find.Tidelog()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            next(client.find("orders", key="1"))
    assert asked == [port, port]
