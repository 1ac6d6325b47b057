"""Parameters of the admin interface's URLs."""

from __future__ import annotations

import pytest

from tidelog.broker.admin.parameters import parse_switch, read_parameters


def test_parameters_are_returned_by_name() -> None:
    assert read_parameters([("key", "a"), ("max", "")], {"key", "max", "tag"}) == {"key": "a", "max": ""}


@pytest.mark.parametrize(
    ("query", "known", "message"),
    [
        ([("kye", "a")], ["key", "max"], "unknown parameter 'kye'; known are: key, max"),
        ([("key", "a")], [], "unknown parameter 'key'; known are: none"),
        ([("key", "a"), ("key", "a")], ["key"], "parameter key is given twice"),
    ],
)
def test_errors_name_the_parameter(query: list[tuple[str, str]], known: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_parameters(query, known)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("false", False)])
def test_a_switch_is_read_as_a_boolean(text: str, value: bool) -> None:
    assert parse_switch({"wait": text}, "wait", default=not value) is value


def test_a_switch_that_is_not_given_has_its_default() -> None:
    assert parse_switch({}, "wait") is False
    assert parse_switch({}, "wait", default=True) is True


@pytest.mark.parametrize("text", ["", "yes", "TRUE", "2"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"wait is .*: expected true or false"):
        parse_switch({"wait": text}, "wait")
