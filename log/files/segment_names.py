"""Names of a segment's files: the base offset in 20 digits, and a suffix."""

from __future__ import annotations

OFFSET_DIGITS = 20


def base_offset_of(name: str) -> int | None:
    """Return the offset in a file name such as ``00000000000000000042.log``; None for another name.

    ``isdigit`` alone is true for digits such as ``²``, which ``int`` refuses.
    """
    stem = name.partition(".")[0]
    return int(stem) if len(stem) == OFFSET_DIGITS and stem.isascii() and stem.isdigit() else None
