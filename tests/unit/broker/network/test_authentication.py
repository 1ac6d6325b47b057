"""A connection before it is authenticated: requests that are allowed, deadlines, delays, and which connection is closed
at the limit."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.issuer import first_message, unsecured
from tests.unit.broker.network.test_connection import Fixture
from tests.unit.broker.security.sasl.test_authenticator import GOOD, WRONG, frame_of, handshake, token
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.security import UNSECURED_HANDLER
from tidelog.broker.network.authentication import REAUTHENTICATION_PAUSE_MS, Authentication
from tidelog.broker.network.connection import Connection
from tidelog.broker.network.newcomers import MAX_ADDRESSES, MAX_DELAY_MS, FailedLogins
from tidelog.broker.network.transport import PlainSocket
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.client_address import source_of
from tidelog.broker.security.principal import ANONYMOUS, Principal
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.broker.security.sasl.oauth.server import OAuthBearerServer

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret" user_bob="secret";'
TEXTS = {
    "listeners": "SASL_PLAINTEXT://:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.jaas.config": JAAS,
    "connection.authentication.timeout.ms": "4000",
    "max.unauthenticated.connections": "3",
    "max.unauthenticated.connections.per.ip": "2",
}
METADATA = bytes(frame_of(3, 0, b"\0\0\0\0"))
API_VERSIONS = bytes(frame_of(18, 0))


class Threads:
    """A loop's threads, whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def run_in_executor(self, _executor: object, work: Callable[[], Any]) -> Future[Any]:
        self.waiting.append((Future(), work))
        return self.waiting[-1][0]

    def run(self) -> None:
        """Do what waits."""
        waiting, self.waiting = self.waiting, []
        for future, work in waiting:
            try:
                future.set_result(work())
            except RuntimeError as error:
                future.set_exception(error)


