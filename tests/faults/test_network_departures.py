"""Every way in which a client can close its connection, at every moment: the broker notices it, and frees the
descriptor (fault F12 of docs/internals/faults.md).

The broker is stopped (SIGSTOP) while the client sends its last bytes and goes: so both reach the loop in one event, and
uvloop tells of a reset connection only once. A minute of churn: ``make churn``, or ``TIDELOG_CHURN_S=60``.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.raw_requests import create
from tidelog.client import Client
from tidelog.commands.running.compaction import admin_address
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

CLIENTS = 3
NOTICED_S = 60.0
"""A generous limit: the sweep comes twice a second."""
CHURN_S = float(os.environ.get("TIDELOG_CHURN_S", "3"))
DESCRIPTORS = 1024
LARGE = b"x" * 900_000
READ_AHEAD = raw_client.api_versions() * 20_000
"""More than a connection reads ahead while it cannot handle a request."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    overrides = {"group.initial.rebalance.delay.ms": "120000", "quota.window.num": "60"}
    with TidelogProcess(tmp_path_factory.mktemp("departures"), overrides) as process:
        for topic in ("some", "large", "empty"):
            create(process.port, topic)
        with raw_client.connect(process.port) as connection:
            for number in range(20):
                connection.sendall(raw_client.produce("large", LARGE, number))
                assert raw_client.receive_produced(connection)[1] == 0
        mute(process)
        os.sync()
        yield process
        assert "Traceback" not in process.output()


def mute(broker: TidelogProcess) -> None:
    """Give the clients called ``mut`` a quota that one record exceeds."""
    entity = [EntityData(entity_type="client-id", entity_name="mut")]
    ops = [OpData(key="producer_byte_rate", value=1.0)]
    with Client(broker.bootstrap) as client:
        answer = client.call(
            AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)]), AlterClientQuotasResponse
        )
    assert answer.entries[0].error_code == 0


def sockets_of(broker: TidelogProcess) -> int:
    found = 0
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(link).startswith("socket:")
    return found


@contextmanager
def stopped(broker: TidelogProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def fetch(topic: str, max_wait_ms: int, max_bytes: int = 20_000_000) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics, session_epoch=-1)
    return raw_client.frame(1, 7, 1, request.encode(7))


