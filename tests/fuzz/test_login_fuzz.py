"""Mutated logins, handshakes, certificates and JAAS texts (fault F16 of docs/internals/faults.md): no unexpected error,
no login without the right password, no leak.

What is changed are exchanges that would be let in: bytes flipped, cut out, repeated, put in, taken from another one.
``TIDELOG_LOGIN_CASES`` says how many of each kind; ``make fuzz-deep`` tries a million.
"""

from __future__ import annotations

import gc
import hashlib
import hmac
import json
import os
import random
import socket
import ssl
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.certificates import Certificates
from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from tidelog.broker.controller.clients.scram_credentials import ScramMechanism, derive
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.broker.security.sasl.authenticator import SaslAuthenticator, State
from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.jaas import parse_jaas
from tidelog.broker.security.sasl.mechanism import Mechanism
from tidelog.broker.security.sasl.oauth.server import OAuthBearerServer
from tidelog.broker.security.sasl.oauth.signed_tokens import SignedRules, SignedTokens, read_keys
from tidelog.broker.security.sasl.plain import PlainServer, PlainUsers
from tidelog.broker.security.sasl.scram import ScramServer, ScramUsers
from tidelog.broker.security.tls.handshakes import HandshakeError, Step, _Handshake
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.broker.security.tls.principal_rules import NoRuleMatchesError, PrincipalRules
from tidelog.broker.security.tls.subject_names import (
    MalformedCertificateError,
    expiry_of,
    host_names_of,
    subject_of,
)
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest

CASES = int(os.environ.get("TIDELOG_LOGIN_CASES", "4000"))
SEED = 20_261_122
GROWTH_BYTES = 16 * 1024 * 1024
GOOD = b"\0ann\0secret"
SALT, NONCE = b"salt of the user", "nonce"
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="sec\\"ret" user_bob=plain;',
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="x" tokenauth="true";',
)


def mutate(data: bytes, choose: random.Random) -> bytes:
    """Change the bytes in one to four places."""
    found = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        start = choose.randrange(len(found) + 1)
        end = min(len(found), start + choose.choice((1, 1, 2, 4, 16, 64)))
        kind = choose.randrange(6)
        if kind == 0 and found:
            found[start % len(found)] ^= 1 << choose.randrange(8)
        elif kind == 1:
            found[start:end] = b""
        elif kind == 2:
            found[start:start] = found[start:end] * choose.choice((1, 1, 3, 50))
        elif kind == 3:
            found[start:start] = choose.randbytes(choose.choice((1, 2, 8)))
        elif kind == 4:
            found[start:end] = choose.choice((b"\0", b"\xff", b",", b"=", b"\xc2\x80", b"\x7f\xff\xff\xff", b"\x80"))
        else:
            other = bytes(found)
            del found[choose.randrange(len(found) + 1) :]
            found += other[choose.randrange(len(other) + 1) :]
    return bytes(found)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cases(count: int = CASES) -> Iterator[random.Random]:
    """Yield a generator for each case; memory may not grow while they are tried."""
    choose, settled = random.Random(SEED), 0
    for number in range(count):
        if number == count // 4:
            gc.collect()
            settled = resident_bytes()
        yield choose
    gc.collect()
    assert resident_bytes() - settled < GROWTH_BYTES


CREDENTIALS: dict[ScramMechanism, ScramState] = {
    each: derive(each, 4096, SALT, each.hash_name.encode() * 6) for each in ScramMechanism
}


def scram(mechanism: ScramMechanism) -> ScramServer:
    users = ScramUsers(mechanism, lambda name, which: CREDENTIALS[which] if name == "ann" else None)
    return ScramServer(users, lambda: NONCE)


