"""One connection with random requests, completions, partial reads and closes, compared with a model of its answers."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.unit.broker.network.test_connection import FakePending, Fixture
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.network.late_answers import MAX_WAITING
from tidelog.broker.requests.route import Parts
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError

STEPS = 120
MUTED_MS = 300
TICK_MS = 100
"""A pause ends at a tick of the timers."""


class LateRequest(FakePending):
    """A request that waits for other replicas, or one that is not carried out yet. ``at_once``: its answer is there."""

    def __init__(self, sent: Sent) -> None:
        super().__init__()
        self.sent = sent
        self.is_carried_out = sent.is_carried_out

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        super().on_answer(callback)
        if self.sent.is_there:
            self.sent.come()


@dataclass(eq=False)
class Sent:
    """A request of the model."""

    number: int
    api_key: ApiKey
    is_carried_out: bool = False
    is_late: bool = False
    is_there: bool = False
    """Its answer comes while it is asked for."""
    is_quiet: bool = False
    is_refused: bool = False
    mutes: bool = False
    pending: LateRequest | None = None
    answered: bool = False
    failed: bool = False

    @property
    def frame(self) -> bytes:
        return struct.pack(">hi", self.api_key, self.number) + b"x" * (self.number * 7 % 40)

    @property
    def answer(self) -> bytes:
        return b"" if self.is_quiet else b"%d;" % self.number

    def come(self) -> None:
        """Let the answer come."""
        assert self.pending is not None
        self.answered = True
        self.pending.answer([self.answer] if self.number % 3 and self.answer else self.answer)


KINDS: list[tuple[int, Callable[[int], Sent]]] = [
    (60, partial(Sent, api_key=ApiKey.PRODUCE, is_carried_out=True, is_late=True)),
    (6, partial(Sent, api_key=ApiKey.PRODUCE, is_carried_out=True, is_late=True, is_there=True)),
    (8, partial(Sent, api_key=ApiKey.PRODUCE)),
    (5, partial(Sent, api_key=ApiKey.PRODUCE, is_quiet=True)),
    (1, partial(Sent, api_key=ApiKey.PRODUCE, is_late=True)),
    (1, partial(Sent, api_key=ApiKey.PRODUCE, is_late=True, is_quiet=True)),
    (1, partial(Sent, api_key=ApiKey.PRODUCE, is_late=True, is_there=True, mutes=True)),
    (1, partial(Sent, api_key=ApiKey.METADATA)),
    (1, partial(Sent, api_key=ApiKey.LIST_OFFSETS, is_late=True)),
]


class World:
    """A connection and the model beside it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fixture = Fixture()
        self.fixture.dispatcher.dispatch = self.dispatch  # type: ignore[method-assign]
        self.fixture.shell.dispatch = self.dispatch
        self.fixture.connection.dispatch = self.dispatch
        self.fixture.client.setblocking(False)
        self.sent: list[Sent] = []
        self.unsent = b""
        self.faults: list[str] = []
        """What was carried out that should not have been; a connection would not let an error of it through."""
        self.dispatched: list[Sent] = []
        self.received = b""
        self.muted_until = 0.0
        self.is_finishing = self.is_gone = False

    def dispatch(self, context: Any, frame: memoryview) -> Any:
        """Take a frame; the model says whether it might come now."""
        (number,) = struct.unpack_from(">i", frame, 2)
        sent = self.sent[number]
        if number != len(self.dispatched) or bytes(frame) != sent.frame:
            self.faults.append(f"{number} is carried out after {len(self.dispatched)} others")
        if not self.may_come(sent):
            self.faults.append(f"{number} came too early")
        self.dispatched.append(sent)
        if sent.is_refused:
            sent.failed = True
            raise InvalidRequestError("nothing that is known") if number % 2 else CloseConnectionError("expired")
        if sent.mutes:
            context.throttle_ms = MUTED_MS
            self.muted_until = self.now + MUTED_MS
        if sent.is_late:
            sent.pending = LateRequest(sent)
            return sent.pending
        sent.answered = True
        if sent.is_quiet:
            return None
        return [sent.answer] if number % 3 else sent.answer

    @property
    def now(self) -> float:
        return self.fixture.shell.monotonic_ms()

    def may_come(self, sent: Sent) -> bool:
        """Return whether a request may be carried out now."""
        if self.is_finishing or self.now < self.muted_until:
            return False
        waiting = [each for each in self.dispatched if not each.answered]
        if any(each.failed or not each.is_carried_out for each in waiting):
            return False
        if not waiting:
            return True
        line = [each for each in self.dispatched[waiting[0].number :] if not (each.answered and each.is_quiet)]
        return sent.api_key == ApiKey.PRODUCE and len(line) < MAX_WAITING

    @property
    def owed(self) -> bytes:
        """Answers that the client is to have by now."""
        answers = []
        for each in self.dispatched:
            if not each.answered:
                break
            answers.append(each.answer)
        return b"".join(answers)

    # ---- what may happen

    def send(self) -> None:
        """Send some requests, and of the last only a part."""
        for _ in range(self.random.choice([1, 1, 2, 5, 30])):
            kind = self.random.choices([kind for _, kind in KINDS], [weight for weight, _ in KINDS])[0]
            self.add(kind(len(self.sent)))
        count = self.random.choice([len(self.unsent), len(self.unsent), self.random.randrange(len(self.unsent))])
        self.put(count)

    def add(self, sent: Sent) -> None:
        self.sent.append(sent)
        self.unsent += struct.pack(">i", len(sent.frame)) + sent.frame

    def put(self, count: int) -> None:
        data, self.unsent = self.unsent[:count], self.unsent[count:]
        if not self.is_gone:
            with contextlib.suppress(BrokenPipeError):
                self.fixture.client.sendall(data)

    @property
    def waiting(self) -> list[Sent]:
        """The requests whose answers may come."""
        return [each for each in self.dispatched if each.is_late and not (each.answered or each.failed)]

    def come(self) -> None:
        """Let some answers come, in any order, within a turn of the loop."""
        waiting = self.waiting
        for each in self.random.sample(waiting, min(len(waiting), self.random.choice([1, 1, 3, 20]))):
            each.come()
        if self.random.random() < 0.5:
            self.check()

    def turn(self) -> None:
        self.fixture.loop.turn()

    def wait(self) -> None:
        """Let time pass, with no frame begun for so long that its client is too slow."""
        pause_ms = self.random.choice([1.0, 100.0, 400.0, 900.0])
        if pause_ms > TICK_MS:
            self.put(len(self.unsent))
        self.fixture.loop.advance(pause_ms)

    # ---- what is held

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.fixture.client.recv(65536):
                self.received += data

    def check(self) -> None:
        assert not self.faults
        if not self.is_gone:
            self.receive()
            assert self.received == self.owed

    def settle(self) -> None:
        """Turn the loop until nothing moves; then nothing waits that might be carried out."""
        for _ in range(100):
            before = (len(self.dispatched), self.received)
            self.turn()
            if not self.is_gone:
                self.receive()
            if before == (len(self.dispatched), self.received):
                break
        self.check()
        if self.fixture.connection.closed or len(self.dispatched) == len(self.sent):
            return
        left = sum(4 + len(each.frame) for each in self.sent[len(self.dispatched) :]) - len(self.unsent)
        following = self.sent[len(self.dispatched)]
        if left >= 4 + len(following.frame) and not self.muted_until <= self.now <= self.muted_until + TICK_MS:
            assert not self.may_come(following), "a request waits for nothing"

    def run(self, steps: int) -> None:
        actions = [self.send, self.come, self.come, self.turn, self.turn, self.settle, self.wait]
        for _ in range(steps):
            self.random.choice(actions)()

    def complete_all(self) -> None:
        """Let all come that is waited for, until the connection has nothing to do."""
        self.put(len(self.unsent))
        for _ in range(len(self.sent) + 20):
            self.settle()
            if len(self.dispatched) == len(self.sent) and all(each.answered for each in self.sent):
                return
            for each in self.waiting:
                each.come()
            self.fixture.loop.advance(MUTED_MS + TICK_MS + 1)


