"""No free descriptor (fault F12 of docs/internals/faults.md): accepting pauses without a busy loop and resumes,
segments can still be opened, and those of deleted topics free theirs."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import raw_client
from tests.support.admin import Admin
from tests.support.broker import TidelogProcess, free_port
from tidelog.broker.network.acceptor import RESERVED_MINIMUM
from tidelog.client import Client
from tidelog.commands.running.compaction import admin_address
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)

DESCRIPTORS = 256


class OpenProcess(TidelogProcess):
    """A broker that listens on all addresses of the machine, of IPv4 and IPv6."""

    def command(self) -> list[str]:
        command = super().command()
        port = command.index("--port")
        return [*command[:port], "--override", f"listeners=PLAINTEXT://:{free_port()}", *command[port + 2 :]]


class ScarceProcess(TidelogProcess):
    """A broker that may open only so many files."""

    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", *super().command()]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    directory: Path = tmp_path_factory.mktemp("network-descriptors")
    with ScarceProcess(directory, {"socket.listen.backlog.size": "1000"}) as process:
        yield process
        assert "Traceback" not in process.output()


def cpu_s(broker: TidelogProcess) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_topic(client: socket.socket) -> None:
    """Have ``new`` created, by asking for its metadata."""
    client.sendall(raw_client.frame(3, 1, 1, struct.pack(">ih", 1, 3) + b"new"))
    raw_client.receive_frame(client)


def test_accepting_pauses_and_resumes_and_segments_still_open(broker: TidelogProcess) -> None:
    connections = [raw_client.connect(broker.port)]
    try:
        first = connections[0]
        first.sendall(raw_client.api_versions())
        raw_client.receive_frame(first)  # a connection that sent no request is closed for a new one
        connections += [raw_client.connect(broker.port) for _ in range(DESCRIPTORS + 100)]
        make_topic(first)
        first.sendall(raw_client.produce("new", b"value"))
        assert raw_client.receive_produced(first)[1] == 0
        assert len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) < DESCRIPTORS
        before = cpu_s(broker)
        time.sleep(2)
        assert cpu_s(broker) - before < 0.5
        for connection in connections[1:200]:
            connection.close()
        last = connections[-1]
        last.sendall(raw_client.api_versions(9))
        assert struct.unpack(">i", raw_client.receive_frame(last)[:4]) == (9,)
    finally:
        for connection in connections:
            connection.close()


def files_of_deleted(broker: TidelogProcess) -> int:
    """Count descriptors and directories of deleted partitions."""
    held = 0
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            held += "-delete" in os.readlink(link)
    return held + len(list(broker.data_directory.glob("*-delete")))


def test_deleted_topics_free_descriptors_and_disk_space(tmp_path: Path) -> None:
    overrides = {"log.segment.delete.delay.ms": "0"}
    with TidelogProcess(tmp_path, overrides) as broker, raw_client.connect(broker.port) as connection:
        admin = Admin(broker.bootstrap)
        for number in range(5):
            admin.create(f"t{number}")
            connection.sendall(raw_client.produce(f"t{number}", b"value"))
            assert raw_client.receive_produced(connection)[1] == 0
            admin.delete(f"t{number}")
        deadline = time.monotonic() + 60
        while files_of_deleted(broker):
            assert time.monotonic() < deadline, "they wait for the next round of retention"
            time.sleep(0.1)


def is_served(broker: TidelogProcess) -> bool:
    with raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.api_versions())
        try:
            return bool(raw_client.receive_frame(connection))
        except (EOFError, ConnectionError):
            return False


def test_the_limits_on_connections_hold(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path, {"max.connections.per.ip": "3"}) as broker:
        connections = [raw_client.connect(broker.port) for _ in range(3)]
        for connection in connections:
            connection.sendall(raw_client.api_versions())
            raw_client.receive_frame(connection)
        with raw_client.connect(broker.port) as refused:
            assert raw_client.is_closed(refused)
        connections.pop().close()
        deadline = time.monotonic() + raw_client.TIMEOUT_S
        while not is_served(broker):
            assert time.monotonic() < deadline, "the place that came free is not given away"
        for connection in connections:
            connection.close()


def set_connection_rate(broker: TidelogProcess, address: str, rate: float) -> None:
    entry = EntryData(
        entity=[EntityData(entity_type="ip", entity_name=address)],
        ops=[OpData(key="connection_creation_rate", value=rate, remove=False)],
    )
    with Client(broker.bootstrap) as client:
        (answer,) = client.call(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse).entries
    assert not answer.error_code


def connect_when_free(address: str, port: int) -> socket.socket:
    """Connect, and be answered: an earlier connection may count for a moment after its end."""
    deadline = time.monotonic() + raw_client.TIMEOUT_S
    while True:
        connection = socket.create_connection((address, port), raw_client.TIMEOUT_S)
        try:
            connection.sendall(raw_client.api_versions())
            raw_client.receive_frame(connection)
        except (EOFError, ConnectionError):
            connection.close()
            assert time.monotonic() < deadline
        else:
            return connection


def test_an_ipv4_client_of_a_listener_on_all_addresses_has_the_limit_of_its_address(tmp_path: Path) -> None:
    """Such a listener is a socket for IPv6, whose IPv4 clients have addresses with a prefix."""
    limits = {"max.connections.per.ip.overrides": "127.0.0.1:1,[0:0:0:0:0:0:0:1]:2"}
    with OpenProcess(tmp_path, limits) as broker:
        for address, most in (("127.0.0.1", 1), ("::1", 2)):
            opened = [connect_when_free(address, broker.port) for _ in range(most)]
            with socket.create_connection((address, broker.port), raw_client.TIMEOUT_S) as refused:
                assert raw_client.is_closed(refused), "one too many is closed"
            for connection in opened:
                connection.close()


def test_connections_over_a_quota_take_the_descriptors_of_no_others(tmp_path: Path) -> None:
    """They are held for a second each. Of these, not of other addresses' connections, one is closed to make room."""
    with ScarceProcess(tmp_path) as broker:
        set_connection_rate(broker, "127.0.0.1", 1)
        kept = [socket.create_connection((broker.host, broker.port), 30, ("127.0.0.2", 0)) for _ in range(20)]
        flood = [socket.create_connection((broker.host, broker.port), 30) for _ in range(2 * DESCRIPTORS)]
        for connection in kept:
            connection.sendall(raw_client.api_versions())
            assert raw_client.receive_frame(connection)
        for connection in (*kept, *flood):
            connection.close()


