"""SASL of the client: SCRAM by the vectors of its RFCs, brokers with a false proof, profiles, logins, sessions that
expire."""

from __future__ import annotations

import base64
import hashlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.broker.controller.clients.scram_credentials import ScramMechanism, derive
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.broker.security.sasl.authenticator import PASS_ON, SaslAuthenticator, encode
from tidelog.broker.security.sasl.client.exchange import Credentials
from tidelog.broker.security.sasl.client.scram import exchange_scram
from tidelog.broker.security.sasl.errors import AuthenticationFailedError
from tidelog.broker.security.sasl.jaas import PLAIN_MODULE, SCRAM_MODULE
from tidelog.broker.security.sasl.mechanism import Mechanism, Reply
from tidelog.broker.security.sasl.oauth.server import BearerToken, OAuthBearerServer, TokenRefusedError
from tidelog.broker.security.sasl.plain import PlainServer, PlainUsers
from tidelog.broker.security.sasl.scram import ScramServer, ScramUsers
from tidelog.client import Client, ClientError, connection
from tidelog.client.cluster import Cluster
from tidelog.client.sasl.credentials import read_credentials
from tidelog.client.security import Security
from tidelog.protocol.errors import (
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from tidelog.protocol.header import decode_request_header
from tidelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeResponse

VECTORS = {
    "RFC 5802": (
        "sha1",
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "RFC 7677": (
        "sha256",
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}
"""Hash, nonce, and the messages after the first, for user "user" and password "pencil"."""
HASH, NONCE, CHALLENGE, _, SIGNATURE = VECTORS["RFC 7677"]


@pytest.mark.parametrize("name", VECTORS)
def test_the_exchanges_of_the_rfcs_succeed(name: str) -> None:
    hash_name, nonce, challenge, proof, signature = VECTORS[name]
    exchange = exchange_scram(hash_name, "user", "pencil", nonce)
    assert next(exchange) == f"n,,n=user,r={nonce}".encode()
    assert exchange.send(challenge.encode()) == proof.encode()
    with pytest.raises(StopIteration):
        exchange.send(signature.encode())


@pytest.mark.parametrize(
    ("final", "message"),
    [
        ("v=" + base64.b64encode(bytes(32)).decode(), "the broker's signature is wrong"),
        (SIGNATURE[:-4], "the broker's signature is wrong"),
        (VECTORS["RFC 5802"][-1], "the broker's signature is wrong"),
        ("v=6rri=RR", "is not base64"),
        ("e=other-error", "^other-error$"),
        ("", "cannot be read"),
        ("n=" + SIGNATURE, "cannot be read"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_refused(final: str, message: str) -> None:
    exchange = exchange_scram(HASH, "user", "pencil", NONCE)
    next(exchange)
    exchange.send(CHALLENGE.encode())
    with pytest.raises(SaslAuthenticationFailedError, match=message):
        exchange.send(final.encode())


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (CHALLENGE.replace(NONCE, "another"), "nonce does not continue"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not continue"),
        (CHALLENGE.replace("4096", "4095"), "asks for 4095 iterations: expected 4096 to 1000000"),
        (CHALLENGE.replace("4096", "1000001"), "asks for 1000001 iterations"),
        (CHALLENGE.replace("4096", "9" * 5000), "cannot be read"),
        (CHALLENGE.replace("4096", "-4096"), "cannot be read"),
        (CHALLENGE.replace("W22Z", "W=2Z"), "is not base64"),
        ("m=unknown," + CHALLENGE, "cannot be read"),
        ("", "cannot be read"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_challenge_that_is_weak_or_unreadable_is_refused(challenge: str, message: str) -> None:
    exchange = exchange_scram(HASH, "user", "pencil", NONCE)
    next(exchange)
    with pytest.raises(SaslAuthenticationFailedError, match=message):
        exchange.send(challenge.encode("utf-8", "surrogateescape"))


def credential(password: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256) -> ScramState:
    salt = hashlib.sha256(password.encode()).digest()
    return derive(mechanism, 4096, salt, hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, 4096))


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_any_name_and_password_agree_with_the_broker(mechanism: ScramMechanism) -> None:
    chance = random.Random(4)
    for _ in range(10):
        user, password = ("".join(chance.choices('a,=3D2C "é漢🌊\u00a0', k=chance.randint(1, 12))) for _ in range(2))
        stored = credential(password, mechanism)
        look_up = {(user, mechanism): stored}
        server = ScramServer(ScramUsers(mechanism, lambda name, which, known=look_up: known.get((name, which))))  # type: ignore[misc]
        exchange = exchange_scram(mechanism.hash_name, user, password, "nonce")
        final = exchange.send(server.evaluate(next(exchange)).token)
        reply = server.evaluate(final)
        assert reply.user == user
        with pytest.raises(StopIteration):
            exchange.send(reply.token)


def scram_profile(jaas: str) -> dict[str, str]:
    return {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}


PAIR = {"sasl.username": "ann", "sasl.password": "s,e=c"}


@pytest.mark.parametrize(
    "properties",
    [
        {"sasl.mechanism": "SCRAM-SHA-512", **PAIR},
        scram_profile(f'{SCRAM_MODULE} required username="ann" password="s,e=c";'),
        scram_profile(f"{SCRAM_MODULE} required\n  password='s,e=c' username=ann tokenauth=false;"),
    ],
)
def test_credentials_are_read_from_either_form(properties: dict[str, str]) -> None:
    read = read_credentials(properties)
    assert read == Credentials("SCRAM-SHA-512", "ann", "s,e=c")
    assert "s,e=c" not in repr(read)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"sasl.mechanism": "GSSAPI", **PAIR},
            "sasl.mechanism=GSSAPI: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
        ),
        (PAIR, "sasl.mechanism is missing"),
        ({"sasl.mechanism": "PLAIN"}, "no user or no password"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "ann"}, "no user or no password"),
        (scram_profile(f"{SCRAM_MODULE} required username=ann;"), "no user or no password"),
        (scram_profile(f"{PLAIN_MODULE} required username=ann password=secret;"), "is for .*PlainLoginModule"),
        (scram_profile(f"{SCRAM_MODULE} username=ann password=secret"), r"\[hidden\]"),
        (scram_profile(f"{SCRAM_MODULE} required username=a password=secret tokenauth=true;"), "delegation token"),
        ({**scram_profile(f"{SCRAM_MODULE} required username=a password=secret;"), **PAIR}, "one way, not both"),
        (
            {**scram_profile(f"{SCRAM_MODULE} required username=a password=secret;"), "sasl.password": "secret"},
            "sasl.jaas.config is given with sasl.username or sasl.password: expected one way, not both",
        ),
        ({"sasl.mechanism": "PLAIN", **PAIR, "sasl.username": "a\0b"}, "a control character or is not UTF-8"),
        ({"sasl.mechanism": "PLAIN", **PAIR, "sasl.password": "secret\0"}, "has a NUL or is not UTF-8"),
        ({"sasl.mechanism": "PLAIN", **PAIR, "sasl.password": "secret\ud800"}, "has a NUL or is not UTF-8"),
    ],
)
def test_wrong_credentials_say_so_and_show_no_password(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ClientError, match=message) as refused:
        Security({"security.protocol": "SASL_PLAINTEXT", **properties})
    assert "secret" not in str(refused.value)


class ImposterServer:
    """SCRAM of a broker that lets all in, without the keys of any password."""

    claimed = ""

    def evaluate(self, token: bytes, /) -> Reply:
        text = token.decode()
        if text.startswith("n,,"):
            nonce = text.rpartition("r=")[2]
            return Reply(f"r={nonce}theirs,s=c2FsdA==,i=4096".encode())
        return Reply(b"v=" + base64.b64encode(bytes(64)), "ann")


def validate(token: str) -> BearerToken:
    if token != "good":
        raise TokenRefusedError("it is not the good one")
    return BearerToken("ann", 2**50)


class VerboseServer:
    """A mechanism that refuses in several lines."""

    claimed = ""

    def evaluate(self, token: bytes, /) -> Reply:
        raise AuthenticationFailedError("no\n\tentry")


USERS = {"ann": "secret"}
SCRAM_USERS = ScramUsers(ScramMechanism.SCRAM_SHA_256, lambda name, _: credential("secret") if name == "ann" else None)
MECHANISMS: dict[str, Callable[[], Mechanism]] = {
    "PLAIN": lambda: PlainServer(PlainUsers(USERS)),
    "SCRAM-SHA-256": lambda: ScramServer(SCRAM_USERS),
    "OAUTHBEARER": lambda: OAuthBearerServer(validate),
}


class Listener:
    """A port where the broker's own exchange answers, then Metadata with the number of the login."""

    def __init__(self) -> None:
        self.mechanisms = dict(MECHANISMS)
        self.lifetime_ms = 0
        self.is_plain = False
        self.logins = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(30)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self) -> None:
        """Accept one connection after the other."""
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            with ours, ours.makefile("rb") as reading:
                ours.settimeout(30)
                self._serve(ours, reading.read)

    def _serve(self, ours: socket.socket, read: Callable[[int], bytes]) -> None:
        exchange = SaslAuthenticator(self.mechanisms, dict.fromkeys(self.mechanisms, self.lifetime_ms))
        while head := read(4):
            request = memoryview(read(struct.unpack(">i", head)[0]))
            if exchange.identity is not None or self.is_plain:
                ours.sendall(self._answer(request))
                continue
            outcome = exchange.receive(request)
            if outcome.work is not None:
                outcome = exchange.conclude(outcome.work)
            answer = self._answer(request) if outcome == PASS_ON else outcome.frame
            if answer is not None:
                ours.sendall(answer)
            if outcome.failure is not None:
                return
            self.logins += exchange.identity is not None

    def _answer(self, request: memoryview) -> bytes:
        header, _ = decode_request_header(request)
        if header.api_key == 18:
            served = {3: (2, 9), 17: (0, 1), 36: (0, 2)}
            keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in served.items()]
            return encode(header, ApiVersionsResponse(api_keys=keys))
        if header.api_key == 17:
            return encode(header, SaslHandshakeResponse(error_code=IllegalSaslStateError.code))
        return encode(header, MetadataResponse(cluster_id=f"login {self.logins}"))


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def security(mechanism: str, password: str = "secret") -> Security:
    properties = {"sasl.mechanism": mechanism, "sasl.username": "ann", "sasl.password": password}
    return Security({"security.protocol": "SASL_PLAINTEXT", **properties})


