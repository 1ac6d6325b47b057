"""PLAIN: right and wrong tokens."""

from __future__ import annotations

import pytest

from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.broker.security.sasl.plain import PlainServer, PlainUsers

USERS = PlainUsers({"ann": "secret", "Jürgen": "pässword"})


@pytest.mark.parametrize(
    ("token", "user"),
    [("\0ann\0secret", "ann"), ("ann\0ann\0secret", "ann"), ("\0Jürgen\0pässword", "Jürgen")],
)
def test_the_right_password_is_accepted(token: str, user: str) -> None:
    assert PlainServer(USERS).evaluate(token.encode()) == Reply(b"", user)


@pytest.mark.parametrize("token", ["\0ann\0Secret", "\0ann\0secret ", "\0bob\0secret", "\0ANN\0secret"])
def test_a_wrong_name_or_password_is_refused(token: str) -> None:
    with pytest.raises(AuthenticationFailedError, match="Invalid username or password"):
        PlainServer(USERS).evaluate(token.encode())


def test_a_client_acts_only_as_the_user_that_logs_in() -> None:
    with pytest.raises(AuthenticationFailedError, match="different from username"):
        PlainServer(USERS).evaluate(b"root\0ann\0secret")


@pytest.mark.parametrize("token", [b"", b"ann", b"\0ann", b"\0ann\0", b"\0\0secret", b"\0ann\0secret\0", b"\0\xff\0x"])
def test_a_token_that_cannot_be_read_is_refused(token: bytes) -> None:
    with pytest.raises(InvalidTokenError):
        PlainServer(USERS).evaluate(token)
