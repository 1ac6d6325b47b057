"""MemoryError at any call while a request is handled: the request is refused or its connection closed, and the broker
continues.

The profiler's hook raises it in the thread of the loop at the N-th call, Python's or C's, which stands for each place
that allocates. ``TIDELOG_MEMORY_POINTS`` tries more places of each request.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.long_requests import WIDE_TOPIC, Naming, all_cases, build, frame
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop import turn_clock
from tidelog.broker.loop.thread_rule import suspended
from tidelog.broker.requests import dispatch
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.transferable import release_slices

POINTS = int(os.environ.get("TIDELOG_MEMORY_POINTS", "8"))
MAX_TURNS = 300
SOURCES = str(Path(dispatch.__file__).parents[2])
TURN_CLOCK = turn_clock.__file__
WITHOUT_MEMORY = frozenset({"__exit__", "release"})
"""Calls that give something back, as of locks: they take no memory."""
TEXTS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Scarcity:
    """A MemoryError at one call of this thread during a piece of work; counts the calls."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0
        self.where = ""

    def __enter__(self) -> Scarcity:
        gc.disable()  # a file that another test left would be closed without memory, and the error reported
        if not self.at or self.calls < self.at:
            sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _event(self, called: FrameType, event: str, argument: object) -> None:
        if is_point(called, event, argument):
            self.calls += 1
            if self.calls == self.at:
                sys.setprofile(None)
                self.where = f"{called.f_code.co_qualname} {called.f_lineno} {argument or ''}"
                raise MemoryError


def is_point(frame: FrameType, event: str, called: object) -> bool:
    """Return whether a call in the broker's code can fail for memory. Generators that go on take none. The loop takes
    none for a callback's frame, through the turn clock or directly."""
    if event == "c_call":
        return is_ours(frame) and getattr(called, "__name__", "") not in WITHOUT_MEMORY
    if event != "call" or frame.f_code.co_flags & CO_GENERATOR:
        return False
    caller = frame.f_back
    return is_ours(frame) and caller is not None and is_ours(caller) and caller.f_code.co_filename != TURN_CLOCK


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(SOURCES)


class World:
    """A broker whose connection closes as a real one does: on any error of the dispatcher."""

    def __init__(self, directory: Path) -> None:
        self.data = DataBroker(directory, TEXTS)
        create_topic(self.data, WIDE_TOPIC, 20)
        coordinators_of(self.data.broker).start()
        self.dispatcher = Dispatcher(self.data.broker)

    def ask(self, sent: bytes, at: int = 0) -> int:
        """Send a request that meets a lack of memory at call ``at``; how many calls it made. It must be answered, or
        its connection be closed."""
        answers: list[Any] = []
        scarcity = Scarcity(at)
        with scarcity:
            try:
                answer = self.dispatcher.dispatch(self.data.context(0), memoryview(bytearray(sent)))
            except (InvalidRequestError, CloseConnectionError, MemoryError):
                return scarcity.calls
        if not isinstance(answer, Pending):
            release_slices(answer)
            return scarcity.calls
        answer.on_answer(answers.append)
        answer.hurry()
        for _ in range(MAX_TURNS):
            if answers:
                break
            self._turn(scarcity)
        assert answers, f"no answer after a lack of memory in {scarcity.where}"
        release_slices(answers[0])
        return scarcity.calls

    def _turn(self, scarcity: Scarcity) -> None:
        """Call a callback as the loop does: it logs an error of the callback, and continues."""
        soon, self.data.loop.soon = self.data.loop.soon, []
        if not soon:
            self.data.loop.advance(100)
        for callback in soon:
            with suppress(MemoryError), scarcity:
                callback()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with suspended():
        world = World(tmp_path)
        yield world
        world.data.loop.advance(10_000)
        world.data.close()


def requests(api_key: int) -> Iterator[tuple[Message, int]]:
    if api_key == ApiKey.PRODUCE:
        part = PartitionProduceData(index=0, records=memoryview(batch(b"value")))
        yield ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=WIDE_TOPIC, partition_data=[part])]), 9
        return
    for case in all_cases(api_key):
        if case.naming is Naming.SAME:
            yield build(case, 2), case.version


@pytest.mark.parametrize("api_key", sorted(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_the_broker_continues_after_a_memory_error(world: World, api_key: int) -> None:
    for request, version in requests(api_key):
        sent = frame(request, version)
        calls = world.ask(sent)
        for at in sorted({1 + calls * point // POINTS for point in range(POINTS)}):
            world.ask(sent, at)
        world.ask(sent)
    end = world.data.replica_manager.partition(WIDE_TOPIC, 1).log_end_offset
    assert world.data.append(WIDE_TOPIC, b"value", partition=1) == end
