"""Threads that give way: their own priority falls, those they start have it too, no other's changes."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.log.system.thread_priority import NICENESS, give_way

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_calling_thread_and_those_it_starts_give_way() -> None:
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
