"""Parser of times as people write them; it returns ms since 1970.

``1700000000000`` and ``000000005`` are milliseconds since 1970: at least 9 digits, or ``0``. ``2026-11-21`` is local
midnight. ``2026-11-21T09:00`` is local, unless ``Z`` or an offset follows; a blank may be in place of ``T``.
``09:00`` and ``09:00:30`` are times of today. ``15m``, ``2h`` and ``1d`` are times before now.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_AGO = re.compile(r"(\d+)([smhd])")
_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_ON_DATE = re.compile(r"(\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d(-?\d)?)([T ].*)?", re.ASCII)
"""A date with or without a time. ``datetime.fromisoformat`` alone takes any character between the two. It would read
the offset of ``2026-11-21+02:00`` as a time of day."""
_MS = re.compile(r"0|-?\d{9,}", re.ASCII)
"""Milliseconds. A number of fewer digits may be a date: ``20261121``, with eight, is one."""
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_MS = 2**63 - 1
_MS_LENGTH = 10
"""Length of a number that ``write_ms`` fills with zeros: nine digits, and a sign."""


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Parse ``text`` into ms since 1970. Times of today or before now are accepted only with ``now_ms``. Raises
    ValueError.
    """
    try:
        found = _parse(text, now_ms)
        if abs(found) <= _MAX_MS:
            return found
        raise ValueError
    except (ValueError, OverflowError):
        forms = "milliseconds since 1970, of at least 9 digits, or 2026-11-21T09:00"
        if now_ms is not None:
            forms = (
                "milliseconds since 1970, of at least 9 digits, 2026-11-21T09:00, 09:00 of today, or 15m, 2h, 1d ago"
            )
        raise ValueError(f"{text!r} is not a time: expected {forms}") from None


def _parse(text: str, now_ms: int | None) -> int:
    if _MS.fullmatch(text):
        return int(text)
    if now_ms is not None:
        ago = _AGO.fullmatch(text)
        if ago:
            return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
        of_day = _OF_DAY.fullmatch(text)
        if of_day:
            hour, minute, second = (int(part or 0) for part in of_day.groups())
            today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
            # Without the offset of now: on a day on which summer time begins or ends, the hour may have another one.
            return to_ms(today.replace(hour=hour, minute=minute, second=second, microsecond=0, tzinfo=None))
    if not _ON_DATE.fullmatch(text):
        raise ValueError
    return to_ms(datetime.fromisoformat(text))


def write_ms(time_ms: int) -> str:
    """Write milliseconds in a form that ``parse_time`` takes for nothing else."""
    return f"{time_ms:0{_MS_LENGTH}d}"


def to_ms(moment: datetime) -> int:
    """Return milliseconds since 1970; a time without a time zone is local."""
    return round(moment.timestamp() * 1000)
