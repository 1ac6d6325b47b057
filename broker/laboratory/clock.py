"""The clock of a laboratory (a broker for tests): the machine's wall and monotonic clocks, which a test moves forward.

The clocks run on between two moves, so that clients' long polls time out as usual. Both move together: records,
retention, sessions and transactions see the same time. Any thread.
"""

from __future__ import annotations

from tidelog.log.system.time import SystemTime, Time

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: clients cannot show later times as dates."""


class LaboratoryTime:
    """A wall clock and a monotonic clock that run, and that ``advance`` moves forward."""

    __slots__ = ("_base", "ahead_ms")

    def __init__(self, base: Time | None = None) -> None:
        self._base: Time = base or SystemTime()
        self.ahead_ms = 0
        """Milliseconds by which both clocks are ahead of the machine's. While the broker is stopped, a restore sets the
        number of the snapshot, which may be smaller."""

    def milliseconds(self) -> int:
        return self._base.milliseconds() + self.ahead_ms

    def monotonic_ms(self) -> float:
        return self._base.monotonic_ms() + self.ahead_ms

    def advance(self, milliseconds: int) -> None:
        """Move both clocks forward.

        Raises ValueError for a negative span, because deadlines need a clock that never goes back, and beyond
        LATEST_MS.
        """
        if milliseconds < 0:
            raise ValueError(f"{milliseconds} ms: the clock cannot go back; expected 0 or more")
        if self.milliseconds() + milliseconds > LATEST_MS:
            raise ValueError(f"{milliseconds} ms: the clock cannot pass the year 9999")
        self.ahead_ms += milliseconds
