"""The display of a job's progress: one changing line on a terminal, a line every few seconds elsewhere.

export: 12 of 40 tasks, 1.5 of 5.0 GB, 812.4 MB/s, 30 %, 0:00:04 left
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

LINE_EVERY_S = 5.0
REDRAW_EVERY_S = 0.2
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))

Clock = Callable[[], float]


class Progress:
    """Progress of one job. One thread at a time. ``quiet`` shows nothing."""

    def __init__(
        self, job: str, stream: TextIO | None = None, clock: Clock = time.monotonic, *, quiet: bool = False
    ) -> None:
        self.job = job
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._quiet = quiet
        self._is_terminal = self._stream.isatty()
        self._began = self._shown = clock()
        self._tasks = self._bytes = 0
        self._width = 0

    def begin(self, tasks: int, size: int) -> None:
        """Set the total of tasks and bytes, and start the clock."""
        self._tasks, self._bytes = tasks, size
        self._began = self._shown = self._clock()

    def update(self, tasks_done: int, bytes_done: int) -> None:
        """Show how many tasks and bytes are done, if the last line is old enough."""
        if tasks_done >= self._tasks:
            return  # ``end`` writes the last line
        now = self._clock()
        if now - self._shown >= (REDRAW_EVERY_S if self._is_terminal else LINE_EVERY_S):
            self._shown = now
            self._write(self.line(tasks_done, bytes_done))

    def end(self, *, succeeded: bool = True) -> None:
        """Write the last line. With ``succeeded`` false a task failed, and the previous line stays the last."""
        if succeeded:
            self._write(self.line(self._tasks, self._bytes))
        if self._is_terminal and not self._quiet and self._width:
            self._stream.write("\n")
            self._stream.flush()

    def line(self, tasks_done: int, bytes_done: int) -> str:
        """Build the line for so much work done."""
        seconds = max(self._clock() - self._began, 1e-6)
        unit, name = next((unit, name) for unit, name in _UNITS if self._bytes >= unit or unit == 1)
        return (
            f"{self.job}: {tasks_done} of {self._tasks} tasks, "
            f"{bytes_done / unit:.1f} of {self._bytes / unit:.1f} {name}, {bytes_done / seconds / 1e6:.1f} MB/s"
            f"{self._format_left(bytes_done, seconds)}"
        )

    def _format_left(self, bytes_done: int, seconds: float) -> str:
        """Write per cent and time left; an empty text before the first bytes and after the last."""
        if not 0 < bytes_done < self._bytes:
            return ""
        left = round(seconds * (self._bytes - bytes_done) / bytes_done)
        return f", {100 * bytes_done // self._bytes} %, {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"

    def _write(self, line: str) -> None:
        if self._quiet:
            return
        if self._is_terminal:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
