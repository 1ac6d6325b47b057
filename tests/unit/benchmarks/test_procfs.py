"""Reading /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks import procfs
from benchmarks.procfs import (
    CpuTime,
    cpu_time,
    parse_rss_bytes,
    parse_stat,
    parse_tree_stat,
    read_bytes,
    rss_bytes,
    run_time_s,
    tree_cpu_s,
)

STAT = "42 (a (b) c) S 1 42 42 0 -1 4194304 9 0 0 0 250 75 3 4 20 0 1 0 100 1 1 1"


def test_stat_is_read_after_the_last_bracket_of_the_name() -> None:
    assert parse_stat(STAT, 100) == CpuTime(2.5, 0.75)


def test_cpu_times_subtract_and_add_up() -> None:
    spent = CpuTime(3.0, 2.0) - CpuTime(1.0, 0.5)
    assert (spent, spent.total_s) == (CpuTime(2.0, 1.5), 3.5)


def test_rss_is_in_bytes() -> None:
    assert parse_rss_bytes("Name:\tx\nVmHWM:\t   9 kB\nVmRSS:\t   12 kB\n") == 12 * 1024


PEAKS = """
import os
from benchmarks.procfs import peak_rss_bytes, reset_peak_rss, rss_bytes
large = bytearray(b"x") * 50_000_000
del large
reset_peak_rss()
before = peak_rss_bytes()
assert before < rss_bytes(os.getpid()) + 25_000_000, before
large = bytearray(b"x") * 50_000_000
assert peak_rss_bytes() > before + 25_000_000, (before, peak_rss_bytes())
"""


def test_the_peak_of_memory_is_that_since_it_was_reset() -> None:
    """In a process of its own: in that of the tests, threads of libraries give memory back at any time."""
    source = Path(procfs.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_status_without_rss_is_an_error() -> None:
    with pytest.raises(ValueError, match="VmRSS"):
        parse_rss_bytes("Name:\tkthreadd\n")


def test_own_process_can_be_read() -> None:
    assert cpu_time(os.getpid()).total_s >= 0
    assert rss_bytes(os.getpid()) > 1_000_000


def test_threads_that_end_between_two_looks_count() -> None:
    spent_s: list[float] = []
    before_s = run_time_s(os.getpid())
    for _ in range(2):
        thread = threading.Thread(target=spin, args=(0.02, spent_s), daemon=True)
        thread.start()
        thread.join()
    assert run_time_s(os.getpid()) - before_s >= sum(spent_s)


def test_the_run_time_never_goes_back_while_threads_end() -> None:
    looks_s = [run_time_s(os.getpid())]
    for _ in range(20):
        threads = [threading.Thread(target=spin, args=(0.001, []), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        looks_s.append(run_time_s(os.getpid()))
        for thread in threads:
            thread.join()
    assert looks_s == sorted(looks_s)


def spin(seconds: float, spent_s: list[float]) -> None:
    """Use the processor for so long in this thread, and note how long it was."""
    while time.thread_time() < seconds:
        pass
    spent_s.append(time.thread_time())


def test_the_run_time_of_another_process_is_that_of_its_threads() -> None:
    with subprocess.Popen([sys.executable, "-I", "-c", "sum(range(3_000_000)); input()"], stdin=subprocess.PIPE) as one:
        while run_time_s(one.pid) < 0.02:
            time.sleep(0.001)
        one.communicate(b"\n")
    with pytest.raises(ProcessLookupError):
        run_time_s(one.pid)


def test_a_process_that_ends_while_its_tree_is_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent was read before it was waited for, and it was gone when its own time was to be read."""
    alive, waited_for = {1: 1.0, 2: 5.0}, {1: 6.0}
    trees = iter([alive, {1: 1.0}, waited_for, waited_for, waited_for, waited_for])
    monkeypatch.setattr(procfs, "read_tree", lambda _: next(trees))
    assert tree_cpu_s(1) == 6.0


def test_the_time_of_children_counts_in_a_tree() -> None:
    assert parse_tree_stat(STAT, 100) == (1, 3.32)


def test_a_tree_has_the_time_of_a_child_that_ended() -> None:
    before = tree_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-I", "-c", "sum(range(3_000_000))"], check=True)
    assert tree_cpu_s(os.getpid()) > before


def test_bytes_read_by_a_process_are_counted() -> None:
    before = read_bytes(os.getpid())
    with open("/dev/zero", "rb", buffering=0) as file:
        file.read(100_000)
    assert read_bytes(os.getpid()) >= before + 100_000
