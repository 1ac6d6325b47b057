"""Faults of transaction indices whose entries begin where their transactions do not."""

from __future__ import annotations

import pytest

from tidelog.log.index.transaction_index import ENTRY
from tidelog.log.segment.transaction_check import TransactionIndexCheck

PRODUCER = 7
MARKER = 30


def faults(first: int, *, begins: int | None, marker_before: int | None) -> list[tuple[int, str]]:
    """Check an entry of the transaction that is aborted at MARKER; ``begins`` None: its records were not read."""
    check = TransactionIndexCheck()
    if marker_before is not None:
        check.see_marker(PRODUCER, marker_before, is_abort=False)
    if begins is not None:
        check.see_records(PRODUCER, begins)
    check.see_marker(PRODUCER, MARKER, is_abort=True)
    return check.finish_segment(ENTRY.pack(0, PRODUCER, first, MARKER, MARKER + 1))


@pytest.mark.parametrize(
    ("first", "begins", "marker_before", "expected"),
    [
        (MARKER, None, None, "from offset 0 to 29"),
        (MARKER + 5, None, 10, "from offset 11 to 29"),
        (10, None, 10, "from offset 11 to 29"),
        (-1, None, None, "from offset 0 to 29"),
        (5, None, 29, "which has no records before its marker at 30"),
        (21, 20, None, "from offset 0 to 20"),
        (10, 20, 10, "from offset 11 to 20"),
    ],
)
def test_a_wrong_first_offset_is_reported_with_those_that_are_possible(
    first: int, begins: int | None, marker_before: int | None, expected: str
) -> None:
    """The offset of a transaction that was open where the reading began was shown as None."""
    ((slot, message),) = faults(first, begins=begins, marker_before=marker_before)
    shown = f"(producer {PRODUCER}, {first} to {MARKER}, stable {MARKER + 1})"
    assert (slot, message) == (0, f"does not begin where the transaction does, {expected} {shown}")


@pytest.mark.parametrize(
    ("first", "begins", "marker_before"), [(0, None, None), (29, None, 10), (11, None, 10), (20, 20, 10), (15, 20, 10)]
)
def test_a_possible_first_offset_is_no_fault(first: int, begins: int | None, marker_before: int | None) -> None:
    assert faults(first, begins=begins, marker_before=marker_before) == []
