"""Limits of a page: rows by name and by number, and parts of a page whose request is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.connection import ClientError
from tidelog.console.view import MAX_ROW_CHARACTERS, MAX_ROWS, Part, ask_for, list_after, parse_number, slice_from


@settings(max_examples=25)
@given(
    st.sets(st.text(max_size=40) | st.sampled_from("abc").map(lambda one: one * 3000), max_size=9), st.integers(1, 250)
)
def test_pages_by_name_give_each_row_once_within_their_bounds(names: set[str], more: int) -> None:
    rows = sorted(names | {f"topic-{number:04}" for number in range(more)})
    seen: list[str] = []
    after = ""
    while True:
        listing = list_after(rows, str, after)
        assert len(listing.rows) <= MAX_ROWS
        assert len(listing.rows) == 1 or sum(map(len, listing.rows)) <= MAX_ROW_CHARACTERS
        seen += listing.rows
        if listing.next is None:
            break
        after = listing.next
    assert seen == rows


def test_only_the_rows_of_a_page_are_looked_at() -> None:
    rows = iter(f"{number:05}" for number in range(10_000))
    list_after(rows, str, "")
    assert next(rows) == f"{MAX_ROWS + 1:05}"


def test_a_page_begins_at_its_number() -> None:
    rows = list(range(MAX_ROWS + 5))
    assert slice_from(rows, 0) == (rows[:MAX_ROWS], MAX_ROWS)
    assert slice_from(rows, MAX_ROWS) == (rows[MAX_ROWS:], None)


@pytest.mark.parametrize("text", ["-1", "x", "", "1" * 30, "١"])
def test_a_parameter_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="offset"):
        parse_number("offset", text)


def test_a_refused_part_says_why() -> None:
    def refuse() -> int:
        raise ClientError("not here")

    assert ask_for(refuse) == Part(None, "not here")
    assert ask_for(lambda: 1) == Part(1, None)
