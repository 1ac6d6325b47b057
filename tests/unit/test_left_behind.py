"""The checks of what tests leave in their process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import left_behind
from tests.support.left_behind import (
    check_descriptors,
    check_state,
    check_threads,
    main_thread_niceness,
    process_state,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_sessionstart,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors and niceness are read as Linux shows them")


def test_descriptors_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped objects are given back first, and only if there are too many: that takes long in a large process."""
    collections: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(None))
    gc.disable()  # nor may the collector close what other tests have dropped
    count = len(os.listdir("/proc/self/fd"))
    files = [(tmp_path / str(number)).open("w") for number in range(20)]
    try:
        check_descriptors(count + 30)
        assert not collections
        with pytest.raises(AssertionError, match=str(tmp_path)):
            check_descriptors(count + 10)
        assert collections
    finally:
        gc.enable()
        for file in files:
            file.close()


def test_niceness_is_that_of_the_main_thread() -> None:
    assert main_thread_niceness() == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_test_that_lowered_the_priority_fails_and_the_next_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    item: Any = SimpleNamespace(path=Path(), stash=pytest.Stash(), config=SimpleNamespace(stash=pytest.Stash()))
    pytest_sessionstart(item)
    first, second = pytest_runtest_teardown(item, item), pytest_runtest_teardown(item, item)
    next(first)
    monkeypatch.setattr("tests.support.left_behind.main_thread_niceness", lambda: 19)
    with pytest.raises(AssertionError, match="19"):
        next(first)
    next(second)
    with pytest.raises(StopIteration):
        next(second)


def test_the_last_test_pays_for_no_fixture_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's fixture sets its variables back when the last test ends, which began after it had set them."""
    item: Any = SimpleNamespace(
        path=Path(), nodeid="tests/unit/x", stash=pytest.Stash(), config=SimpleNamespace(stash=pytest.Stash())
    )
    pytest_sessionstart(item)
    pytest_runtest_setup(item)
    last, one = pytest_runtest_teardown(item, None), pytest_runtest_teardown(item, item)
    next(last)
    next(one)
    monkeypatch.setenv("LEFT", "1")
    with pytest.raises(StopIteration):
        next(last)
    with pytest.raises(AssertionError, match="LEFT"):
        next(one)


def run(nodeid: str, config: SimpleNamespace, test: Callable[[], object]) -> None:
    """Run the hooks of a test that is not the last one, and the test between them."""
    item: Any = SimpleNamespace(path=Path(), nodeid=nodeid, stash=pytest.Stash(), config=config)
    pytest_runtest_setup(item)
    test()
    teardown = pytest_runtest_teardown(item, item)
    next(teardown)
    with pytest.raises(StopIteration):
        next(teardown)


def test_a_test_fails_for_its_own_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test begins with the state that was noted after the one before it, unless that was of another family."""
    session: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
    pytest_sessionstart(session)
    run("tests/unit/x", session.config, lambda: None)
    with pytest.raises(AssertionError, match="'1'"):
        run("tests/unit/x", session.config, lambda: monkeypatch.setenv("LEFT", "1"))
    run("tests/unit/x", session.config, lambda: None)
    run("tests/faults/x", session.config, lambda: monkeypatch.setenv("LEFT", "2"))
    run("tests/unit/x", session.config, lambda: None)
    with pytest.raises(AssertionError, match="'3'"):
        run("tests/unit/x", session.config, lambda: monkeypatch.setenv("LEFT", "3"))


def set_umask() -> None:
    os.umask(0o027)


def set_handler() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: os.environ.update(LEFT="1"), "environment: {} became {b'LEFT': b'1'}"),
        (lambda: os.chdir("/"), "working directory: .* became /"),
        (set_umask, "umask: .* became 23"),
        (lambda: gc.set_threshold(50_000), "garbage collector: .* became .*50000"),
        (set_handler, "signal handlers: .* became .*SIG_IGN"),
        (lambda: sys.path.append("/left"), "import path: .* became .*/left"),
        (lambda: logging.getLogger("tests.left").setLevel(7), "log levels: .* became .*'tests.left': 7"),
    ],
)
def test_state_that_is_left_is_named(change: Callable[[], object], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_state()
    check_state(before, process_state())
    mask, thresholds, handler = os.umask(0o022), gc.get_threshold(), signal.getsignal(signal.SIGUSR2)
    os.umask(mask)
    monkeypatch.chdir(os.getcwd())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("LEFT", raising=False)
    try:
        change()
        with pytest.raises(AssertionError, match=named):
            check_state(before, process_state())
    finally:
        os.umask(mask)
        gc.set_threshold(*thresholds)
        signal.signal(signal.SIGUSR2, handler)
        os.environ.pop("LEFT", None)
        logging.getLogger("tests.left").setLevel(logging.NOTSET)


def test_a_thread_of_the_package_that_is_left_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def work() -> None:
        released.wait()

    work.__module__ = "tidelog.broker.made_up"
    monkeypatch.setattr(left_behind, "ENDING_S", 0.0)
    thread = threading.Thread(target=work, name="forgotten", daemon=True)
    thread.start()
    with pytest.raises(AssertionError, match="forgotten"):
        check_threads()
    released.set()
    thread.join()
    check_threads()
