"""Values of ``share.auto.offset.reset``: earliest, latest, or a duration before now."""

from __future__ import annotations

import re

EARLIEST = "earliest"
LATEST = "latest"
BY_DURATION = "by_duration:"

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)

LONGEST_MS = 2.0**63
"""Durations are shorter than this: times in ms have 64 bits."""
_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def duration_ms(text: str) -> int | None:
    """Parse an ISO 8601 duration of days and smaller units (``P3DT4H5M6.7S``) to milliseconds; None for any other
    text.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    found_ms = sum(float(amount) * _UNIT_MS[unit] for unit, amount in match.groupdict().items() if amount)
    return int(found_ms) if found_ms < LONGEST_MS else None


def is_offset_reset(text: str) -> bool:
    """Return whether ``share.auto.offset.reset`` may be this."""
    if text.startswith(BY_DURATION):
        return duration_ms(text.removeprefix(BY_DURATION)) is not None
    return text in (EARLIEST, LATEST)
