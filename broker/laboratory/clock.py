"""The clock of a laboratory (a broker for tests): wall and monotonic clock, and how far they were moved ahead.

It keeps running between two moves, so that long polls of clients end as they always do. Both clocks move together:
records, retention, sessions and transactions see the same time. Any thread.
"""

from __future__ import annotations

from tidelog.log.system.time import SystemTime, Time


class LaboratoryTime:
    """Clocks that run, and go forward by any span when told."""

    __slots__ = ("_base", "ahead_ms")

    def __init__(self, base: Time | None = None) -> None:
        self._base: Time = base or SystemTime()
        self.ahead_ms = 0
        """How far both clocks are ahead of the machine's."""

    def milliseconds(self) -> int:
        return self._base.milliseconds() + self.ahead_ms

    def monotonic_ms(self) -> float:
        return self._base.monotonic_ms() + self.ahead_ms

    def advance(self, milliseconds: int) -> None:
        """Move both clocks forward. Raises ValueError for a negative span: deadlines rest on a clock that never goes
        back."""
        if milliseconds < 0:
            raise ValueError(f"{milliseconds} ms: expected a span that is not negative")
        self.ahead_ms += milliseconds