def test_max_connections_leaves_the_next_in_the_backlog(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path, {"max.connections": "2"}) as broker:
        first, second = raw_client.connect(broker.port), raw_client.connect(broker.port)
        for connection in (first, second):
            connection.sendall(raw_client.api_versions())
            raw_client.receive_frame(connection)
        with raw_client.connect(broker.port) as waiting:
            waiting.sendall(raw_client.api_versions())
            waiting.settimeout(0.3)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            first.close()
            waiting.settimeout(raw_client.TIMEOUT_S)
            assert raw_client.receive_frame(waiting)
        second.close()


def silent(address: tuple[str, int]) -> bytes:
    return b""


def half_a_request(address: tuple[str, int]) -> bytes:
    return b"GET /metrics HTTP/1.1\r\nHost: local"


def answered(address: tuple[str, int]) -> bytes:
    return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def never_reads(address: tuple[str, int]) -> bytes:
    return answered(address) * 5000


@pytest.mark.parametrize("sent", [silent, half_a_request, answered, never_reads])
def test_a_flood_of_admin_connections_costs_others_nothing(
    broker: TidelogProcess, sent: Callable[[tuple[str, int]], bytes]
) -> None:
    """New connections replace idle ones: descriptors are limited, and clients of the broker and a new admin client are
    served."""
    address = admin_address(broker.bootstrap)
    flood: list[socket.socket] = []
    try:
        with raw_client.connect(broker.port) as client:
            make_topic(client)
            for number in range(DESCRIPTORS + 100):
                connection = socket.create_connection(address, timeout=raw_client.TIMEOUT_S)
                flood.append(connection)
                connection.setblocking(False)
                with suppress(OSError):  # it has given way already
                    connection.send(sent(address))
                if number % 50 == 0:
                    assert status_of(address, "/readyz") == 200
                    client.sendall(raw_client.produce("new", b"value"))
                    assert raw_client.receive_produced(client)[1] == 0
        with raw_client.connect(broker.port) as late:
            late.sendall(raw_client.api_versions())
            raw_client.receive_frame(late)
        assert len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) < DESCRIPTORS - RESERVED_MINIMUM
    finally:
        for connection in flood:
            connection.close()


def status_of(address: tuple[str, int], path: str) -> int:
    """Return the status of a GET."""
    connection = http.client.HTTPConnection(*address, timeout=raw_client.TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
