"""The thread rule: other threads cannot call methods of loop-thread objects, but may call all others."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.loop.thread_rule import WrongThreadError, guard, install, suspended
from tidelog.broker.replica.fetching.fetch_session import FetchSessionCache
from tidelog.log.files.topic_partition import TopicPartition

SOURCE = '''
"""A module of which all is the loop's. Loop thread only."""

from typing import NamedTuple


class Part:
    """A part of the broker, except for nothing."""

    def change(self):
        return "changed"

    @property
    def state(self):
        return "state"

    def snapshot(self):
        """What there is. Any thread."""
        return "snapshot"

    def steps(self):
        yield "step"


class Mixed:
    """Loop thread only, except ``read`` and ``send``."""

    def change(self):
        return "changed"

    def read(self):
        return "read"

    def send(self):
        return "sent"


class Value(NamedTuple):
    number: int

    def double(self):
        return 2 * self.number


def decide():
    """Decide. Loop thread."""
    return "decided"


def compute():
    """Compute."""
    return "computed"
'''


def in_thread(work: Callable[[], object]) -> object:
    """Return the result of ``work`` in another thread, or the error it raises."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except WrongThreadError as error:
            found.append(error)

    thread = threading.Thread(target=run, name="other", daemon=True)
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def module() -> ModuleType:
    module = ModuleType("tidelog.broker.sample")
    exec(SOURCE, vars(module))
    guard(module)
    return module


@pytest.mark.parametrize(
    "work",
    [
        lambda module: module.Part().change(),
        lambda module: module.Part().state,
        lambda module: module.Mixed().change(),
        lambda module: module.decide(),
    ],
    ids=["method", "property", "class", "function"],
)
def test_another_thread_is_refused(module: ModuleType, work: Callable[[ModuleType], str]) -> None:
    assert isinstance(work(module), str), "the main thread puts a broker together"
    refused = in_thread(lambda: work(module))
    assert isinstance(refused, WrongThreadError)
    assert "is called by the thread other" in str(refused)


@pytest.mark.parametrize(
    ("work", "result"),
    [
        (lambda module: module.Part().snapshot(), "snapshot"),
        (lambda module: next(module.Part().steps()), "step"),
        (lambda module: module.Mixed().read(), "read"),
        (lambda module: module.Mixed().send(), "sent"),
        (lambda module: module.Value(2).double(), 4),
        (lambda module: module.compute(), "computed"),
    ],
)
def test_methods_for_any_thread_may_be_called_by_any_thread(
    module: ModuleType, work: Callable[[ModuleType], object], result: object
) -> None:
    assert in_thread(lambda: work(module)) == result


def test_a_thread_with_an_event_loop_is_a_loop_thread(module: ModuleType) -> None:
    async def change() -> object:
        return module.Part().change()

    assert in_thread(lambda: asyncio.run(change())) == "changed"


def test_the_rule_is_in_force_in_all_tests() -> None:
    install()
    deferred: Deferred[int] = Deferred()
    assert isinstance(in_thread(lambda: deferred.complete(1)), WrongThreadError)
    with suspended():
        assert in_thread(lambda: deferred.complete(1)) is None
    assert deferred.result() == 1


def test_a_class_of_a_compiled_module_is_checked() -> None:
    """All classes are checked except those with C fields, whose methods cannot be replaced."""
    sessions = FetchSessionCache(1, lambda: 0.0, Random(1))
    assert isinstance(in_thread(sessions.partition_count), WrongThreadError)


def test_modules_to_come_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tidelog.broker

    (tmp_path / "later_part.py").write_text(SOURCE)
    monkeypatch.setattr(tidelog.broker, "__path__", [*tidelog.broker.__path__, str(tmp_path)])
    import importlib

    try:
        later = importlib.import_module("tidelog.broker.later_part")
        assert isinstance(in_thread(lambda: later.Part().change()), WrongThreadError)
    finally:
        sys.modules.pop("tidelog.broker.later_part", None)


async def test_the_loop_opens_no_log_where_it_is_not_expected(tmp_path: Path) -> None:
    with opening_expected():
        before = DataBroker(tmp_path)
        create_topic(before, "t", 2)
        before.close()
    data = DataBroker(tmp_path)
    with pytest.raises(WrongThreadError, match="the loop's thread opens the log t-1"):
        data.replica_manager.partition("t", 1).open()
    await asyncio.to_thread(data.log_manager.get_log, TopicPartition("t", 1))
    data.replica_manager.partition("t", 1).open()
    data.close()
