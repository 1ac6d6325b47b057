"""Checks that tests leave the process that runs them unchanged: its priority, descriptors, threads, and other state.

A worker runs a thousand tests, and a change would affect all later tests. Every broker and JVM that tests start
inherits the priority of the worker's main thread. After a test that lowered this priority, all later processes get
less CPU time.
``select``, which clients under test use, does not work with descriptors from 1,024 on. A broker's thread that a test
has not stopped wakes many times a second, and takes the interpreter's lock from all later tests. It may also write into
the test's directory while that is removed.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import suppress

import pytest

from tests.support.faulty_file_system import kill_all

MAX_DESCRIPTORS = 512
"""Limit of open descriptors after a module; Spark, librdkafka and duckdb keep about a hundred open."""
ENDING_S = 1.0
"""Time for threads that have been told to end."""
_OPEN = "/proc/self/fd"
_NICENESS = pytest.StashKey[int]()
_STATE = pytest.StashKey[dict[str, object]]()
"""The state before a test; of the configuration, the state after the last test, empty if that was no unit test."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
_SET_ON_THE_WAY = (b"PYTEST_CURRENT_TEST", b"OPENBLAS_NUM_THREADS")
"""Environment variables that may change: pytest sets the first; a broker sets the second before it imports NumPy."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note the priority that the tests begin with."""
    session.config.stash[_NICENESS] = main_thread_niceness()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the state of the process before a unit test and its fixtures, unless the unit test before it noted it."""
    if item.nodeid.startswith("tests/unit/"):
        item.stash[_STATE] = item.config.stash.get(_STATE, {}) or process_state()
    item.config.stash[_STATE] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Fail a test that lowered the process's priority or changed its state, and a module that left descriptors open."""
    result = yield
    kill_all()
    if nextitem is not None and _STATE in item.stash:  # after the last one the session's fixtures end, begun earlier
        item.config.stash[_STATE] = left = process_state()
        check_state(item.stash[_STATE], left)
    before, now = item.config.stash[_NICENESS], main_thread_niceness()
    item.config.stash[_NICENESS] = now  # it cannot be raised again: one test fails, not all later ones
    assert now == before, f"the main thread's niceness became {now}: processes that are started later inherit it"
    if nextitem is None or nextitem.path != item.path:
        check_descriptors(MAX_DESCRIPTORS)
        check_threads()
    return result


def process_state() -> dict[str, object]:
    """Collect the state of the process that tests may change and must restore."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "working directory": os.getcwd(),
        "umask": mask,
        "environment": environment(),
        "garbage collector": (gc.isenabled(), gc.get_threshold()),
        "signal handlers": {number.name: signal.getsignal(number) for number in _SIGNALS},
        "import path": list(sys.path),
        "log levels": log_levels(),
    }


def environment() -> dict[bytes, bytes]:
    """Return the environment variables that tests may not change.

    Of ``os.environ`` its own dictionary, because a copy of the mapping decodes each variable: 60 microseconds a test.
    """
    variables: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]
    for name in _SET_ON_THE_WAY:
        variables.pop(name, None)
    return variables


def log_levels() -> dict[str, int]:
    """Return the levels of the project's loggers that have one of their own, and the root's."""
    loggers = logging.root.manager.loggerDict.items()
    # The level first: of a thousand loggers hardly one has its own.
    levels = {name: one.level for name, one in loggers if isinstance(one, logging.Logger) and one.level}
    own = {name: level for name, level in levels.items() if name.startswith(("tests", "tidelog"))}
    return {"root": logging.root.level, **own}


def check_state(before: dict[str, object], now: dict[str, object]) -> None:
    """Raise AssertionError, which names each part of the state that is not as it was before."""
    left = [f"{name}: {then} became {found}" for name in before for then, found in changes(before[name], now[name])]
    assert not left, f"a test leaves its process as it found it, but {'; '.join(left)}"


def changes(before: object, now: object) -> list[tuple[object, object]]:
    """Return the old and the new value if they differ; of mappings, only the entries that do."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [name for name in before | now if before.get(name) != now.get(name)]
        before, now = ({name: values[name] for name in names if name in values} for values in (before, now))
    return [(before, now)] if before != now else []


def main_thread_niceness() -> int:
    """Return the niceness of the main thread; 0 on systems other than Linux, where threads have none of their own."""
    return os.getpriority(os.PRIO_PROCESS, threading.main_thread().native_id or 0) if sys.platform == "linux" else 0


def open_descriptors() -> list[str]:
    """Return the numbers of the process's open descriptors, as texts; none on systems other than Linux."""
    return os.listdir(_OPEN) if sys.platform == "linux" else []


def own_threads() -> list[threading.Thread]:
    """Return the running threads whose function is one of the package's."""
    targets = ((thread, getattr(thread, "_target", None)) for thread in threading.enumerate())
    return [thread for thread, target in targets if getattr(target, "__module__", "").startswith("tidelog.")]


def check_threads() -> None:
    """Raise AssertionError if a thread that the package has started does not end by itself within a second."""
    deadline = time.monotonic() + ENDING_S
    for thread in own_threads():
        thread.join(max(deadline - time.monotonic(), 0))
    left = Counter(thread.name for thread in own_threads())
    assert not left, f"threads of brokers that a test has not stopped: {dict(left)}"


def check_descriptors(limit: int) -> None:
    """Raise AssertionError if more than ``limit`` descriptors are open; it names the directories of most of them.

    Garbage is collected first, because descriptors of objects in reference cycles stay open until then.
    """
    if len(open_descriptors()) > limit:
        gc.collect()
    names = open_descriptors()
    if len(names) <= limit:
        return
    directories: Counter[str] = Counter()
    for name in names:
        with suppress(OSError):  # the listing's own is closed by now
            directories[os.path.dirname(os.readlink(f"{_OPEN}/{name}"))] += 1
    raise AssertionError(f"{len(names)} descriptors are open, {limit} may be: {directories.most_common(5)}")
