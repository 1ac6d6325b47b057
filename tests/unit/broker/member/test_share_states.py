"""States of share partitions of a member: kept by the member, or by another broker that it calls with the APIs 83 to
87."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.handlers.drive import handler_of
from tests.unit.broker.request_world import Counter
from tests.unit.broker.share.share_world import ShareWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.coordinator.share_state.calls import CALLS, MAX_CALL_BATCHES
from tidelog.broker.coordinator.share_state.persister import FIRST_BACKOFF_MS
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, Span
from tidelog.broker.coordinator.share_state.state import NO_EPOCH, StateKey, StateUpdate
from tidelog.broker.handlers import delete_share_group_state as deletion
from tidelog.broker.handlers import initialize_share_group_state as initialization
from tidelog.broker.handlers import read_share_group_state as reading
from tidelog.broker.handlers import read_share_group_state_summary as summarizing
from tidelog.broker.handlers import write_share_group_state as writing
from tidelog.broker.handlers.share_state import build_error
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.connections import share_states
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.connections.share_states import MemberShareStates
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.metadata_image import (
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    TopicState,
)
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.errors import (
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages import write_share_group_state as messages
from tidelog.protocol.schema.fields import Message

HANDLERS = [initialization, reading, writing, deletion, summarizing]
OWN, OTHER = 1, 2
STATES = "__share_group_state"


class OtherBroker:
    """A channel to a broker, whose handlers answer; ``is_silent`` while it does not answer."""

    world: ShareWorld
    is_silent = False
    was_silent: asyncio.Event
    asked = 0

    def __init__(self, *_: object) -> None:
        pass

    async def ask(self, _: Address, request: Message, __: object) -> Any:
        OtherBroker.asked += 1
        await asyncio.sleep(0)
        if OtherBroker.is_silent:
            OtherBroker.was_silent.set()
            raise ChannelError("no answer")
        return serve(self.world, request)


def serve(world: ShareWorld, request: Message) -> Any:
    """Return the answer of a broker's handler."""
    return response_of(handler_of(request).handle(world.broker, RequestContext(), request))


class States:
    """A member over two brokers, either of which may keep the states."""

    def __init__(self, own: ShareWorld, coordinator: int) -> None:
        self.controller = RemoteController(image(coordinator), OWN)
        self._tasks: set[asyncio.Task[None]] = set()
        security = PeerSecurity("PLAINTEXT")
        self.states = MemberShareStates(lambda: own.broker, self.controller, security, self._start)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self, deferred: Deferred[Any] | None) -> Any:
        """Return the value of a Deferred, once it has one."""
        if deferred is None:
            return None
        is_done = asyncio.Event()
        deferred.on_done(lambda _: is_done.set())
        async with asyncio.timeout(60):
            await is_done.wait()
        return deferred.result()


def image(coordinator: int) -> MetadataImage:
    """Build an image of two running brokers; one of them leads the topic of the states."""
    brokers = {
        number: BrokerRegistration(
            number,
            1,
            b"i" * 16,
            (Endpoint("PLAINTEXT", "host", 9092 + number, 0),),
            {},
            None,
            is_fenced=False,
            in_controlled_shutdown=False,
            directories=(),
        )
        for number in (OWN, OTHER)
    }
    topic = TopicState(STATES, b"s" * 16, (PartitionState((OWN, OTHER), (OWN, OTHER), leader=coordinator),))
    return MetadataImage(brokers=brokers, topics={b"s" * 16: topic}, topic_ids={STATES: b"s" * 16})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShareWorld]:
    """A broker that keeps states; it is this member and the other broker at once, to whichever they are asked of."""
    made = ShareWorld(tmp_path)
    made.topic("t", 10)
    made.member()  # the coordinator is loaded
    monkeypatch.setattr(OtherBroker, "world", made, raising=False)
    monkeypatch.setattr(OtherBroker, "is_silent", False)
    monkeypatch.setattr(OtherBroker, "was_silent", asyncio.Event(), raising=False)
    monkeypatch.setattr(OtherBroker, "asked", 0)
    monkeypatch.setattr(share_states, "Channel", OtherBroker)
    yield made
    made.close()


