"""Expensive imports while a loop runs: the garbage collector is off, libraries are opened beforehand, and both are
undone afterwards."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidelog.log.records import quiet_import as module
from tidelog.log.records.quiet_import import quiet_import


def test_collections_wait_until_the_last_import_is_over() -> None:
    with quiet_import():
        with quiet_import():
            assert not gc.isenabled()
        assert not gc.isenabled()

    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with quiet_import():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_imported_objects_are_frozen() -> None:
    before = gc.get_freeze_count()
    made = [[] for _ in range(10)]  # type: ignore[var-annotated]
    with quiet_import():
        pass

    assert gc.get_freeze_count() >= before + len(made)


def test_switch_interval_gets_shorter_and_never_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals = [0.005, 0.0001]
    asked: list[float] = []
    monkeypatch.setattr(sys, "getswitchinterval", lambda: intervals.pop(0))
    monkeypatch.setattr(sys, "setswitchinterval", asked.append)
    with quiet_import():
        pass
    with quiet_import():
        pass

    assert asked == [module.SWITCH_INTERVAL_S]


def test_libraries_are_opened_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_library(path: bytes, _: int) -> None:
        opened.append(Path(path.decode()).name)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(dlopen=open_library))
    with quiet_import("numpy"):
        assert [name.partition(".")[0] for name in opened] == ["_multiarray_umath"]


def test_failed_import_gives_the_collector_back() -> None:
    with pytest.raises(ImportError), quiet_import():
        raise ImportError

    assert gc.isenabled()


def test_absent_package_and_static_c_library_are_left_to_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._LIBRARIES, "no_such_package", ("*.so",))
    with quiet_import("no_such_package"):
        pass

    def refuse(_: object) -> ctypes.CDLL:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with quiet_import("numpy"):
        pass
