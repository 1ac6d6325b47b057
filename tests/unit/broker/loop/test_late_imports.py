"""Modules imported in a thread: imported once, all requests that need one wait for it, and a failed import is tried
again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.late_imports import LateImports
from tidelog.protocol.errors import UnknownServerError

NAME = "imported_late_by_a_test"


class Thread:
    """A thread whose work waits until the test runs it."""

    def __init__(self) -> None:
        self.work: list[tuple[Any, Deferred[None]]] = []

    def __call__(self, work: Any) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        self.work.append((work, deferred))
        return deferred

    def run(self) -> None:
        work, deferred = self.work.pop(0)
        try:
            deferred.complete(work())
        except UnknownServerError as error:
            deferred.fail(error)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_all_callers_wait_for_the_same_import(module: Path) -> None:
    module.write_text("")
    thread, called = Thread(), []
    imports = LateImports(thread)
    assert not imports.is_loaded(NAME)
    imports.call_when_loaded(NAME, lambda: called.append(1))
    waiting = imports.wait_until_loaded(NAME)
    assert next(waiting) is imports.load(NAME)
    assert len(thread.work) == 1
    thread.run()
    assert imports.is_loaded(NAME)
    assert called == [1]
    assert list(waiting) == []
    imports.call_when_loaded(NAME, lambda: called.append(2))
    assert called == [1, 2]
    assert list(imports.wait_until_loaded(NAME)) == []


def test_a_module_whose_import_has_begun_is_not_loaded(module: Path) -> None:
    module.write_text("")
    thread = Thread()
    imports = LateImports(thread)
    imports.load(NAME)
    sys.modules[NAME] = sys  # as the import machinery does before the module's code has run
    assert not imports.is_loaded(NAME)
    thread.run()
    assert imports.is_loaded(NAME)


def test_a_module_that_another_one_imports_in_a_thread_is_not_loaded(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import machinery lists it before its code has run: the loop would wait for the thread's import lock."""
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "import_events", (begun, may_end), raising=False)
    module.write_text("import sys\nsys.import_events[0].set()\nassert sys.import_events[1].wait(60)\n")
    module.with_name(f"{NAME}_user.py").write_text(f"import {NAME}\n")
    imports = LateImports(Thread())
    importing = threading.Thread(target=import_module, args=[f"{NAME}_user"], daemon=True)
    importing.start()
    try:
        assert begun.wait(60)
        assert NAME in sys.modules
        assert not imports.is_loaded(NAME)
        assert not imports.is_loaded(f"{NAME}_user")
    finally:
        may_end.set()
        importing.join()
        sys.modules.pop(f"{NAME}_user", None)
    assert imports.is_loaded(NAME)


def test_a_failed_import_is_an_error_and_is_repeated(module: Path, caplog: pytest.LogCaptureFixture) -> None:
    module.write_text("raise OSError(24, 'Too many open files')")
    thread, called = Thread(), []
    imports = LateImports(thread)
    waiting = imports.wait_until_loaded(NAME)
    next(waiting)
    imports.call_when_loaded(NAME, lambda: called.append(1))
    thread.run()
    with pytest.raises(UnknownServerError):
        next(waiting)
    assert not called
    assert "Too many open files" in caplog.text
    module.write_text("ANSWER = 42")
    imports.call_when_loaded(NAME, lambda: called.append(sys.modules[NAME].ANSWER))
    thread.run()
    assert called == [42]