class World:
    """Connections of one SASL listener, with their clients' ends. The broker echoes what reaches it."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.base = Fixture()
        self.threads = Threads()
        config = BrokerConfig({**TEXTS, **texts})
        broker = SimpleNamespace(
            config=config, controller=SimpleNamespace(image=SimpleNamespace(scram={})), metrics=self.base.metrics,
            timers=self.base.loop.timers, loop=self.threads,
        )  # fmt: skip
        self.authentication = Authentication(cast(Any, broker), ["SASL_PLAINTEXT"])
        self.ends: list[socket.socket] = []
        self.connections: list[Connection] = []

    def connect(self, host: str = "10.0.0.9") -> Connection:
        ours, theirs = socket.socketpair()
        context = RequestContext(client_host=host, listener_name="SASL_PLAINTEXT")
        connection = Connection(self.base.shell, PlainSocket(ours), context)
        self.authentication.watch(connection)
        theirs.setblocking(False)
        self.ends.append(theirs)
        self.connections.append(connection)
        return connection

    def ask(self, frame: bytes | memoryview, client: int = -1) -> bytes | None:
        """Return the answer, with its length unless it is an echo: None if there is none yet, b"" if it is a close."""
        end = self.ends[client]
        with contextlib.suppress(BrokenPipeError):
            end.sendall(struct.pack(">i", len(frame)) + frame)
        self.base.loop.turn()
        return self.read(client)

    def read(self, client: int = -1) -> bytes | None:
        try:
            data = self.ends[client].recv(1 << 16)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""
        return data

    def log_in(self, data: bytes = GOOD) -> None:
        self.ask(handshake())
        self.ask(token(data))

    def pass_time(self, ms: float) -> None:
        self.base.loop.time.advance(ms)
        self.base.loop.timers.run_due()
        self.base.loop.turn()

    def count(self, event: str) -> int:
        return self.base.metrics.counter(f"kafka_server_socket_{event}_total").count

    def close(self) -> None:
        self.authentication.close()
        for connection in [*self.connections, self.base.connection]:
            connection.close()
        for end in [*self.ends, self.base.client]:
            end.close()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(getattr(request, "param", {}))
    yield world
    world.close()
    assert not len(world.authentication.newcomers)


def test_before_the_login_only_api_versions_is_served(world: World) -> None:
    connection = world.connect()
    assert world.ask(API_VERSIONS) == API_VERSIONS
    assert world.ask(handshake()) is not None
    assert connection.context.principal == ANONYMOUS
    world.ask(token())
    assert connection.context.principal == Principal("User", "ann")
    assert world.ask(METADATA) == METADATA
    assert world.base.dispatcher.frames == [API_VERSIONS, METADATA]
    assert world.count("successful_authentication") == 1


def test_another_request_closes_the_connection(world: World) -> None:
    connection = world.connect()
    world.ask(METADATA)
    world.pass_time(100)
    assert connection.closed
    assert world.base.dispatcher.frames == []


def test_requests_sent_along_with_the_login_are_answered_in_order(world: World) -> None:
    world.connect()
    frames = [API_VERSIONS, bytes(handshake()), bytes(token()), METADATA]
    world.ends[-1].sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    world.base.loop.turn()
    answers = world.ends[-1].recv(1 << 16)
    assert answers.endswith(METADATA)
    assert world.base.dispatcher.frames == [API_VERSIONS, METADATA]


def test_a_failure_is_answered_late_and_then_closed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    connection = world.connect()
    world.ask(handshake())
    assert world.ask(token(WRONG)) is None
    world.ask(METADATA)
    world.pass_time(99)
    assert world.read() is None
    world.pass_time(1)
    assert b"Invalid username or password" in (world.read() or b"")
    assert connection.closed
    assert world.base.dispatcher.frames == []
    assert world.count("failed_authentication") == 1
    line = next(record for record in caplog.records if record.name == "tidelog.audit")
    entry = json.loads(line.getMessage())
    assert (entry["event"], entry["user"], entry["address"]) == ("login failed", "ann", "10.0.0.9")
    assert "wrong" not in caplog.text


def test_a_name_in_the_audit_log_forges_no_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.connect()
    world.ask(handshake())
    world.ask(token(b'\0ann\n{"event": "login"}' + b"x" * 100 + b"\x1b[2J\0wrong"))
    lines = [record.getMessage() for record in caplog.records if record.name == "tidelog.audit"]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert len(json.loads(lines[0])["user"]) == 64


def test_a_client_that_takes_too_long_is_closed_and_one_that_came_in_is_not(world: World) -> None:
    world.connect()
    world.log_in()
    slow = world.connect()
    world.ask(handshake())
    world.pass_time(4000)
    assert slow.closed
    assert not world.connections[0].closed


def test_a_frame_larger_than_allowed_closes_before_it_is_received(world: World) -> None:
    connection = world.connect()
    world.ends[-1].sendall(struct.pack(">i", 524_289))
    world.base.loop.turn()
    assert connection.closed


def test_after_the_login_frames_may_be_as_large_as_any(world: World) -> None:
    world.connect()
    world.log_in()
    frame = bytes(600_000)
    world.ends[-1].setblocking(False)
    message = memoryview(struct.pack(">i", len(frame)) + frame)
    while message:
        with contextlib.suppress(BlockingIOError):
            message = message[world.ends[-1].send(message) :]
        world.base.loop.turn()
    for _ in range(20):
        world.base.loop.turn()
    assert [len(taken) for taken in world.base.dispatcher.frames] == [600_000]


def test_a_connection_above_the_limit_closes_the_oldest_that_is_not_authenticated(world: World) -> None:
    world.connect("10.0.0.1")
    world.log_in()
    for host in ("10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"):
        world.connect(host)
    assert [connection.closed for connection in world.connections] == [False, True, False, False, False]


def test_a_connection_above_the_limit_of_its_address_closes_the_oldest_of_that_address(world: World) -> None:
    for host in ("10.0.0.2", "10.0.0.3", "10.0.0.3", "10.0.0.3"):
        world.connect(host)
    assert [connection.closed for connection in world.connections] == [False, True, False, False]


def test_a_network_of_ipv6_is_one_address(world: World) -> None:
    """One client has all the addresses of 64 bits: it must not close the connections of others by them."""
    for host in ("10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8::3"):
        world.connect(host)
    assert [connection.closed for connection in world.connections] == [False, True, False, False]


REAUTH = pytest.mark.parametrize("world", [{"connections.max.reauth.ms": "5000"}], indirect=True)


@REAUTH
def test_past_its_lifetime_a_session_ends_with_the_next_request(world: World) -> None:
    connection = world.connect()
    world.log_in()
    world.pass_time(4999)
    assert world.ask(METADATA) == METADATA
    world.pass_time(1)
    world.ask(METADATA)
    assert connection.closed
    assert world.count("expired_connections_killed") == 1


@REAUTH
def test_a_client_that_authenticates_again_continues(world: World) -> None:
    connection = world.connect()
    world.log_in()
    for _ in range(3):
        world.pass_time(4999)
        world.log_in()
        assert world.ask(METADATA) == METADATA
    world.pass_time(6000)
    world.log_in()  # a handshake is what may come late
    assert not connection.closed
    assert world.count("successful_reauthentication") == 4


@REAUTH
def test_a_re_authentication_as_another_user_is_refused(world: World) -> None:
    connection = world.connect()
    world.log_in()
    world.pass_time(2000)
    world.ask(handshake())
    world.ask(token(b"\0bob\0secret"))
    world.pass_time(100)
    assert b"Cannot change principals" in (world.read() or b"")
    assert connection.closed
    assert world.count("failed_reauthentication") == 1


@REAUTH
def test_a_handshake_at_once_after_another_is_the_brokers_to_refuse(world: World) -> None:
    world.connect()
    world.log_in()
    world.pass_time(2000)
    world.log_in()
    world.pass_time(REAUTHENTICATION_PAUSE_MS - 1)
    again = bytes(handshake())
    assert world.ask(again) == again


class ScriptedMechanism:
    """A mechanism that gives the test's reply to every token of ann."""

    claimed = "ann"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def evaluate(self, _token: bytes, /) -> Reply:
        return self._reply