@pytest.fixture
def worlds() -> Any:
    made: list[World] = []

    def make(seed: int) -> World:
        made.append(World(seed))
        return made[-1]

    yield make
    for world in made:
        world.fixture.connection.close()
        world.fixture.client.close()


@pytest.mark.parametrize("seed", range(12))
def test_each_request_is_answered_once_and_in_order(worlds: Callable[[int], World], seed: int) -> None:
    world = worlds(seed)
    world.run(STEPS)
    world.complete_all()
    assert len(world.dispatched) == len(world.sent)
    assert world.received == b"".join(each.answer for each in world.sent)
    assert not world.fixture.connection.closed


@pytest.mark.parametrize("seed", range(12))
def test_requests_before_a_refused_one_are_answered(worlds: Callable[[int], World], seed: int) -> None:
    world = worlds(seed)
    world.run(STEPS // 4)
    world.add(Sent(len(world.sent), ApiKey.PRODUCE, is_refused=True))
    refused = world.sent[-1].number
    world.put(len(world.unsent))
    world.run(STEPS // 4)
    world.complete_all()
    assert world.received == b"".join(each.answer for each in world.sent[:refused])
    assert len(world.dispatched) == refused + 1
    assert world.fixture.connection.closed


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_that_will_not_come_ends_the_line_in_its_place(worlds: Callable[[int], World], seed: int) -> None:
    world = worlds(seed)
    world.run(STEPS // 4)
    while not world.waiting:
        world.send()
        world.settle()
        world.wait()
    failed = world.random.choice(world.waiting)
    failed.failed = True
    assert failed.pending is not None
    failed.pending.answer(None)
    carried_out = len(world.dispatched)
    world.run(STEPS // 4)
    world.complete_all()
    assert world.received == b"".join(each.answer for each in world.sent[: failed.number])
    assert len(world.dispatched) == carried_out
    assert world.fixture.connection.closed


@pytest.mark.parametrize("seed", range(12))
def test_a_finishing_connection_answers_all_requests_it_has_carried_out(
    worlds: Callable[[int], World], seed: int
) -> None:
    world = worlds(seed)
    world.run(STEPS // 4)
    world.is_finishing = True
    world.fixture.connection.finish()
    carried_out = len(world.dispatched)
    world.run(STEPS // 4)
    world.complete_all()
    assert len(world.dispatched) == carried_out
    assert world.received == b"".join(each.answer for each in world.dispatched)
    assert world.fixture.connection.closed


@pytest.mark.parametrize("seed", range(12))
def test_a_client_that_goes_is_noticed_and_late_answers_harm_nothing(worlds: Callable[[int], World], seed: int) -> None:
    world = worlds(seed)
    world.run(STEPS // 4)
    late = world.waiting
    world.is_gone = True
    world.fixture.client.close()
    for _ in range(3):
        world.turn()
        world.wait()
    assert world.fixture.connection.closed
    assert all(each.pending is not None and each.pending.abandoned for each in late)
    for each in late:
        each.come()
    world.turn()
    assert not world.fixture.shell.connections
    assert not world.fixture.shell.watched
