"""Bytes as text for people: formats, and limits in bytes of HTML."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from tidelog.console.values import (
    AUTO,
    FORMATS,
    HEX,
    JSON,
    TEXT,
    check_format,
    clip,
    dump,
    show,
    show_decoded,
)


@pytest.mark.parametrize(
    ("content", "wanted", "form", "text"),
    [
        (b"paid", AUTO, TEXT, "paid"),
        (b'{"a":1}', AUTO, JSON, '{\n  "a": 1\n}'),
        (b'{"a":', AUTO, TEXT, '{"a":'),
        (b"42", AUTO, TEXT, "42"),
        (b"42", JSON, JSON, "42"),
        (b"paid", JSON, TEXT, "paid"),
        ("grün".encode(), AUTO, TEXT, "grün"),
        (b"\xff\x00a", TEXT, TEXT, "\ufffd\0a"),
        (b"\xff\x00a", AUTO, HEX, "00000000  ff 00 61".ljust(59) + "..a"),
        (b"a", HEX, HEX, "00000000  61".ljust(59) + "a"),
        (b"", AUTO, TEXT, ""),
    ],
)
def test_bytes_have_the_form_that_was_asked_for_or_fits(content: bytes, wanted: str, form: str, text: str) -> None:
    shown = show(content, wanted, 10_000)
    assert (shown.format, shown.text, shown.size, shown.is_cut) == (form, text, len(content), False)


def test_null_is_no_text() -> None:
    assert show(None, AUTO, 10).text is None


def test_rows_have_json_in_one_line() -> None:
    assert show(b'{"a":\n[1,2]}', AUTO, 100, indent=None).text == '{"a": [1, 2]}'


@given(
    st.binary(max_size=300) | st.text(max_size=200).map(str.encode) | st.just(b'"<&>' * 500) | st.just(b"[" * 70_000),
    st.sampled_from(FORMATS),
    st.integers(0, 200),
)
def test_shown_text_keeps_its_limit_as_html_and_says_when_it_is_cut(content: bytes, wanted: str, limit: int) -> None:
    shown = show(content, wanted, limit)
    assert shown.text is not None
    assert len(str(escape(shown.text)).encode("utf-8", "replace")) <= limit
    whole = show(content, wanted, 10_000_000)
    assert shown.is_cut or shown.text == whole.text


def test_a_text_is_cut_at_its_limit() -> None:
    assert clip("<<<", 8) == "<<"
    assert clip("äöü", 4) == "äö"
    assert clip("abc", 3) == "abc"


def test_a_dump_has_a_line_for_16_bytes() -> None:
    assert dump(bytes(range(32, 64))).splitlines()[1].startswith("00000010  30 31")


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match="expected auto, text, json, hex"):
        check_format("xml")


@pytest.mark.parametrize("indent", [None, 2])
def test_of_a_decoded_value_no_more_is_written_than_is_shown(indent: int | None) -> None:
    read: list[int] = []

    class Rows(list[dict[str, int]]):
        """A million rows; each that is written is counted."""

        def __iter__(self) -> Iterator[dict[str, int]]:
            for number in range(1_000_000):
                read.append(number)
                yield {"a" * 10: number}

    shown = show_decoded(Rows([{}]), "avro", 5, 500, indent=indent)
    assert shown.is_cut
    assert len(read) < 100


@pytest.mark.parametrize("indent", [None, 2])
def test_a_value_that_is_nested_too_deep_is_shown_in_part(indent: int | None) -> None:
    value: object = 1
    for _ in range(20_000):
        value = [value]
    shown = show_decoded(value, "json", 5, 64_000, indent=indent)
    assert shown.is_cut
    assert (shown.text or "").startswith("[")


def test_a_decoded_value_is_shown_whole() -> None:
    assert show_decoded({"a": "ä"}, "avro", 3, 100, indent=None) == ('{"a": "ä"}', "avro", 3, False)
