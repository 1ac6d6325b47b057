"""Thousands of clients that have no login at listeners that authenticate (fault F13 of docs/internals/faults.md):
clients that have logged in lose nothing but time.

Half logins and half handshakes (slowloris), whole handshakes as fast as they go, wrong passwords at a high rate. Beside
each a client that has logged in produces, and another one logs in, in a process of their own; the threads that storm
leave the processor to them. ``make login-storms`` runs all at full size: 5,000 half logins, a minute of 1,000 wrong
passwords a second; it prints how long the others waited before the storm and in it. With ``TIDELOG_STORM_FLOOR=1`` the
storms meet ``tests.support.floor_server`` in place of a broker: what others wait for there, no broker can spare them.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import raw_client
from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tests.support.insider import PASSWORD, USER, Insider, login_frames
from tests.support.tls import client_context

IS_LONG = bool(os.environ.get("TIDELOG_LOGIN_STORMS"))
IS_FLOOR = bool(os.environ.get("TIDELOG_STORM_FLOOR"))
HALVES = 5_000 if IS_LONG else 600
HANDSHAKES = 12_000 if IS_LONG else 200
PASSWORDS_PER_S, SECONDS = (1_000, 60) if IS_LONG else (400, 2)
QUIET_ROUND_TRIPS = 200 if IS_LONG else 5
STATE_LIMIT_S = 120.0
MEMORY_BYTES = 100_000_000
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class Besieged:
    """A broker under a storm, with a listener for logins and one for TLS."""

    def __init__(self, directory: Path) -> None:
        certificates = Certificates(directory)
        self.authority = certificates.authority.certificate
        self.login, self.tls = free_port(), free_port()
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{self.login},SSL://127.0.0.1:{self.tls}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "connection.authentication.timeout.ms": "2000",
            "connections.max.idle.ms": "30000",
            **certificates.server_texts(),
        })  # fmt: skip

    def memory(self) -> int:
        return memory_of(self.broker.pid)

    def log(self) -> str:
        return self.broker.log_path.read_text()


class Floor:
    """The minimal server in place of a broker, as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.authority = Certificates(directory).authority.certificate
        self.login, self.tls = free_port(), free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.floor_server", str(self.login), str(self.tls)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def memory(self) -> int:
        return memory_of(self._process.pid)

    def log(self) -> str:
        return ""

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


def memory_of(pid: int) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged | Floor]:
    directory = tmp_path_factory.mktemp("storm")
    if IS_FLOOR:
        with Floor(directory) as floor:
            yield floor
        return
    besieged = Besieged(directory)
    with besieged.broker:
        with raw_client.connect(besieged.broker.port) as connection:
            connection.sendall(raw_client.frame(3, 1, 1, struct.pack(">ih", 1, 5) + b"topic"))
            raw_client.receive_frame(connection)
        yield besieged


@contextmanager
def siege(besieged: Besieged | Floor, name: str, record: Callable[[str, object], None]) -> Iterator[None]:
    """Check that during the ``with`` block the logged-in client continues, and memory stays within bounds."""
    before = besieged.memory()
    with Insider(besieged.login) as insider:
        insider.wait_for(QUIET_ROUND_TRIPS)
        quiet = len(insider.waits_ms)
        with of_lowest_priority():
            yield
        insider.wait_for(5)
        stormy = len(insider.waits_ms)
    assert besieged.memory() - before < MEMORY_BYTES
    waits = insider.waits_ms
    summary = f"{name}: before it {described(waits[:quiet])}; in it {described(waits[quiet:stormy])}; "
    summary += f"{(besieged.memory() - before) / 1e6:.1f} MB"
    record(name, summary)
    print(summary)


@contextmanager
def of_lowest_priority() -> Iterator[None]:
    """This thread, and those it starts, leave the processor to others: a storm comes from other machines."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        yield
    finally:
        with suppress(PermissionError):  # only root may go back
            os.setpriority(os.PRIO_PROCESS, 0, before)


def described(waits_ms: list[float]) -> str:
    """Describe round trips as numbers to read."""
    ordered = sorted(waits_ms)
    median, late = (ordered[len(ordered) * share // 100] for share in (50, 99))
    return f"{len(ordered)} round trips, median {median:.1f} ms, 99 % {late:.1f} ms"


def stranger(port: int, number: int) -> socket.socket:
    """Connect from one of many addresses, without a login."""
    return socket.create_connection(
        ("127.0.0.1", port), STATE_LIMIT_S, source_address=(f"127.0.1.{number % 200 + 1}", 0)
    )


@pytest.mark.parametrize(
    ("listener", "sent"),
    [
        pytest.param("login", struct.pack(">i", 400_000) + b"half", id="half a frame"),
        *([
            pytest.param("login", b"", id="nothing"),
            pytest.param("login", login_frames(PASSWORD)[:-3], id="half a login"),
            pytest.param("tls", b"", id="no handshake"),  # ten seconds, as the next: their deadline has no key
            pytest.param("tls", HELLO, id="half a handshake"),
        ] if IS_LONG else []),
    ],
)  # fmt: skip
def test_those_that_begin_and_do_not_continue_are_closed(
    besieged: Besieged | Floor, listener: str, sent: bytes, record_property: Callable[[str, object], None]
) -> None:
    with siege(besieged, f"{HALVES} times {sent[:8]!r} at {listener}", record_property), ExitStack() as closing:
        connections = []
        for number in range(HALVES):
            connections.append(closing.enter_context(stranger(getattr(besieged, listener), number)))
            with suppress(ConnectionError):
                connections[-1].sendall(sent)
        assert all(is_ended(connection) for connection in connections)


def is_ended(connection: socket.socket) -> bool:
    """Wait for the end of a connection; what the broker says before it is read."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def test_a_storm_of_handshakes_is_served(
    besieged: Besieged | Floor, record_property: Callable[[str, object], None]
) -> None:
    failures: list[BaseException] = []

    def shake(count: int) -> None:
        context = client_context(besieged.authority)
        spared = suppress(*([OSError] if IS_FLOOR else []))
        try:
            for number in range(count):
                plain = stranger(besieged.tls, number)
                with spared, context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                    wrapped.sendall(raw_client.api_versions())
                    assert wrapped.recv(4)
        except (OSError, AssertionError, ssl.SSLError) as error:
            failures.append(error)

    with siege(besieged, f"{HANDSHAKES} handshakes", record_property):
        threads = [threading.Thread(target=shake, args=(HANDSHAKES // 4,), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_wrong_passwords_at_a_high_rate_keep_no_client_out(
    besieged: Besieged | Floor, record_property: Callable[[str, object], None]
) -> None:
    tried = PASSWORDS_PER_S * SECONDS
    with siege(besieged, f"{tried} wrong passwords", record_property):
        began = time.monotonic()
        open_ones: list[socket.socket] = []
        for number in range(tried):
            time.sleep(max(0.0, began + number / PASSWORDS_PER_S - time.monotonic()))
            connection = stranger(besieged.login, number)
            with suppress(ConnectionError):
                connection.sendall(login_frames("wrong"))
            open_ones.append(connection)
            if len(open_ones) > 800:
                open_ones.pop(0).close()
        assert all(is_refused(connection) for connection in open_ones[-50:])
        for connection in open_ones:
            connection.close()
    assert "wrong" not in besieged.log().replace("wrong user name", "")


def is_refused(connection: socket.socket) -> bool:
    """Return whether the login was answered with an error, or not at all."""
    try:
        raw_client.receive_frame(connection)
        return raw_client.receive_frame(connection)[4:6] == struct.pack(">h", 58)
    except (EOFError, ConnectionError):
        return True
