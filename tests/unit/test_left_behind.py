"""The checks of what tests leave in their process."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.left_behind import (
    check_descriptors,
    main_thread_niceness,
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
    item: Any = SimpleNamespace(path=Path(), config=SimpleNamespace(stash=pytest.Stash()))
    pytest_sessionstart(item)
    first, second = pytest_runtest_teardown(item, item), pytest_runtest_teardown(item, item)
    next(first)
    monkeypatch.setattr("tests.support.left_behind.main_thread_niceness", lambda: 19)
    with pytest.raises(AssertionError, match="19"):
        next(first)
    next(second)
    with pytest.raises(StopIteration):
        next(second)