def join() -> bytes:
    request = JoinGroupRequest(
        group_id=f"group-{time.monotonic_ns()}",
        session_timeout_ms=300_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return raw_client.frame(11, 1, 1, request.encode(1))


def forget_pages(broker: TidelogProcess) -> None:
    """Have the next read of the large topic wait for the disk."""
    for path in (broker.data_directory / "large-0").glob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


MOMENTS: dict[str, tuple[bytes, bytes]] = {
    "before a byte": (b"", b""),
    "in the middle of a length": (b"", b"\0\0"),
    "in the middle of a frame": (b"", struct.pack(">i", 10_000) + b"half"),
    "in the middle of a large frame": (struct.pack(">i", 10_000_000) + bytes(1_000_000), bytes(100_000)),
    "after a request": (b"", raw_client.api_versions()),
    "after produces with acks=0": (b"", raw_client.produce("some", b"value", acks=0) * 100),
    "with a fetch waiting": (fetch("empty", 300_000), b""),
    "with a fetch and another request waiting": (fetch("empty", 300_000), fetch("empty", 300_000)),
    "with a fetch and half a frame waiting": (fetch("empty", 300_000), struct.pack(">i", 10_000) + b"half"),
    "with a fetch and many requests waiting": (fetch("empty", 300_000) * 2 + READ_AHEAD, b""),
    "with a join waiting": (join(), b""),
    "with a join and half a frame waiting": (join(), struct.pack(">i", 10_000) + b"half"),
    "with unsent output": (fetch("large", 0) * 20, b""),
    "with unsent output and half a frame": (fetch("large", 0) * 20, struct.pack(">i", 10_000) + b"half"),
    "muted": (raw_client.produce("some", b"value").replace(b"raw", b"mut", 1), b""),
    "muted, with requests": (
        raw_client.produce("some", b"value").replace(b"raw", b"mut", 1),
        raw_client.api_versions(),
    ),
    "muted, with many requests": (raw_client.produce("some", b"v").replace(b"raw", b"mut", 1) + READ_AHEAD, b""),
}


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def finish(connection: socket.socket) -> None:
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


GOODBYES: dict[str, Callable[[socket.socket], None]] = {"reset": reset, "close": finish, "half close": half_close}
UNSEEN = {
    ("with a fetch and many requests waiting", "half close"),
    ("with a fetch and many requests waiting", "close"),
    ("muted, with many requests", "half close"),
    ("muted, with many requests", "close"),
}
"""The end of the stream lies behind requests that are not read: the client may still want their answers."""


def send_some(connection: socket.socket, data: bytes) -> None:
    """Send as much as the broker takes: it does not read what it cannot handle."""
    connection.settimeout(0.3)
    with suppress(TimeoutError):
        connection.sendall(data)
    connection.settimeout(raw_client.TIMEOUT_S)


def wait_until_gone(broker: TidelogProcess, before: int) -> None:
    deadline = time.monotonic() + NOTICED_S
    while (now := sockets_of(broker)) > before:
        assert time.monotonic() < deadline, f"{now - before} connections of clients that are gone are kept"
        time.sleep(0.02)


@pytest.mark.parametrize("goodbye", GOODBYES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_departure_is_noticed(broker: TidelogProcess, moment: str, goodbye: str) -> None:
    if (moment, goodbye) in UNSEEN:
        pytest.skip("may be waiting for its answers")
    first, last = MOMENTS[moment]
    before = sockets_of(broker)
    connections = [raw_client.connect(broker.port) for _ in range(CLIENTS)]
    for connection in connections:
        send_some(connection, first)
    with stopped(broker):
        for connection in connections:
            if last:
                connection.sendall(last)
            GOODBYES[goodbye](connection)
    wait_until_gone(broker, before)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("goodbye", GOODBYES)
def test_a_departure_is_noticed_while_a_thread_sends_from_the_disk(broker: TidelogProcess, goodbye: str) -> None:
    before = sockets_of(broker)
    for _ in range(5):
        forget_pages(broker)
        with raw_client.connect(broker.port) as connection:
            connection.sendall(fetch("large", 0) * 3 + struct.pack(">i", 10_000) + b"half")
            connection.recv(1)
            GOODBYES[goodbye](connection)
            wait_until_gone(broker, before)


@pytest.mark.parametrize("goodbye", GOODBYES)
@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_departure_from_the_admin_interface_is_noticed(broker: TidelogProcess, sent: bytes, goodbye: str) -> None:
    with socket.create_connection(admin_address(broker.bootstrap), timeout=raw_client.TIMEOUT_S) as first:
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while first.recv(1000):
            pass
    before = sockets_of(broker)
    connections = [
        socket.create_connection(admin_address(broker.bootstrap), timeout=raw_client.TIMEOUT_S) for _ in range(CLIENTS)
    ]
    with stopped(broker):
        for connection in connections:
            connection.sendall(sent)
            GOODBYES[goodbye](connection)
    wait_until_gone(broker, before)
    for connection in connections:
        connection.close()


class ScarceProcess(TidelogProcess):
    """A broker that may open only so many files."""

    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", *super().command()]


def is_served(port: int) -> None:
    with raw_client.connect(port) as connection:
        connection.sendall(raw_client.api_versions(7))
        assert raw_client.receive_frame(connection)[:4] == struct.pack(">i", 7)


def test_churn_leaves_nothing_and_new_clients_are_served(tmp_path: Path) -> None:
    """Connections reset at every moment, more of them than there are descriptors; some stay, and say nothing."""
    generator = random.Random(7)
    farewells = [MOMENTS[name] for name in ("before a byte", "in the middle of a frame", "after produces with acks=0")]
    with ScarceProcess(tmp_path, {"socket.listen.backlog.size": "4096"}) as broker:
        create(broker.port, "some")
        before = sockets_of(broker)
        silent: list[socket.socket] = []
        end = time.monotonic() + CHURN_S
        count = 0
        while time.monotonic() < end:
            count += 1
            connection = raw_client.connect(broker.port)
            with suppress(ConnectionError):
                connection.sendall(generator.choice(farewells)[1])
                if count % 3 == 0 and len(silent) < 2 * DESCRIPTORS:
                    silent.append(connection)
                    continue
            reset(connection)
            if count % 200 == 0:
                is_served(broker.port)
        assert count > DESCRIPTORS
        ended = time.monotonic()
        for connection in silent:
            reset(connection)
        wait_until_gone(broker, before)
        print(f"{count} connections in {CHURN_S:.0f} s, descriptors back {time.monotonic() - ended:.2f} s later")
        is_served(broker.port)
