"""Requests that name the same thing more than once."""

from __future__ import annotations

import pytest

from tidelog.broker.handlers.repeated_names import RepeatedNames
from tidelog.protocol.errors import InvalidRequestError


def test_a_repeated_name_has_one_error_for_all_its_places() -> None:
    names = RepeatedNames(["a", "b", "a", "a"])
    assert not names.is_answered("a")
    with pytest.raises(InvalidRequestError, match="Duplicate topic name"):
        names.check("a")
    assert names.is_answered("a")


def test_a_name_that_is_not_repeated_is_accepted() -> None:
    names = RepeatedNames(["a", "b", "a"])
    names.check("b")
    assert not names.is_answered("b")
