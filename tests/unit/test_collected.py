"""The garbage collector is off while tests are collected, and skips the collected tests afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.support.collected import THRESHOLDS, no_garbage_collection, pytest_collection

TESTS = Path(__file__).resolve().parents[1]


def test_the_collector_is_off_only_during_the_collection() -> None:
    with no_garbage_collection():
        assert not gc.isenabled()
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_is_on_after_an_error() -> None:
    with pytest.raises(KeyError), no_garbage_collection():
        raise KeyError
    assert gc.isenabled()


def test_no_test_unfreezes_them() -> None:
    """``gc`` unfreezes all objects or none: later collections of the process would traverse all collected tests."""
    word = ".".join(["gc", "unfreeze"])
    assert [path for path in TESTS.rglob("*.py") if word in path.read_text()] == []


def test_collected_objects_are_frozen() -> None:
    gc.collect()  # what other tests have dropped would stay
    collection = pytest_collection()
    next(collection)
    assert not gc.isenabled()
    made = [[] for _ in range(10)]  # type: ignore[var-annotated]
    with pytest.raises(StopIteration):
        next(collection)
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(made)
    assert gc.get_threshold() == THRESHOLDS
    assert not any(found is made for found in gc.get_objects())
