from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.network.acceptor import (
    ACCEPT_PER_TURN,
    RETRY_MS,
    Acceptor,
    ConnectionRate,
    DescriptorReserve,
    first_reserved_descriptor,
)
from tidelog.log.system.time import ManualTime


class FakeSocket:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.blocking = True

    def fileno(self) -> int:
        return self.descriptor

    def setblocking(self, blocking: bool) -> None:
        self.blocking = blocking


class FakeListener(FakeSocket):
    """Gives the connections that the test lined up, then no more."""

    def __init__(self) -> None:
        super().__init__(3)
        self.waiting: list[FakeSocket | OSError] = []
        self.closed = False

    def accept(self) -> tuple[FakeSocket, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        found = self.waiting.pop(0)
        if isinstance(found, OSError):
            raise found
        return found, ("10.0.0.1", 5)

    def close(self) -> None:
        self.closed = True


class ReaderLoop(ManualLoop):
    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, Callable[[], None]] = {}

    def add_reader(self, descriptor: int, callback: Callable[[], None]) -> None:
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor: int) -> None:
        del self.readers[descriptor]


class Fixture:
    def __init__(self) -> None:
        self.loop = ReaderLoop()
        self.listener = FakeListener()
        self.accepted: list[socket.socket] = []
        self.room = 1000
        self.may_give_way = self.gave_way = 0
        self.rate = 1_000_000
        self.work_ms = 0.0
        self.acceptor = Acceptor(
            cast(Any, self.loop),
            self.loop.timers,
            cast(Any, self.listener),
            on_accept=self.on_accept,
            has_room=lambda: len(self.accepted) < self.room,
            make_room=self.make_room,
            reserve=DescriptorReserve(
                100, lambda: len(self.accepted) - self.gave_way, self.loop.time.monotonic_ms, lambda: 0
            ),
            rate=ConnectionRate(lambda: self.rate, self.loop.time.monotonic_ms),
        )
        self.acceptor.resume()

    def on_accept(self, client: socket.socket, _: str) -> None:
        self.loop.time.advance(self.work_ms)
        self.accepted.append(client)

    def make_room(self) -> bool:
        if self.gave_way == self.may_give_way:
            return False
        self.gave_way += 1
        return True

    @property
    def accepts(self) -> bool:
        return bool(self.loop.readers)


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_a_limited_number_of_connections_is_accepted_in_a_turn(fixture: Fixture) -> None:
    fixture.listener.waiting = [FakeSocket(50) for _ in range(ACCEPT_PER_TURN + 5)]
    fixture.acceptor.on_readable()
    assert len(fixture.accepted) == ACCEPT_PER_TURN
    fixture.acceptor.on_readable()
    assert len(fixture.accepted) == ACCEPT_PER_TURN + 5


def test_accepting_many_connections_takes_several_turns(fixture: Fixture) -> None:
    """To accept 64 clients, each of which closes another one, takes over 5 ms."""
    fixture.work_ms = 0.08
    fixture.listener.waiting = [FakeSocket(50) for _ in range(10)]
    turns = []
    while fixture.listener.waiting:
        (readable,) = fixture.loop.readers.values()
        readable()
        turns.append(len(fixture.accepted))
    assert turns == [4, 8, 10]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_accepting_pauses_and_resumes(fixture: Fixture, code: int) -> None:
    fixture.listener.waiting = [OSError(code, "none left")]
    fixture.acceptor.on_readable()
    assert not fixture.accepts
    fixture.loop.advance(RETRY_MS + 10)
    assert fixture.accepts


def test_accepting_continues_as_long_as_other_connections_can_be_closed(fixture: Fixture) -> None:
    fixture.may_give_way = 2
    fixture.listener.waiting = [OSError(errno.EMFILE, "none left"), FakeSocket(100), FakeSocket(100), FakeSocket(99)]
    fixture.acceptor.on_readable()
    assert len(fixture.accepted) == 2
    assert not fixture.accepts