def scram_final(mechanism: ScramMechanism, answer: bytes) -> bytes:
    """Compute the client's proof, of its salted password."""
    name, salted = mechanism.hash_name, mechanism.hash_name.encode() * 6
    client_key = hmac.digest(salted, b"Client Key", name)
    unproved = f"c=biws,r=c{NONCE}".encode()
    transcript = b"n=ann,r=c," + answer + b"," + unproved
    signature = hmac.digest(hashlib.new(name, client_key).digest(), transcript, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return unproved + b",p=" + b64encode(proof)


MECHANISMS: dict[str, Callable[[], Mechanism]] = {
    "PLAIN": lambda: PlainServer(PlainUsers({"ann": "secret"})),
    "SCRAM-SHA-256": lambda: scram(ScramMechanism.SCRAM_SHA_256),
    "SCRAM-SHA-512": lambda: scram(ScramMechanism.SCRAM_SHA_512),
}


def request(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + (b"\0" if version >= 2 else b"") + body


def test_a_changed_frame_lets_in_no_other_user() -> None:
    """A change beside the token may leave a login right; a wrong one never becomes right."""
    handshake = request(17, 1, SaslHandshakeRequest(mechanism="PLAIN").encode(1))
    frames = {
        version: request(36, version, SaslAuthenticateRequest(auth_bytes=GOOD).encode(version)) for version in range(3)
    }
    wrong = request(36, 2, SaslAuthenticateRequest(auth_bytes=b"\0ann\0SECRET").encode(2))
    let_in = 0
    for choose in cases():
        exchange = SaslAuthenticator(MECHANISMS)
        is_wrong = choose.random() < 0.5
        sent = wrong if is_wrong else choose.choice(list(frames.values()))
        first = mutate(handshake, choose) if choose.random() < 0.5 else handshake
        exchange.receive(memoryview(first))
        if exchange.state in (State.AUTHENTICATE, State.BARE_TOKENS):
            exchange.receive(memoryview(mutate(sent, choose)))
        if exchange.identity is not None:
            assert not is_wrong
            assert exchange.identity.user == "ann"
            let_in += 1
    assert let_in  # most changes are of bytes that matter, some are not


def test_a_changed_token_of_plain_is_refused() -> None:
    for choose in cases():
        token = mutate(GOOD, choose)
        with suppress(InvalidTokenError, AuthenticationFailedError):
            reply = PlainServer(PlainUsers({"ann": "secret"})).evaluate(token)
            assert token in (GOOD, b"ann" + GOOD), token
            assert reply.user == "ann"


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_changed_message_of_scram_is_refused(mechanism: ScramMechanism) -> None:
    first, answer = b"n,,n=ann,r=c", scram(mechanism).evaluate(b"n,,n=ann,r=c").token
    final = scram_final(mechanism, answer)
    assert scram(mechanism).evaluate(first)
    for choose in cases():
        server = scram(mechanism)
        is_first = choose.random() < 0.5
        sent = (mutate(first, choose), final) if is_first else (first, mutate(final, choose))
        with suppress(InvalidTokenError, AuthenticationFailedError):
            server.evaluate(sent[0])
            reply = server.evaluate(sent[1])
            assert reply.user == "ann"
            assert sent[0] == first
            assert proof_of(sent[1]) == proof_of(final)  # the same proof, written otherwise


def proof_of(final: bytes) -> bytes:
    return b64decode(final.partition(b",p=")[2])


@pytest.mark.parametrize("kind", ["es256", "rsa"])
def test_a_changed_bearer_token_is_refused(kind: str) -> None:
    issuer = Issuer()
    rules = SignedRules([AUDIENCE], ISSUER, 30, "sub", "scope")
    issuer.key(kind)
    keys = read_keys(json.loads(issuer.document()))
    good = issuer.token(kind)
    message = f"n,,\1auth=Bearer {good}\1\1".encode()
    tokens = SignedTokens(rules, lambda: keys, lambda: None)
    assert OAuthBearerServer(tokens.validate).evaluate(message)().user == "ann"
    for choose in cases(CASES // 2):
        sent = mutate(message, choose)
        with suppress(InvalidTokenError, AuthenticationFailedError):
            user = OAuthBearerServer(tokens.validate).evaluate(sent)().user
            assert user is None or good.rpartition(".")[0].encode() in sent  # what is signed is as it was


def test_a_changed_login_text_is_read_or_refused() -> None:
    for choose in cases():
        text = mutate(choose.choice(JAAS).encode(), choose).decode(errors="replace")
        with suppress(ConfigError):
            assert parse_jaas(text).name


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_a_changed_certificate_is_read_or_refused(certificates: Certificates) -> None:
    ders = [
        ssl.PEM_cert_to_DER_cert(pair.certificate.read_text()) for pair in (certificates.client, certificates.server)
    ]
    rules = PrincipalRules(["RULE:^CN=(.*?),.*$/$1/L", "RULE:^(.*)$/$1/"])
    for choose in cases():
        der = mutate(choose.choice(ders), choose)
        for read in (lambda der: rules.name_of(subject_of(der)), host_names_of, expiry_of):
            with suppress(MalformedCertificateError, NoRuleMatchesError):
                read(der)


def client_hello(certificates: Certificates) -> bytes:
    context = ssl.create_default_context(cafile=str(certificates.authority.certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_changed_client_hello_ends_or_waits(certificates: Certificates) -> None:
    """The thread's part of a handshake, which ends it with an error of ours or asks for more."""
    hello = client_hello(certificates)
    listener = TlsListener("SSL", certificates.server_texts(ssl_client_auth="requested"))
    timers = SimpleNamespace(schedule=lambda *_: SimpleNamespace(cancel=lambda: None))
    all_of_them = cast(Any, SimpleNamespace(timers=timers))
    for choose in cases(CASES // 8):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            sent = mutate(hello, choose) + (mutate(hello, choose) if choose.random() < 0.2 else b"")
            theirs.sendall(sent[:60_000])
            handshake = _Handshake(all_of_them, ours, listener, "10.0.0.9", cast(Any, None), lambda: None)
            with suppress(HandshakeError):
                assert handshake.step() in (Step.WANTS_BYTES, Step.WANTS_ROOM)
            handshake._sock.close()
