"""The work of long requests, of every API and every array: linear, and little of it in each turn of the loop.

Work is counted in calls, Python's and C's, as the interpreter's profiler sees them: the same in each run, on any
machine. The loop's clock is that count too, at CALLS_PER_MS, so that slices end as they do in a broker.
``TIDELOG_LONG_REQUEST_ELEMENTS`` makes the arrays longer.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.long_requests import Case, Naming, all_cases, frame, frame_of, most_in_one_turn, most_legal
from tests.support.memory_directory import module_directory
from tests.unit.broker.request_world import CALLS_PER_MS, World, uncounted
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import LARGE_AT_ONCE
from tidelog.broker.loop.thread_rule import suspended
from tidelog.broker.requests.bounds import max_elements
from tidelog.broker.requests.dispatch import LARGE_BYTES, Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import ONE_TURN_BYTES, Pending
from tidelog.broker.security.principal import USER, Principal
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import ClusterAuthorizationFailedError
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tidelog.protocol.schema.fields import Message

ELEMENTS = int(os.environ.get("TIDELOG_LONG_REQUEST_ELEMENTS", "200"))
TURN_MS = 6
"""The longest turn of calls that a slice of 2 ms may become: a step is not interrupted."""
FIXED_CALLS = 3_000
"""What a request costs whatever is in it."""
MAX_TIMES = 3.0
PARTITIONS = 3_000
REFUSED, REFUSAL_MS = 15_000, 4
LARGE_ELEMENTS = 6_000
"""Elements of a ListOffsets request that is large, so that it waits for its turn: 170 KB."""
OTHERS = {ApiKey.PRODUCE}  # its records are its work, and a short one is decoded in C: its CPU time is measured


@pytest.fixture(autouse=True)
def _calls_are_the_brokers_own() -> Iterator[None]:
    """The check of the thread rule would be counted, too."""
    with suspended():
        yield


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with module_directory() as directory:
        world = World(directory)
        yield world
        world.data.close()


def within(case: Case, count: int) -> int:
    """Return the most elements that keep the request legal: with those of the arrays around it, nested ones have
    several."""
    return min(count, max_elements(case.api_key) // 12)


def of_one_way(case: Case, count: int) -> int:
    """Return a count whose double goes the same way: a short request is decoded at once by a compiled routine, whose
    calls no profiler sees, a long one in steps."""
    crosses = len(frame_of(case, count)) <= ONE_TURN_BYTES < len(frame_of(case, 2 * count))
    return 2 * count if crosses else count


@pytest.mark.parametrize("api_key", [key for key in REGISTRY if key not in OTHERS], ids=lambda key: ApiKey(key).name)
def test_twice_the_elements_are_not_three_times_the_work_and_no_turn_is_long(world: World, api_key: int) -> None:
    long_turns = []
    steep = []
    for case in all_cases(api_key):
        count = of_one_way(case, within(case, ELEMENTS))
        large = world.ask(frame_of(case, 2 * count))
        small = sum(world.ask_once(frame_of(case, count)))  # its elements are among those of the large one
        if sum(large) > MAX_TIMES * small + FIXED_CALLS:
            steep.append(f"{case}: {small} calls for {count} elements, {sum(large)} for {2 * count}")
        if max(large) > TURN_MS * CALLS_PER_MS:
            long_turns.append(f"{case}: a turn of {max(large)} calls for {2 * count} elements")
    assert (steep, long_turns) == ([], [])


@pytest.mark.parametrize(
    ("api_key", "count"),
    [
        (ApiKey.TXN_OFFSET_COMMIT, PARTITIONS),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, PARTITIONS),
        (ApiKey.INITIALIZE_SHARE_GROUP_STATE, PARTITIONS),
        (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, PARTITIONS),
        (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 3 * PARTITIONS),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else None,
)
def test_refusals_of_thousands_of_elements_are_answered_in_short_turns(
    world: World, api_key: ApiKey, count: int
) -> None:
    cases = [case for case in all_cases(api_key) if case.version == REGISTRY[api_key].max_version]
    longest = {str(case): max(world.ask_once(frame_of(case, count))) for case in cases}
    assert {case: calls for case, calls in longest.items() if calls > TURN_MS * CALLS_PER_MS} == {}


@pytest.mark.parametrize("api_key", list(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_a_request_that_is_refused_as_a_whole_is_answered_in_short_turns(
    world: World, monkeypatch: pytest.MonkeyPatch, api_key: int
) -> None:
    """The request before it, which does what only the first one of a process does, is shorter: it goes the same way."""

    def refuse(*_: object) -> None:
        raise ClusterAuthorizationFailedError

    monkeypatch.setattr(importlib.import_module(REGISTRY[api_key].module), "handle", refuse)
    monkeypatch.setattr(world, "dispatcher", world.make_dispatcher())
    longest = {}
    for case in all_cases(api_key):
        if case.version == REGISTRY[api_key].max_version and case.naming is Naming.UNKNOWN:
            count = min(REFUSED, most_legal(case))
            world.answer(frame_of(case, min(count, 2 * most_in_one_turn(case))), uncounted)
            longest[str(case)] = max(world.ask_once(frame_of(case, count)))
    assert {case: calls for case, calls in longest.items() if calls > REFUSAL_MS * CALLS_PER_MS} == {}


def test_large_requests_are_answered_some_at_a_time_and_hold_up_no_short_one(world: World) -> None:
    case = next(case for case in all_cases(ApiKey.LIST_OFFSETS) if case.naming is Naming.UNKNOWN)
    large, order = frame_of(case, LARGE_ELEMENTS), []
    assert len(large) > LARGE_BYTES
    for number in range(2 * LARGE_AT_ONCE):
        answer = world.dispatcher.dispatch(world.data.context(0), memoryview(bytearray(large)))
        assert isinstance(answer, Pending)
        answer.on_answer(lambda frame, number=number: order.append((number, frame is not None)))  # type: ignore[misc]
    short = world.dispatcher.dispatch(world.data.context(0), memoryview(bytearray(frame_of(case, 1))))
    assert isinstance(short, bytes)
    assert not order
    while len(order) < 2 * LARGE_AT_ONCE:
        world.data.loop.run_soon()
    assert {number for number, _ in order[:LARGE_AT_ONCE]} == set(range(LARGE_AT_ONCE))
    assert all(is_answered for _, is_answered in order)


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ({"client_host": "10.0.0.1"}, {"client_host": "10.0.0.2"}),
        ({"client_host": "2001:db8::1"}, {"client_host": "2001:db8:0:1::1"}),
        ({"principal": Principal(USER, "many")}, {"principal": Principal(USER, "one")}),
    ],
    ids=["address", "network of IPv6", "principal behind one address"],
)
def test_a_client_with_many_large_requests_delays_another_by_one_more(
    world: World, many: dict[str, Any], one: dict[str, Any]
) -> None:
    case = next(case for case in all_cases(ApiKey.LIST_OFFSETS) if case.naming is Naming.UNKNOWN)
    large, order = frame_of(case, LARGE_ELEMENTS), []
    assert len(large) > LARGE_BYTES
    for who in [many] * 3 * LARGE_AT_ONCE + [one]:
        context = world.data.context(0)
        for name, value in who.items():
            setattr(context, name, value)
        answer = world.dispatcher.dispatch(context, memoryview(bytearray(large)))
        assert isinstance(answer, Pending)
        answer.on_answer(lambda frame, who=who: order.append((who, frame is not None)))  # type: ignore[misc]
    while len(order) <= 3 * LARGE_AT_ONCE:
        world.data.loop.run_soon()
    assert (one, True) in order[: 2 * LARGE_AT_ONCE]


def test_large_requests_that_wait_for_others_hold_up_no_large_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> Deferred[object]:
        return Deferred()

    monkeypatch.setattr(importlib.import_module(REGISTRY[ApiKey.DELETE_RECORDS].module), "handle", wait)
    monkeypatch.setattr(world, "dispatcher", Dispatcher(world.data.broker))
    cases = [next(all_cases(key)) for key in (ApiKey.DELETE_RECORDS, ApiKey.LIST_OFFSETS)]
    waiting, other = (frame_of(case, 15_000) for case in cases)
    assert min(len(waiting), len(other)) > LARGE_BYTES
    answers = [
        world.dispatcher.dispatch(world.data.context(0), memoryview(bytearray(waiting))) for _ in range(LARGE_AT_ONCE)
    ]
    world.answer(other, uncounted)
    for answer in answers:
        assert isinstance(answer, Pending)
        answer.abandon()


def creation_and_deletion(names: list[str]) -> list[tuple[Message, int]]:
    """Return requests that create these topics and delete them, with their versions."""
    topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    return [
        (CreateTopicsRequest(topics=topics), 7),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names]), 6),
    ]


def fetch_of(count: int, **fields: Any) -> bytes:
    """Encode a fetch of the wide topic's first partitions that does not wait."""
    partitions = [FetchPartition(partition=number, partition_max_bytes=1000) for number in range(count)]
    topics = [FetchTopic(topic="wide", partitions=partitions)] if count else []
    return frame(FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=topics, **fields), 12)