def cluster_id(client: Client) -> str | None:
    return client.call(MetadataRequest(), MetadataResponse).cluster_id


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "OAUTHBEARER"])
def test_a_connection_begins_with_a_login(listener: Listener, mechanism: str) -> None:
    with Client(listener.address, security=security(mechanism)) as client:
        assert cluster_id(client) == "login 1"


def test_a_bearer_shows_the_token_that_the_file_has_now(listener: Listener, tmp_path: Path) -> None:
    file = tmp_path / "the token"
    properties = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    bearer = Security({"security.protocol": "SASL_PLAINTEXT", **properties})
    with pytest.raises(ClientError, match="gives no token"):
        Client(listener.address, security=bearer)
    file.write_text("stale\n")
    with pytest.raises(SaslAuthenticationFailedError, match="invalid_token") as refused:
        Client(listener.address, security=bearer)
    assert "stale" not in str(refused.value)
    file.write_text("good\n")
    with Client(listener.address, security=bearer) as client:
        assert cluster_id(client) == "login 1"


def test_a_refused_mechanism_names_those_that_the_broker_takes(listener: Listener) -> None:
    with pytest.raises(UnsupportedSaslMechanismError) as refused:
        Client(listener.address, security=security("SCRAM-SHA-512"))
    message = f"{listener.address} does not support sasl.mechanism=SCRAM-SHA-512"
    assert str(refused.value) == f"{message}; it supports PLAIN, SCRAM-SHA-256, OAUTHBEARER"


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("PLAIN", "Authentication failed: Invalid username or password"),
        (
            "SCRAM-SHA-256",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
        ),
    ],
)
def test_a_refused_login_is_reported_in_the_words_of_the_broker(
    listener: Listener, mechanism: str, message: str
) -> None:
    with pytest.raises(SaslAuthenticationFailedError) as refused:
        Client(listener.address, security=security(mechanism, "wrong"))
    assert str(refused.value) == f"{listener.address}, login of ann: {message}"