def key_of(world: ShareWorld, group: str = "other") -> StateKey:
    return StateKey(group, world.broker.metadata.topics["t"].topic_id, 0)


@pytest.mark.parametrize("coordinator", [OWN, OTHER])
async def test_states_are_kept_wherever_the_coordinator_is(world: ShareWorld, coordinator: int) -> None:
    made, key = States(world, coordinator), key_of(world)
    states = made.states
    await made.settled(states.initialize(key, 2, 1))
    await made.settled(states.write(key, StateUpdate(3, 1, 0, [Span(5, 6, ACKNOWLEDGED, 1)], 1)))
    await made.settled(states.when_open(key, 7))
    found = states.read(key, 7)
    assert (found.start_offset, found.batches, found.state_epoch) == (3, (Span(5, 6, ACKNOWLEDGED, 1),), 1)
    with pytest.raises(NotLeaderOrFollowerError):
        states.read(key, 7)  # what was read counts once
    with pytest.raises(FencedLeaderEpochError):
        await made.settled(states.write(key, StateUpdate(4, 0, 6, (), 1)))
    with pytest.raises(FencedStateEpochError):
        await made.settled(states.write(key, StateUpdate(4, 0, 7, (), 0)))
    summaries = await steps_end(made, states.summaries([key, key_of(world, "none")]))
    assert [-1 if one is None else one.start_offset for one in summaries.values()] == [3, -1]
    await steps_end(made, states.delete([key]))
    with pytest.raises(InvalidRequestError):
        await made.settled(states.write(key, StateUpdate(4, 0, 7, (), 1)))
    assert (OtherBroker.asked > 0) is (coordinator == OTHER)


async def steps_end(made: States, steps: Any) -> Any:
    """Run steps, wait for what they wait for, and return their result."""
    while True:
        try:
            waiting = next(steps)
        except StopIteration as end:
            return end.value
        await made.settled(waiting)


