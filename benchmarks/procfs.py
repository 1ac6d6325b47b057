"""Figures of a process from /proc: processor time, resident memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

STAT_PPID = 1
STAT_UTIME = 11
STAT_STIME = 12
"""Fields of /proc/PID/stat counted from the state, the first after the command's name in brackets: proc(5)."""
TREE_LOOKS = 10
"""Largest number of attempts to read a tree while none of its processes ends; the last attempt counts anyway."""


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
    """Parse the processor time of all threads from the text of /proc/PID/stat, whatever brackets the command's name
    holds.
    """
    fields = text.rpartition(")")[2].split()
    return CpuTime(int(fields[STAT_UTIME]) / ticks_per_second, int(fields[STAT_STIME]) / ticks_per_second)


def parse_rss_bytes(status: str, field: str = "VmRSS") -> int:
    """Parse resident memory in bytes from the text of /proc/PID/status; with ``field`` VmHWM, its peak.

    Raises ValueError if there is none (a kernel thread, a dead process).
    """
    for line in status.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {field} line")


def cpu_time(pid: int) -> CpuTime:
    """Read the processor time of a process so far, all its threads, without its children."""
    return parse_stat(Path(f"/proc/{pid}/stat").read_text(), os.sysconf("SC_CLK_TCK"))


def run_time_s(pid: int) -> float:
    """Read the processor time of a process so far, all its threads, by the scheduler's clock, which counts nanoseconds.
    `cpu_time` counts hundredths of a second, but splits user and system time.

    Threads that have ended count, too, so the difference of two looks is what was used between them. Raises
    ProcessLookupError if there is no such process. Source: clock_getcpuclockid(3).
    """
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, f"{os.strerror(error)}: process {pid}")
    return time.clock_gettime_ns(clock.value) / 1e9


def rss_bytes(pid: int) -> int:
    """Read the resident memory of a process in bytes."""
    return parse_rss_bytes(Path(f"/proc/{pid}/status").read_text())


def reset_peak_rss() -> None:
    """Set the peak of this process's resident memory to what is resident now. Source: proc(5), clear_refs."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """Read the peak of this process's resident memory since ``reset_peak_rss``, in bytes."""
    return parse_rss_bytes(Path("/proc/self/status").read_text(), "VmHWM")


def parse_tree_stat(text: str, ticks_per_second: int) -> tuple[int, float]:
    """Parse the parent, and the processor time in seconds of a process and of its children that ended and were waited
    for.
    """
    fields = text.rpartition(")")[2].split()
    return int(fields[STAT_PPID]), sum(map(int, fields[STAT_UTIME : STAT_UTIME + 4])) / ticks_per_second


def tree_cpu_s(root: int) -> float:
    """Sum the processor time in seconds of a process and of all that descend from it.

    The time of a process that ends meanwhile may be missing, or be counted twice: as its own and in its parent's. All
    are read again then, up to TREE_LOOKS times.
    """
    for _ in range(TREE_LOOKS):
        before, found = read_tree(root), read_tree(root)
        if before.keys() <= read_tree(root).keys():
            break
    return sum(found.values())


def read_tree(root: int) -> dict[int, float]:
    """Read the processor time in seconds of a process and of each that descends from it, by process id."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            found[int(path.parent.name)] = parse_tree_stat(path.read_text(), ticks)
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, _) in found.items():
        children[parent].append(pid)
    tree, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        tree[pid] = found[pid][1]
        waiting += children[pid]
    return tree


def read_bytes(pid: int) -> int:
    """Read the bytes a process has read by system calls so far, from the page cache or not; mapped files do not
    count.
    """
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["rchar"])
