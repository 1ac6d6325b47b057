"""SCRAM: the vectors of its RFCs, and all errors that a client can make."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.controller.clients.scram_credentials import MIN_ITERATIONS, ScramCredentials, ScramMechanism, derive
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.broker.security.sasl import scram
from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.listener import SaslListener
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.broker.security.sasl.scram import SCRAM_MECHANISMS, ScramServer, ScramUsers

PASSWORD = "pencil"


def credential(mechanism: ScramMechanism, salt: bytes, password: str = PASSWORD) -> ScramState:
    return derive(mechanism, 4096, salt, hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, 4096))


SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
USERS = {(name, mechanism): credential(mechanism, SALT) for name in ("user", "a,b=c") for mechanism in ScramMechanism}


def server(mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256, nonce: str | None = None) -> ScramServer:
    users = ScramUsers(mechanism, lambda name, which: USERS.get((name, which)))
    return ScramServer(users, None if nonce is None else lambda: nonce)


def test_the_exchange_of_rfc_7677_succeeds() -> None:
    ours = server(nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = ours.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.token == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert first.user is None
    final = ours.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == Reply(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


class Client:
    """A client of RFC 5802, written apart from the server; each of its words may be changed on the way."""

    def __init__(
        self, mechanism: ScramMechanism, name: str = "user", password: str = PASSWORD, gs2: str = "n,,"
    ) -> None:
        self.hash_name, self.password, self.gs2 = mechanism.hash_name, password, gs2
        self.bare = f"n={name},r={secrets.token_hex(8)}"

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(
        self, answer: bytes, change: Callable[[str], str] = lambda text: text, binding: str | None = None
    ) -> bytes:
        match = re.fullmatch(r"r=(.*),s=(.*),i=(\d+)", answer.decode())
        assert match is not None
        nonce, salt, iterations = match[1], base64.b64decode(match[2]), int(match[3])
        salted = hashlib.pbkdf2_hmac(self.hash_name, self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.hash_name)
        unproved = f"c={binding or base64.b64encode(self.gs2.encode()).decode()},r={change(nonce)}"
        transcript = f"{self.bare},{answer.decode()},{unproved}".encode()
        signature = hmac.digest(hashlib.new(self.hash_name, client_key).digest(), transcript, self.hash_name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(("name", "user"), [("user", "user"), ("a=2Cb=3Dc", "a,b=c")])
@pytest.mark.parametrize("gs2", ["n,,", "y,,"])
def test_the_right_password_is_accepted(mechanism: ScramMechanism, name: str, user: str, gs2: str) -> None:
    client, ours = Client(mechanism, name, gs2=gs2), server(mechanism)
    assert ours.evaluate(client.final(ours.evaluate(client.first()).token)).user == user


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(
    ("client", "change", "binding"),
    [
        ({"password": "pencils"}, lambda nonce: nonce, None),
        ({"name": "unknown"}, lambda nonce: nonce, None),
        ({}, lambda nonce: nonce[:-1], None),
        ({}, lambda nonce: nonce + "x", None),
        ({}, lambda nonce: nonce[:16], None),  # only the client's own part: CVE-2024-56128
        ({}, lambda nonce: nonce, "eSws"),
        ({}, lambda nonce: nonce, "biw="),
    ],
)
def test_the_error_does_not_say_what_is_wrong_with_the_final_message(
    mechanism: ScramMechanism, client: dict[str, str], change: Callable[[str], str], binding: str | None
) -> None:
    theirs, ours = Client(mechanism, **client), server(mechanism)
    answer = ours.evaluate(theirs.first()).token
    with pytest.raises(InvalidTokenError):
        ours.evaluate(theirs.final(answer, change, binding))


def test_a_proof_is_good_for_one_exchange() -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    client, first, second = Client(mechanism), server(mechanism), server(mechanism)
    final = client.final(first.evaluate(client.first()).token)
    second.evaluate(client.first())
    with pytest.raises(InvalidTokenError):
        second.evaluate(final)


def test_an_unknown_user_has_the_same_salt_each_time() -> None:
    users = ScramUsers(ScramMechanism.SCRAM_SHA_512, lambda *_: None)
    answers = {ScramServer(users, lambda: "x").evaluate(b"n,,n=nobody,r=a").token for _ in range(3)}
    assert len(answers) == 1
    assert ScramServer(users, lambda: "x").evaluate(b"n,,n=other,r=a").token not in answers


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_an_unknown_user_has_the_iterations_of_most_users(mechanism: ScramMechanism) -> None:
    """Of users of the same mechanism: they change with the credentials, and are the least allowed without any."""
    image = SimpleNamespace(scram={})
    stored = ScramCredentials(cast(Any, SimpleNamespace(image=image)))
    key = f"sasl.enabled.mechanisms={next(name for name, one in SCRAM_MECHANISMS.items() if one == mechanism)}"
    listener = SaslListener("OUT", dict([key.split("=")]), stored.get, usual_iterations=stored.usual_iterations)
    (begin,) = listener.mechanisms.values()

    def iterations_of(user: str = "nobody") -> int:
        reply = begin().evaluate(f"n,,n={user},r=a".encode())
        assert isinstance(reply, Reply)
        return int(reply.token.rpartition(b",i=")[2])

    assert iterations_of() == MIN_ITERATIONS
    for counts, usual in [((8192, 8192, 4096), 8192), ((5000, 8192, 5000), 5000)]:
        users = {(f"user-{number}", int(mechanism)): count for number, count in enumerate(counts)}
        others = {(f"other-{number}", 3 - mechanism): 16384 for number in range(9)}
        image.scram = {key: ScramState(b"salt", b"", b"", count) for key, count in (others | users).items()}
        assert iterations_of() == usual
        assert [iterations_of(f"user-{number}") for number in range(3)] == list(counts)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_an_unknown_user_takes_the_work_of_a_known_one(
    mechanism: ScramMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same hashes over as many bytes: time tells no name."""
    work: list[tuple[str, int]] = []

    def digest(key: bytes, message: bytes, name: str) -> bytes:
        work.append((name, len(message)))
        return hmac.digest(key, message, name)

    def new(name: str, data: bytes = b"") -> Any:
        work.append((name, len(data)))
        return hashlib.new(name, data)

    monkeypatch.setattr(scram, "hmac", SimpleNamespace(digest=digest, compare_digest=hmac.compare_digest))
    monkeypatch.setattr(scram, "hashlib", SimpleNamespace(new=new))
    seen = []
    for name in ("user", "nope"):
        theirs, ours = Client(mechanism, name, password="wrong"), server(mechanism, nonce="ours")
        final = theirs.final(ours.evaluate(theirs.first()).token)
        with pytest.raises(InvalidTokenError, match="proof"):
            ours.evaluate(final)
        seen.append(work[:])
        work.clear()
    assert seen[0] == seen[1] != []


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n", b"n,,", b"n,,n=user", b"n,,r=x,n=user", b"n,,n=,r=x", b"n,,n=user,r=", b"p=tls-unique,,n=user,r=x",
        b"n,,m=x,n=user,r=x", b"n,,n=us=er,r=x", b"n,,n=us\x00er,r=x", b"n,,n=user,r=a b", b"n,,n=user,r=\xff",
        b"n,,n=user,r=x,tokenauth=true", b"n,n=user,r=x", b"x,,n=user,r=x", b"n,,n=us\ner,r=x",
    ],
)  # fmt: skip
def test_a_first_message_that_cannot_be_read_is_refused(first: bytes) -> None:
    with pytest.raises(InvalidTokenError):
        server().evaluate(first)