def test_the_words_of_the_broker_are_one_line(listener: Listener) -> None:
    listener.mechanisms["PLAIN"] = VerboseServer
    with pytest.raises(SaslAuthenticationFailedError, match=r": no entry$"):
        Client(listener.address, security=security("PLAIN"))


def test_a_login_is_not_tried_at_the_next_server_once_it_was_refused(listener: Listener) -> None:
    servers = f"{listener.address},127.0.0.1:1"
    with pytest.raises(SaslAuthenticationFailedError):
        Cluster(servers, 10, security("PLAIN", "wrong"))


def test_a_broker_that_lets_in_without_the_keys_is_left(listener: Listener) -> None:
    listener.mechanisms["SCRAM-SHA-256"] = ImposterServer
    with pytest.raises(SaslAuthenticationFailedError, match="the broker's signature is wrong"):
        Client(listener.address, security=security("SCRAM-SHA-256"))


def test_a_listener_without_logins_says_so(listener: Listener) -> None:
    listener.is_plain = True
    with pytest.raises(IllegalSaslStateError, match=f"^{listener.address} accepts no login: "):
        Client(listener.address, security=security("PLAIN"))


class Clock:
    """Stand-in for the ``time`` of a connection."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connection, "time", clock)
    return clock


def test_a_session_that_is_about_to_end_is_followed_by_another(listener: Listener, clock: Clock) -> None:
    listener.lifetime_ms = 60_000
    with Client(listener.address, security=security("SCRAM-SHA-256")) as client:
        seen = []
        for now in (0, 50.9, 51, 101.9, 102):
            clock.now = now
            seen.append(cluster_id(client))
        assert seen == ["login 1", "login 1", "login 2", "login 2", "login 3"]


def test_a_session_without_an_end_stays(listener: Listener, clock: Clock) -> None:
    with Client(listener.address, security=security("PLAIN")) as client:
        clock.now = 10.0**9
        assert cluster_id(client) == "login 1"


def test_answers_under_way_are_taken_before_a_session_is_left(listener: Listener, clock: Clock) -> None:
    listener.lifetime_ms = 60_000
    with Client(listener.address, security=security("PLAIN")) as client:
        client.post(MetadataRequest(), 9)
        clock.now = 60
        client.post(MetadataRequest(), 9)
        assert [client.answer(MetadataResponse).cluster_id for _ in range(2)] == ["login 1", "login 1"]
        assert cluster_id(client) == "login 2"


def test_a_new_login_that_is_refused_leaves_a_connection_that_is_replaced(listener: Listener, clock: Clock) -> None:
    listener.lifetime_ms = 60_000
    with Client(listener.address, security=security("PLAIN")) as client:
        clock.now = 60
        listener.mechanisms["PLAIN"] = lambda: PlainServer(PlainUsers({}))
        with pytest.raises(SaslAuthenticationFailedError):
            cluster_id(client)
        assert client.is_broken
