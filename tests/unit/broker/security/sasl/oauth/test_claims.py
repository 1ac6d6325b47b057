"""Checks of claims that signed and unsecured tokens share."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.broker.security.sasl.oauth.claims import check_times, name_of, scopes_of
from tidelog.broker.security.sasl.oauth.server import TokenRefusedError

NOW = 1000.0
BAD_TIMES: list[Any] = ["1", True, [], {}, -1, float("inf"), float("nan"), 10**400, 1e306, 2**63]


@pytest.mark.parametrize(
    ("claims", "refused"),
    [
        ({"exp": 1001}, None),
        ({"exp": 971}, None),
        ({"exp": 970}, "expired"),
        ({}, "exp is missing"),
        ({"exp": 2000, "iat": 1030}, None),
        ({"exp": 2000, "iat": 1031}, "not valid yet"),
        ({"exp": 2000, "nbf": 1031}, "not valid yet"),
        ({"exp": 980, "iat": 980}, "ends before"),
        *(({"exp": value}, "is not a time") for value in BAD_TIMES),
        *(({"exp": 2000, "nbf": value}, "is not a time") for value in BAD_TIMES),
    ],
)
def test_a_token_is_valid_between_its_times(claims: dict[str, Any], refused: str | None) -> None:
    if refused is None:
        assert check_times(claims, NOW, 30) == claims["exp"]
        return
    with pytest.raises(TokenRefusedError, match=refused):
        check_times(claims, NOW, 30)


@pytest.mark.parametrize("name", [None, "", "  ", 1, ["ann"], "a\nb", "a\x00", "\x7f"])
def test_a_name_is_a_text_in_one_line(name: object) -> None:
    assert name_of({"sub": "ann", "upn": "ann@x"}, "upn") == "ann@x"
    with pytest.raises(TokenRefusedError):
        name_of({"sub": name}, "sub")


def test_scopes_are_a_list_or_a_text() -> None:
    assert scopes_of({"scope": "a  b"}, "scope") == scopes_of({"scope": ["b", "a"]}, "scope") == {"a", "b"}
    assert scopes_of({}, "scope") == frozenset()
    wrong: list[object] = [1, {}, [1], [""], [None]]
    for value in wrong:
        with pytest.raises(TokenRefusedError):
            scopes_of({"scope": value}, "scope")