async def test_a_coordinator_that_moves_is_followed(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other broker does not answer; then the newest image says that this one keeps the states."""
    made, key = States(world, OTHER), key_of(world)
    monkeypatch.setattr(OtherBroker, "is_silent", True)
    initialized = made.states.initialize(key, 2, 1)
    async with asyncio.timeout(60):
        await OtherBroker.was_silent.wait()
    assert not initialized.done
    made.controller.image = image(OWN)
    assert await made.settled(initialized) is None
    await made.settled(made.states.when_open(key, 0))
    assert made.states.read(key, 0).start_offset == 2


async def test_a_leader_that_is_fenced_gets_no_state(world: ShareWorld) -> None:
    made, key = States(world, OTHER), key_of(world)
    await made.settled(made.states.initialize(key, 2, 1))
    await made.settled(made.states.when_open(key, 5))
    await made.settled(made.states.when_open(key, 4))
    with pytest.raises(FencedLeaderEpochError):
        made.states.read(key, 4)


@pytest.mark.parametrize("coordinator", [OWN, OTHER])
async def test_a_state_that_was_read_before_a_change_is_not_served_after_it(
    world: ShareWorld, coordinator: int
) -> None:
    """Two members of a group fetch at once, and both have the state read; the first one's is served, and changes."""
    made, key = States(world, coordinator), key_of(world)
    states = made.states
    await made.settled(states.initialize(key, 2, 1))
    first, second = states.when_open(key, 7), states.when_open(key, 7)
    await made.settled(first)
    assert states.read(key, 7).start_offset == 2
    written = states.write(key, StateUpdate(9, 0, 7, (), 1))
    await made.settled(second)
    await made.settled(written)
    with pytest.raises(NotLeaderOrFollowerError):
        states.read(key, 7)


async def test_a_call_is_made_again_however_the_time_goes_on(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no coordinator at first, and the pause is over when the clock is read again."""
    made, key = States(world, -1), key_of(world)
    times = count(0, FIRST_BACKOFF_MS)
    monkeypatch.setattr(MemberShareStates, "_now_ms", staticmethod(lambda: next(times)))
    initialized = made.states.initialize(key, 2, 1)
    made.controller.image = image(OWN)
    assert await made.settled(initialized) is None


async def test_many_calls_at_once_are_looked_through_once(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group over a thousand partitions asks for them all: the loop would stand still for seconds."""
    looked, coordinator_of = 0, MemberShareStates._coordinator

    def count_looks(states: MemberShareStates, key: StateKey) -> int | None:
        nonlocal looked
        looked += 1
        return coordinator_of(states, key)

    monkeypatch.setattr(MemberShareStates, "_coordinator", count_looks)
    made = States(world, OTHER)
    keys = [key_of(world)._replace(partition=number) for number in range(400)]
    steps: Any = made.states.summaries(keys)
    while (waiting := next(steps)) is None:
        pass  # these are the steps of one turn of the loop
    await made.settled(waiting)
    assert len(keys) <= looked <= 4 * len(keys)


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.API_KEY.name)
def test_a_broker_answers_only_for_states_that_it_keeps(
    world: ShareWorld, handler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, key = CALLS[handler.API_KEY], key_of(world)
    fields = {"partition": 7, "leader_epoch": NO_EPOCH, "state_epoch": 1, "start_offset": 0}
    kind = {field.name: field for field in call.topic.FIELDS}["partitions"].item
    known = {field.name for field in kind.FIELDS}
    asked = kind(**{name: value for name, value in fields.items() if name in known})
    request = call.request(group_id=key.group_id, topics=[call.topic(topic_id=key.topic_id, partitions=[asked])])
    ((one,),) = (topic.partitions for topic in serve(world, request).results)
    expected = UnknownTopicOrPartitionError if call.needs_topic else InvalidRequestError
    assert (one.partition, one.error_code) == (7, expected.code)
    runtime = world.coordinators.share.runtime
    monkeypatch.setattr(type(runtime), "is_here", lambda *_: False)
    ((one,),) = (topic.partitions for topic in serve(world, request).results)
    assert (one.partition, one.error_code) == (7, NotCoordinatorError.code)
    refused = response_of(build_error(handler.API_KEY, request, NotCoordinatorError()))
    assert refused == response_of(handler.error_response(request, NotCoordinatorError()))
    assert [[one.error_code for one in topic.partitions] for topic in refused.results] == [[NotCoordinatorError.code]]


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("distinct", [1, 500])
@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.API_KEY.name)
def test_a_long_request_is_handled_in_many_steps(
    world: ShareWorld, handler: Any, distinct: int, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 partitions may be asked about: one of them is named often, or each is another one."""
    call, key = CALLS[handler.API_KEY], key_of(world)
    kind = {field.name: field for field in call.topic.FIELDS}["partitions"].item
    partitions = [kind(partition=number % distinct) for number in range(500)]
    request = call.request(group_id=key.group_id, topics=[call.topic(topic_id=key.topic_id, partitions=partitions)])
    monkeypatch.setattr(type(world.coordinators.share.runtime), "is_here", lambda *_: is_here)
    steps = handler.handle(world.broker, RequestContext(), request)
    counter, calls = Counter(), []
    while inspect.getgeneratorstate(steps) != inspect.GEN_CLOSED:
        calls.append(counter.count(lambda: next(steps, None)))
    assert len(calls) >= 500
    assert max(calls) < 500


def test_more_batches_than_a_share_partition_can_have_are_refused(world: ShareWorld) -> None:
    """They are worked on in one step: 50,000 of them held the loop for 41 ms."""
    key = key_of(world)
    batches = [
        messages.StateBatch(first_offset=n, last_offset=n, delivery_state=2) for n in range(MAX_CALL_BATCHES + 1)
    ]
    asked = messages.PartitionData(partition=key.partition, leader_epoch=0, start_offset=0, state_batches=batches)
    topic = messages.WriteStateData(topic_id=key.topic_id, partitions=[asked])
    request = messages.WriteShareGroupStateRequest(group_id=key.group_id, topics=[topic])
    ((refused,),) = (topic.partitions for topic in serve(world, request).results)
    assert (refused.error_code, refused.error_message) == (
        InvalidRequestError.code,
        "20001 state batches of one share partition; at most 20000 are allowed",
    )
    asked.state_batches = batches[:MAX_CALL_BATCHES]
    ((taken,),) = (topic.partitions for topic in serve(world, request).results)
    assert taken.error_message == "Write operation on uninitialized share partition not allowed."