def test_a_session_is_that_of_the_last_authentication(world: World) -> None:
    """A delegation token ends; the user's password, shown before that, does not."""
    connection = world.connect()
    by_token = Reply(b"", "ann", int(time.time() * 1000) + 5000, is_by_token=True)
    mechanisms = world.authentication._listeners["SASL_PLAINTEXT"].mechanisms
    for reply in (by_token, by_token, Reply(b"", "ann")):
        mechanisms["PLAIN"] = partial(ScriptedMechanism, reply)
        world.log_in()
        assert connection.context.token_authenticated == reply.is_by_token
        world.pass_time(REAUTHENTICATION_PAUSE_MS)
    world.pass_time(10_000)
    assert world.ask(METADATA) == METADATA
    assert not connection.closed


TOKENS = pytest.mark.parametrize(
    "world",
    [
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.server.callback.handler.class": UNSECURED_HANDLER,
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        }
    ],
    indirect=True,
)


def send_bearer_token(world: World, **claims: object) -> None:
    """Send a bearer token, without waiting for the thread that looks at it."""
    world.ask(handshake("OAUTHBEARER"))
    assert world.ask(token(first_message(unsecured(**claims)))) is None


@TOKENS
def test_while_a_thread_looks_at_a_token_the_next_frame_waits(world: World) -> None:
    connection = world.connect()
    send_bearer_token(world)
    assert world.ask(METADATA) is None
    assert connection.context.principal == ANONYMOUS
    world.threads.run()
    world.base.loop.turn()
    assert (world.read() or b"").endswith(METADATA)
    assert connection.context.principal == Principal("User", "ann")
    assert world.count("successful_authentication") == 1


@TOKENS
def test_a_session_ends_with_its_bearer_token(world: World) -> None:
    connection = world.connect()
    send_bearer_token(world, exp=time.time() + 30)
    world.threads.run()
    world.pass_time(1)
    world.read()
    assert world.ask(METADATA) == METADATA
    world.pass_time(30_000)
    world.ask(METADATA)
    assert connection.closed
    assert world.count("expired_connections_killed") == 1


@TOKENS
def test_a_refused_bearer_token_fails_after_the_client_has_seen_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connection = world.connect()
    send_bearer_token(world, exp=1)
    world.threads.run()
    assert b"invalid_token" in (world.read() or b"")
    assert world.connections == [connection]
    world.ask(token(b"\x01"))
    world.pass_time(100)
    assert b"invalid_token" in (world.read() or b"")
    assert connection.closed
    line = next(record for record in caplog.records if record.name == "tidelog.audit")
    assert json.loads(line.getMessage())["reason"] == "the token has expired"


