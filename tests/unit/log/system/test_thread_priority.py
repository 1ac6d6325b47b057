"""Lower priority of background threads: for one thread and those that it starts, and for no other.

The main thread never does: every process that it starts later would begin with the lower priority.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.log.system.thread_priority import NICENESS, give_way

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_calling_thread_and_those_it_starts_get_a_lower_priority() -> None:
    before = niceness()

    def work() -> tuple[int, int]:
        give_way()
        with ThreadPoolExecutor(1) as helper:
            return niceness(), helper.submit(niceness).result()

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result() == (max(before, NICENESS),) * 2
    assert niceness() == before


def test_a_lower_priority_stays() -> None:
    lower = min(19, max(niceness(), NICENESS) + 1)

    def work() -> int:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lower)
        give_way()
        return niceness()

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result() == lower


def test_the_main_thread_keeps_its_priority() -> None:
    script = """if True:
        import os, threading
        from tidelog.log.system.thread_priority import give_way
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        give_way()
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    """
    subprocess.run([sys.executable, "-I", "-c", script], check=True)
