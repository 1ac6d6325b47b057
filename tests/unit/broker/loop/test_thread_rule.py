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
from tidelog.broker.config.dynamic_stores import DynamicStores
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.loop.background_jobs import BackgroundJobs
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.loop.thread_rule import WrongThreadError, guard, install, suspended
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.network.authentication import Authentication, Gate
from tidelog.broker.replica.fetching.fetch_session import FetchSessionCache
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.broker.security.delegation_tokens import DelegationTokens
from tidelog.broker.security.tls.listeners import TlsListeners
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

    @state.setter
    def state(self, value):
        pass

    @staticmethod
    def helper():
        return "helped"

    @classmethod
    def default(cls):
        return "default"

    def begin(self):
        """Begin to open a log in a thread. The function is for any thread, not in a worker."""
        return "begun"

    def sync(self):
        """Write something to the disk. In a worker
        thread, as it waits."""
        return "synced"

    def open(self):
        """Any thread may open it."""
        return "opened"

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


other_name = decide


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


def set_state(module: ModuleType) -> str:
    """Set a property that has a setter."""
    module.Part().state = 1
    return "set"


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
        lambda module: module.other_name(),
        lambda module: module.Part().begin(),
        lambda module: module.Part().helper(),
        lambda module: module.Part.helper(),
        lambda module: module.Part.default(),
        set_state,
    ],
    ids=[
        "method",
        "property",
        "class",
        "function",
        "other name of a function",
        "a method that begins work in a thread",
        "static method",
        "static method of the class",
        "class method",
        "setter",
    ],
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
        (lambda module: module.Part().sync(), "synced"),
        (lambda module: module.Part().open(), "opened"),
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


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Partition, "when_open"),
        (Partition, "validation"),
        (InternalTopicLog, "when_open"),
        (BrokerMarkerWriter, "when_open"),
        (MemberRoles, "_save_later"),
        (Authentication, "evaluate"),
        (Gate, "_conclude"),
        (DelegationTokens, "create"),
        (BackgroundJobs, "_run"),
        (TlsListeners, "_read"),
        (TlsListeners, "check"),
        (DynamicStores, "check"),
        (ReplicaManager, "checkpoint_log_starts"),
        (ReplicaManager, "first_logs"),
    ],
)
def test_methods_that_begin_work_in_threads_are_checked(cls: type, name: str) -> None:
    assert hasattr(vars(cls)[name], "__wrapped__")


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