@pytest.mark.parametrize("final", [b"", b"c=biws", b"c=biws,r={},p=!!", b"c=biws,r={},p=", b"c=b,r={},p=AAAA", b"\xff"])
def test_a_final_message_that_cannot_be_read_is_refused(final: bytes) -> None:
    ours = server(nonce="n")
    ours.evaluate(b"n,,n=user,r=x")
    with pytest.raises(InvalidTokenError):
        ours.evaluate(final.replace(b"{}", b"xn"))


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_a_proof_of_another_size_is_refused(size: int) -> None:
    ours = server(nonce="n")
    ours.evaluate(b"n,,n=user,r=x")
    with pytest.raises(InvalidTokenError):
        ours.evaluate(b"c=biws,r=xn,p=" + base64.b64encode(bytes(size) or b"") or b"=")


def test_a_client_acts_only_as_the_user_that_logs_in() -> None:
    client = Client(ScramMechanism.SCRAM_SHA_256, gs2="n,a=user,")
    ours = server()
    assert ours.evaluate(client.final(ours.evaluate(client.first()).token)).user == "user"
    with pytest.raises(AuthenticationFailedError, match="different from username"):
        server().evaluate(b"n,a=root,n=user,r=x")


@pytest.mark.parametrize("filling", [b"a" * 524_000, b"=2C" * 174_000])
def test_a_very_long_message_is_refused_unread(filling: bytes) -> None:
    """To read a stranger's name of 512 KiB took 70 ms of the loop."""
    began = process_time()
    with pytest.raises(InvalidTokenError, match="more than 16384 bytes"):
        server().evaluate(b"n,,n=" + filling + b",r=x")
    assert process_time() - began < 0.02
