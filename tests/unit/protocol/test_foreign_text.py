from __future__ import annotations

from typing import Any

import pytest

from tidelog.protocol.foreign_text import compile_pattern, decode_json, show_json


@pytest.mark.parametrize("text", ['{"a": [1, true, null]}', b'{"a": [1, true, null]}'])
def test_json_is_decoded_from_text_and_bytes(text: str | bytes) -> None:
    assert decode_json(text) == {"a": [1, True, None]}


@pytest.mark.parametrize("deep", ["[" * 60_000, '{"a":' * 60_000, "[" * 60_000 + "]" * 60_000], ids=range(3))
def test_json_that_is_nested_too_deeply_is_malformed(deep: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_json(deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_json(deep.encode())


@pytest.mark.parametrize("text", ["", "{", b"\xff", "1 2", "9" * 10_000])
def test_a_text_that_is_not_json_is_malformed(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_json(text)


def test_the_beginning_of_a_value_is_shown() -> None:
    assert show_json({"a": [1, 2]}, 6) == '{"a": '


def test_a_value_that_is_nested_too_deeply_to_be_written_is_named() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    assert show_json(value, 100) == "a deeply nested value"


def test_a_regular_expression_is_compiled() -> None:
    assert compile_pattern("a+b").fullmatch("aab")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(" * 5000 + ")" * 5000, "nested too deeply"),
        ("a{99999999999999999999}", "repetition number is too large"),
        ("a(", "unterminated subpattern"),
    ],
    ids=range(3),
)
def test_a_malformed_regular_expression_is_malformed_whatever_its_fault(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_pattern(text)
