from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.coordinator.share_state.spans import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    RecordState,
    Span,
    clip_between,
    find_touching,
    join_terminal,
    merge,
    overlay,
)

SPANS = [Span(0, 4, AVAILABLE, 0), Span(5, 5, ACQUIRED, 1, "m", 9.0), Span(10, 19, ARCHIVED, 2)]


def by_offset(spans: list[Span]) -> dict[int, tuple[RecordState, int]]:
    """Return the state of each offset: a list of spans written out."""
    return {offset: (span.state, span.delivery_count) for span in spans for offset in range(span.first, span.last + 1)}


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span]:
    spans, offset = [], 0
    for gap, size in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=6)):
        offset += gap
        state, count = draw(st.sampled_from(list(RecordState))), draw(st.integers(0, 2))
        spans.append(Span(offset, offset + size - 1, state, count))
        offset += size
    return spans


def test_the_first_touching_span_ends_at_or_after_the_offset() -> None:
    assert [find_touching(SPANS, offset) for offset in (0, 4, 5, 6, 19, 20)] == [0, 0, 1, 2, 2, 3]


def test_parts_are_cut_at_the_bounds_and_holes_are_left_out() -> None:
    assert [(part.first, part.last) for part in clip_between(SPANS, 3, 12)] == [(3, 4), (5, 5), (10, 12)]
    assert list(clip_between(SPANS, 6, 9)) == []
    assert list(clip_between(SPANS, 4, 3)) == []


@given(span_lists(), span_lists())
def test_changes_replace_the_spans_below_them(spans: list[Span], changes: list[Span]) -> None:
    result = overlay(spans, changes)
    assert by_offset(result) == {**by_offset(spans), **by_offset(changes)}
    assert all(before.last < after.first for before, after in pairwise(result))
    assert all(span.first <= span.last for span in result)


@given(span_lists(), st.lists(span_lists(), max_size=3), st.randoms())
def test_the_state_delivered_more_often_counts_whatever_the_order_of_changes(
    spans: list[Span], lists: list[list[Span]], random: Random
) -> None:
    """Changes of one request may overlap, as in Kafka's combiner of batches."""
    changes = [span for each in lists for span in each]
    random.shuffle(changes)
    result = merge(spans, changes)
    expected = by_offset(spans)
    for change in changes:
        for offset, found in by_offset([change]).items():
            expected[offset] = max(expected.get(offset, found), found, key=lambda one: (one[1], one[0]))
    assert by_offset(result) == expected
    assert all(before.last < after.first for before, after in pairwise(result))


def test_repeated_changes_make_a_list_no_longer() -> None:
    """A state grew to the product of its length and of theirs: to 90,000 spans by 300 changes of 300 offsets."""
    spans = [Span(0, 9, AVAILABLE, 1)]
    for _ in range(3):
        spans = merge(spans, [Span(0, 9, AVAILABLE, 1)] * 300)
    assert spans == [Span(0, 9, AVAILABLE, 1)]
    assert merge([], [Span(5, 4, AVAILABLE, 1)]) == []


@given(span_lists())
def test_joining_changes_no_offset(spans: list[Span]) -> None:
    assert by_offset(join_terminal(spans)) == by_offset(spans)


def test_only_terminal_neighbours_are_joined() -> None:
    terminal = [Span(0, 1, ACKNOWLEDGED, 1), Span(2, 3, ACKNOWLEDGED, 1), Span(4, 4, ARCHIVED, 1)]
    assert join_terminal(terminal) == [Span(0, 3, ACKNOWLEDGED, 1), Span(4, 4, ARCHIVED, 1)]
    available = [Span(0, 1, AVAILABLE, 1), Span(2, 3, AVAILABLE, 1)]
    assert join_terminal(available) == available


def test_a_settled_span_has_no_member() -> None:
    settled = SPANS[1].settle(AVAILABLE)
    assert settled == Span(5, 5, AVAILABLE, 1)
    assert (settled.size, SPANS[2].size) == (1, 10)
    assert (settled.is_terminal, SPANS[2].is_terminal) == (False, True)
