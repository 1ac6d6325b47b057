# cython: wraparound=True, boundscheck=True
"""The clocks of a broker: the wall clock for timestamps, the monotonic clock for deadlines.

Parts of a broker get them passed by their constructors, so that tests can pass :class:`ManualTime`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Time(Protocol):
    """Two clocks. Deadlines use ``monotonic_ms`` only, so a jump of the wall clock moves none of them."""

    def milliseconds(self) -> int:
        """Return the wall-clock time in milliseconds since 1970, as stored in records."""
        ...

    def monotonic_ms(self) -> float:
        """Read a clock that never goes back, in milliseconds from an arbitrary start."""
        ...


class SystemTime:
    """The machine's clocks."""

    __slots__ = ()

    def milliseconds(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0


class ManualTime:
    """Clocks that only ``advance`` and ``jump_wall`` move, for tests and simulations."""

    __slots__ = ("_monotonic_ms", "_wall_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0.0

    def milliseconds(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, milliseconds: float) -> None:
        """Move both clocks forward."""
        self._wall_ms += int(milliseconds)
        self._monotonic_ms += milliseconds

    def jump_wall(self, milliseconds: int) -> None:
        """Move only the wall clock, as an operator or NTP does (docs/internals/faults.md, F11)."""
        self._wall_ms += milliseconds