@TOKENS
@pytest.mark.parametrize("length", [20_000, 60_000])
def test_a_long_authorization_id_is_cut_in_the_answer_and_in_the_audit_log(
    world: World, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    """60,000 characters do not fit into the answer's error message."""
    caplog.set_level(logging.INFO)
    world.connect()
    world.ask(handshake("OAUTHBEARER"))
    world.ask(token(first_message(unsecured(), f"n,a={'b' * length},")))
    world.threads.run()
    world.pass_time(100)
    answer = world.read() or b""
    assert b"Client requested an authorization id (bbb" in answer
    assert len(answer) < 2_000
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tidelog.audit"]
    assert json.loads(line)["event"] == "login failed"
    assert len(line) < 1_000


@TOKENS
def test_a_client_that_leaves_at_a_refusal_has_failed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.connect()
    send_bearer_token(world, exp=1)
    world.threads.run()
    world.ends[-1].close()
    world.base.loop.turn()
    assert world.count("failed_authentication") == 1
    assert "the token has expired" in caplog.text


@TOKENS
def test_another_user_than_the_tokens_is_refused_by_the_thread(world: World) -> None:
    connection = world.connect()
    world.ask(handshake("OAUTHBEARER"))
    world.ask(token(first_message(unsecured(), "n,a=bob,")))
    world.threads.run()
    assert world.read() is None  # the answer waits
    world.pass_time(100)
    assert b"different from the token's principal name" in (world.read() or b"")
    assert connection.closed


@TOKENS
@pytest.mark.parametrize("how", ["time", "client", "fault"])
def test_a_connection_may_end_while_a_thread_looks_at_its_token(world: World, how: str) -> None:
    connection = world.connect()
    send_bearer_token(world)
    if how == "time":
        world.pass_time(4000)
    elif how == "client":
        world.ends[-1].close()
        world.base.loop.turn()
    else:
        world.threads.waiting = [(world.threads.waiting[0][0], throw_fault)]
    world.threads.run()
    world.pass_time(1)
    assert connection.closed
    assert connection.context.principal == ANONYMOUS


@TOKENS
def test_the_token_of_a_client_that_has_left_is_not_evaluated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else clients that connect again and again would fill the thread's queue, beyond all limits of connections."""
    evaluated = []

    def evaluate(*_: object) -> Reply:
        evaluated.append(1)
        return Reply(b"", "ann")

    monkeypatch.setattr(OAuthBearerServer, "_check", evaluate)
    for leaves in (True, False):
        world.connect()
        send_bearer_token(world)
        if leaves:
            world.ends[-1].close()
            world.base.loop.turn()
    world.threads.run()
    assert evaluated == [1]


def throw_fault() -> None:
    raise RuntimeError("a fault of ours")


def test_failures_of_one_address_wait_longer_and_longer() -> None:
    now = [0.0]
    failed = FailedLogins(lambda: 10, lambda: now[0])
    delays = [failed.delay_ms("10.0.0.1", 100) for _ in range(30)]
    assert delays[:10] == [100] * 10
    assert delays[10:13] == [200, 400, 800]
    assert delays[-1] == MAX_DELAY_MS
    assert failed.delay_ms("10.0.0.2", 100) == 100
    now[0] = 10_000
    assert failed.delay_ms("10.0.0.1", 100) == 100


def test_the_number_of_addresses_with_failed_logins_is_limited() -> None:
    failed = FailedLogins(lambda: 10, lambda: 0.0)
    for number in range(MAX_ADDRESSES + 500):
        failed.delay_ms(f"host-{number}", 100)
    assert len(failed) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.1", "10.0.0.1"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"), ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ("not an address", "not an address"),
    ],
)  # fmt: skip
def test_an_address_of_ipv6_counts_by_its_network(host: str, source: str) -> None:
    assert source_of(host) == source


@REAUTH
def test_a_re_authentication_has_the_limit_of_a_login_and_later_frames_have_not(world: World) -> None:
    """A token of 100 MB would keep the loop busy for seconds; Kafka has this limit, too."""
    connection = world.connect()
    world.log_in()
    world.pass_time(2000)
    world.log_in()
    assert connection.max_frame_bytes == world.base.shell.limits.max_frame_bytes
    world.pass_time(2000)
    world.ask(handshake())
    world.ends[-1].sendall(struct.pack(">i", 524_289))
    world.base.loop.turn()
    assert connection.closed
