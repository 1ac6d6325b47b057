"""What the kernel knows of a process: processor time, resident memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STAT_UTIME = 11
STAT_STIME = 12
"""Fields of /proc/PID/stat counted from the state, the first after the command's name in brackets: proc(5)."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Processor time in seconds, split as the kernel accounts it."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        """User and system together."""
        return self.user_s + self.system_s

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.user_s - earlier.user_s, self.system_s - earlier.system_s)


def parse_stat(text: str, ticks_per_second: int) -> CpuTime:
    """Processor time of all threads from the text of /proc/PID/stat. A command's name may hold spaces and brackets."""
    fields = text.rpartition(")")[2].split()
    return CpuTime(int(fields[STAT_UTIME]) / ticks_per_second, int(fields[STAT_STIME]) / ticks_per_second)


def parse_rss_bytes(status: str) -> int:
    """Resident memory in bytes from the text of /proc/PID/status.

    Raises ValueError where there is none (a kernel thread, a dead process).
    """
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmRSS line")


def cpu_time(pid: int) -> CpuTime:
    """Processor time of a process so far, all its threads, without its children."""
    return parse_stat(Path(f"/proc/{pid}/stat").read_text(), os.sysconf("SC_CLK_TCK"))


def run_time_s(pid: int) -> float:
    """Processor time of a process's living threads by the scheduler's clock: nanoseconds, where `cpu_time` counts
    hundredths of a second, without the split.
    """
    texts = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(text.split()[0]) for text in texts) / 1e9


def rss_bytes(pid: int) -> int:
    """Resident memory of a process in bytes."""
    return parse_rss_bytes(Path(f"/proc/{pid}/status").read_text())
