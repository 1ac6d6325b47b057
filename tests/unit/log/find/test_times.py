"""Times as people write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from tidelog.log.find.times import parse_time


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21+01:00",
        "2026-11-21-05:00",
        "2026-11-21_09:00",
        "2026-11-21t09:00",
        "20261121+0100",
        "2026-W47+01:00",
        "2026-W47-05:00",
        "2026-11-21T+01:00",
        "2026-11-21T",
        "2026-11-21T09:00T",
        "20261",
        "1",
        "-1",
        "٠",
        "١" * 12,
    ],
)
def test_a_time_with_another_separator_or_few_digits_is_refused(text: str) -> None:
    """An offset after a date was taken for a local time of that day."""
    with pytest.raises(ValueError, match="of at least 9 digits"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "equal"),
    [
        ("2026-11-21", "2026-11-21T00:00"),
        ("2026-11-21 09:00", "2026-11-21T09:00"),
        ("20261121T0900", "2026-11-21T09:00"),
        ("2026-W47-6", "2026-11-21T00:00"),
        ("20261121", "2026-11-21T00:00"),
        ("2026-11-21 09:00:30.5Z", "2026-11-21T10:00:30.500+01:00"),
    ],
)
def test_a_date_is_followed_by_nothing_or_by_a_time(text: str, equal: str) -> None:
    assert parse_time(text) == round(datetime.fromisoformat(equal).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("000000005", 5), ("0020261121", 20_261_121), ("-000000005", -5), ("1700000000000", 17 * 10**11)],
)
def test_milliseconds_are_zero_or_have_nine_digits(text: str, ms: int) -> None:
    assert parse_time(text) == ms
