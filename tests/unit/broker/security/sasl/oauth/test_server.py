"""OAUTHBEARER's messages: the grammar of the first one, the answer to a refused token, and the client's next
message."""

from __future__ import annotations

import random
from time import process_time

import pytest

from tests.support.issuer import first_message
from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.broker.security.sasl.oauth.server import (
    LONGEST_TOKEN,
    BearerToken,
    OAuthBearerServer,
    TokenRefusedError,
    read_first_message,
)


def validate(token: str) -> BearerToken:
    if token == "good":
        return BearerToken("ann", 5000)
    if token == "narrow":
        raise TokenRefusedError("a scope is missing", "insufficient_scope", "[LOGIN]")
    raise TokenRefusedError("the token has expired")


def test_a_good_token_is_the_user_until_it_ends() -> None:
    server = OAuthBearerServer(validate)
    assert server.evaluate(first_message("good"))() == Reply(b"", "ann", 5000)
    assert server.claimed == "ann"


@pytest.mark.parametrize(
    ("token", "answer"),
    [
        ("bad", '{"status":"invalid_token"}'),
        ("narrow", '{"status":"insufficient_scope", "scope":"[LOGIN]"}'),
    ],
)
def test_a_refused_token_is_answered_and_fails_when_the_client_has_seen_why(token: str, answer: str) -> None:
    server = OAuthBearerServer(validate)
    assert server.evaluate(first_message(token))()._replace(refusal=None) == Reply(answer.encode())
    with pytest.raises(AuthenticationFailedError) as refused:
        server.evaluate(b"\x01")
    assert str(refused.value) == answer
    assert refused.value.reason in ("the token has expired", "a scope is missing")


def test_after_a_refusal_no_other_token_is_looked_at() -> None:
    server = OAuthBearerServer(validate)
    server.evaluate(first_message("bad"))()
    with pytest.raises(InvalidTokenError):
        server.evaluate(first_message("good"))


@pytest.mark.parametrize("gs2", ["n,a=ann,", "n,,"])
def test_a_client_may_name_the_user_that_its_token_is_for(gs2: str) -> None:
    assert OAuthBearerServer(validate).evaluate(first_message("good", gs2))().user == "ann"


def test_a_client_may_not_act_as_another() -> None:
    evaluation = OAuthBearerServer(validate).evaluate(first_message("good", "n,a=bob,"))
    with pytest.raises(AuthenticationFailedError, match="different from the token's principal name"):
        evaluation()


@pytest.mark.parametrize(
    ("message", "token"),
    [
        (b"n,,\x01auth=Bearer a.b-c_d\x01\x01", "a.b-c_d"),
        (b"n,,\x01auth=bEARER   x\x01\x01", "x"),
        (b"n,,\x01traceId=12 3\x01auth=Bearer x\x01more=\t~\x01\x01", "x"),
        (b"n,,\x01auth=Bearer " + b"x" * LONGEST_TOKEN + b"\x01\x01", "x" * LONGEST_TOKEN),
        (b"", None),
        (b"n,,\x01\x01", None),
        (b"y,,\x01auth=Bearer x\x01\x01", None),
        (b"p=tls-unique,,\x01auth=Bearer x\x01\x01", None),
        (b"n,,\x01auth=Bearer x\x01", None),
        (b"n,,\x01auth=Bearer x\x01\x01\x01", None),
        (b"n,,\x01auth=Bearer \x01\x01", None),
        (b"n,,\x01auth=Basic x\x01\x01", None),
        (b"n,,\x01auth=Bearer x y\x01\x01", None),
        (b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", None),
        (b"n,,\x01auth=Bearer x\x01trace1=y\x01\x01", None),
        (b"n,,\x01auth=Bearer x\x01trace=\x07\x01\x01", None),
        (b"n,,\x01auth=Bearer \xc3\xa4\x01\x01", None),
        (b"n,a=an=n,\x01auth=Bearer x\x01\x01", None),
        (b"n,,\x01auth=Bearer " + b"x" * (LONGEST_TOKEN + 1) + b"\x01\x01", None),
    ],
)
def test_the_first_message_is_read_strictly(message: bytes, token: str | None) -> None:
    if token is not None:
        assert read_first_message(message)[0] == token
        return
    with pytest.raises(InvalidTokenError):
        read_first_message(message)


def test_randomly_changed_messages_raise_no_other_error() -> None:
    rng, given = random.Random(5), first_message("good", "n,a=ann,", "\x01trace=1")
    for _ in range(3000):
        data = bytearray(given)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice((1, 44, 61, rng.randrange(256)))
        try:
            token, _ = read_first_message(bytes(data))
        except InvalidTokenError:
            continue
        assert token


def test_a_very_long_message_is_refused_unread() -> None:
    """To read one of 512 KiB took 60 ms of the loop."""
    began = process_time()
    with pytest.raises(InvalidTokenError):
        read_first_message(b"n,,\x01auth=Bearer a\x01" + b"a=b\x01" * 130_000 + b"\x01")
    assert process_time() - began < 0.02