def test_a_shortage_that_lasts_is_logged_once_in_a_while(fixture: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    fixture.loop.advance(1)
    fixture.listener.waiting = [OSError(errno.EMFILE, "none left") for _ in range(10)]
    for _ in range(10):
        fixture.acceptor.on_readable()
        fixture.loop.advance(RETRY_MS + 10)
    assert len(caplog.records) == 1


def test_reserved_descriptors_stay_free_while_connections_are_closed_for_new_ones() -> None:
    """Descriptors as the kernel gives them: the lowest that is free."""
    time = ManualTime()
    segments, connections = set(range(10)), list[int]()
    reserve = DescriptorReserve(
        100, lambda: len(connections), time.monotonic_ms, lambda: len(segments) + len(connections)
    )
    for count in range(1000):
        descriptor = next(number for number in range(1000) if number not in segments and number not in connections)
        connections.append(descriptor)
        if reserve.is_touched(descriptor):
            connections.pop(0)
        time.advance(7)
        if count == 500:
            segments -= set(range(5))
    assert 90 <= len(segments) + len(connections) <= 101
    assert len(connections) >= 94


def test_the_reserve_is_left_alone(fixture: Fixture) -> None:
    fixture.listener.waiting = [FakeSocket(99), FakeSocket(100), FakeSocket(101)]
    fixture.acceptor.on_readable()
    assert len(fixture.accepted) == 2
    assert not fixture.accepts


def test_a_client_that_gave_up_is_skipped(fixture: Fixture) -> None:
    fixture.listener.waiting = [OSError(errno.ECONNABORTED, "gone"), FakeSocket(9)]
    fixture.acceptor.on_readable()
    assert len(fixture.accepted) == 1


def test_at_the_connection_limit_accepting_pauses_until_resumed(fixture: Fixture) -> None:
    fixture.room = 1
    fixture.listener.waiting = [FakeSocket(9), FakeSocket(10)]
    fixture.acceptor.on_readable()
    assert len(fixture.accepted) == 1
    assert not fixture.accepts
    fixture.acceptor.resume()
    assert fixture.accepts


def test_at_a_limit_accepting_is_tried_again_as_the_limit_may_be_raised(fixture: Fixture) -> None:
    """A TLS handshake that succeeds makes room in its queue without closing a connection, too."""
    fixture.room = 1
    fixture.listener.waiting = [FakeSocket(9), FakeSocket(10)]
    for room, accepted in ((1, 1), (1, 1), (2, 2)):
        fixture.room = room
        fixture.acceptor.on_readable()
        assert len(fixture.accepted) == accepted
        fixture.loop.advance(RETRY_MS + 10)
        assert fixture.accepts


def test_a_closed_acceptor_does_not_resume(fixture: Fixture) -> None:
    fixture.acceptor.close()
    fixture.acceptor.resume()
    assert fixture.listener.closed
    assert not fixture.accepts


@pytest.mark.parametrize(("limit", "highest"), [(1_000_000, 875_000), (1024, 896), (256, 192), (64, 32)])
def test_a_share_of_the_descriptors_is_kept(limit: int, highest: int) -> None:
    assert first_reserved_descriptor(limit) == highest


@pytest.mark.parametrize("rate", [1, 7, 100])
def test_connections_are_accepted_at_the_configured_rate(fixture: Fixture, rate: int) -> None:
    fixture.rate = rate
    seconds = 5
    fixture.loop.advance(60_000)
    fixture.listener.waiting = [FakeSocket(9) for _ in range(10 * seconds * rate)]
    for _ in range(seconds * 1000):
        for callback in list(fixture.loop.readers.values()):
            callback()
        fixture.loop.advance(1)
    assert seconds * rate * 0.9 <= len(fixture.accepted) <= (seconds + 1) * rate + 1
    before = len(fixture.accepted)
    fixture.rate = 1_000_000  # the key is dynamic
    fixture.loop.advance(1100)
    for callback in list(fixture.loop.readers.values()):
        callback()
    assert len(fixture.accepted) > before