def test_a_fetch_of_very_many_partitions_is_answered_in_short_turns(world: World) -> None:
    sessions = world.data.broker.fetch_sessions.sessions
    world.ask(fetch_of(100, session_epoch=-1))
    asked = [world.ask_once(fetch_of(PARTITIONS, session_epoch=0))]
    (session_id,) = sessions
    asked.append(world.ask_once(fetch_of(PARTITIONS, session_id=session_id, session_epoch=1)))
    gone = [ForgottenTopic(topic="wide", partitions=list(range(PARTITIONS - 1)))]
    forget = fetch_of(0, session_id=session_id, session_epoch=2, forgotten_topics_data=gone)
    asked.append(world.ask_once(forget))
    assert list(sessions[session_id].targets) == [("wide", PARTITIONS - 1)]
    del sessions[session_id]
    assert [max(turns) for turns in asked if max(turns) > 4 * CALLS_PER_MS] == []


def test_many_topics_are_created_and_deleted_in_short_turns(world: World) -> None:
    names = [f"made-{number}" for number in range(300)]
    for request, version in creation_and_deletion([f"first-{name}" for name in names]):
        world.answer(frame(request, version), uncounted)
    for request, version in creation_and_deletion(names):
        turns = world.answer(frame(request, version), world.measure)
        assert max(turns) <= TURN_MS * CALLS_PER_MS
        assert len(turns) > 30
        assert ("made-299" in world.data.broker.metadata.topics) == isinstance(request, CreateTopicsRequest)
