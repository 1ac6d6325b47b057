"""The shell over a socket pair, with a dispatcher and an event loop that the test drives by hand."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.broker.data_broker import InlineLoop
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.metrics.registry import Metrics
from tidelog.broker.network.connection import (
    FRAMES_PER_LOOK,
    FRAMES_PER_TURN,
    QUEUE_BYTES,
    READ_AHEAD_BYTES,
    RELEASE_AFTER_MS,
    TURN_MS,
    Connection,
)
from tidelog.broker.network.late_answers import MAX_WAITING
from tidelog.broker.network.shell import SWEEP_MS, SWEEP_PER_TURN, Limits, Shell
from tidelog.broker.network.transport import PlainSocket
from tidelog.broker.network.wakefulness import QUICK_REQUESTS, SAMPLE
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Parts, Pending
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.transferable import TransferableRecords

MAX_FRAME_BYTES = 2_000_000


class SocketLoop(InlineLoop):
    """Readiness by hand: ``turn`` calls what is registered and ready, then what was asked for soon."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, Callable[[], None]] = {}
        self.writers: dict[int, Callable[[], None]] = {}

    def add_reader(self, descriptor: int, callback: Callable[[], None]) -> None:
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor: int) -> None:
        del self.readers[descriptor]

    def add_writer(self, descriptor: int, callback: Callable[[], None]) -> None:
        self.writers[descriptor] = callback

    def remove_writer(self, descriptor: int) -> None:
        del self.writers[descriptor]

    def turn(self) -> None:
        for callback in [*self.readers.values(), *self.writers.values()]:
            callback()
        self.run_soon()


class FakePending(Pending):
    """A request that the test answers."""

    def __init__(self) -> None:
        self.callback: Callable[[bytes | Parts | None], None] | None = None
        self.abandoned = self.hurried = False

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        self.callback = callback

    def abandon(self) -> None:
        self.abandoned = True

    def hurry(self) -> None:
        self.hurried = True

    def answer(self, answer: bytes | Parts | None) -> None:
        assert self.callback is not None
        self.callback(answer)


class FakeDispatcher:
    """Echoes each frame, unless the test put something else in its place. Each frame takes ``cost_ms``."""

    def __init__(self, time: ManualTime) -> None:
        self.time = time
        self.cost_ms = 0.0
        self.frames: list[bytes] = []
        self.answers: dict[bytes, Any] = {}

    def dispatch(self, context: RequestContext, frame: memoryview) -> Any:
        data = bytes(frame)
        self.frames.append(data)
        self.time.advance(self.cost_ms)
        answer = self.answers.get(data, data)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Fixture:
    def __init__(self) -> None:
        self.loop = SocketLoop()
        self.dispatcher = FakeDispatcher(self.loop.time)
        limits = Limits(max_frame_bytes=MAX_FRAME_BYTES, max_idle_ms=60_000, stall_ms=5_000, awake_ms=0.15)
        self.metrics = Metrics()
        dispatcher, nothing = cast(Any, self.dispatcher), cast(Any, None)
        self.shell = Shell(cast(Any, self.loop), dispatcher, self.loop.timers, nothing, limits, self.metrics)
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.settimeout(5)
        self.connection = Connection(self.shell, PlainSocket(ours), RequestContext())

    def send(self, *frames: bytes) -> None:
        self.client.sendall(b"".join(struct.pack(">i", len(data)) + data for data in frames))

    def send_bit_by_bit(self, data: bytes) -> None:
        """Send more than the socket holds, while the connection reads."""
        message = memoryview(struct.pack(">i", len(data)) + data)
        self.client.setblocking(False)
        while message:
            with contextlib.suppress(BlockingIOError):
                message = message[self.client.send(message) :]
            self.loop.turn()
        self.client.settimeout(5)

    def receive(self, size: int) -> bytes:
        received = bytearray()
        self.client.setblocking(False)
        for _ in range(1000):
            self.loop.turn()
            with contextlib.suppress(BlockingIOError):
                received += self.client.recv(size - len(received))
            if len(received) == size:
                self.client.settimeout(5)
                return bytes(received)
        raise AssertionError(f"{len(received)} of {size} bytes came")


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.connection.close()
    fixture.client.close()


def test_pipelined_frames_are_answered_in_one_turn(fixture: Fixture) -> None:
    fixture.send(b"one", b"two", b"three")
    fixture.loop.turn()
    assert fixture.client.recv(100) == b"onetwothree"


def test_a_frame_may_come_byte_by_byte(fixture: Fixture) -> None:
    for byte in struct.pack(">i", 3) + b"abc":
        fixture.client.sendall(bytes([byte]))
        fixture.loop.turn()
    assert fixture.client.recv(100) == b"abc"


def test_an_incomplete_frame_is_kept_for_the_next_turn(fixture: Fixture) -> None:
    fixture.send(b"whole")
    fixture.client.sendall(struct.pack(">i", 4) + b"ha")
    fixture.loop.turn()
    fixture.client.sendall(b"lf")
    fixture.loop.turn()
    assert fixture.dispatcher.frames == [b"whole", b"half"]


def test_one_turn_handles_a_bounded_number_of_frames(fixture: Fixture) -> None:
    fixture.send(*[b"x"] * (FRAMES_PER_TURN + 10))
    fixture.loop.readers[fixture.connection.sock.fileno()]()
    assert len(fixture.dispatcher.frames) == FRAMES_PER_TURN
    fixture.loop.run_soon()
    assert len(fixture.dispatcher.frames) == FRAMES_PER_TURN + 10


def test_large_frames_arrive_whole(fixture: Fixture) -> None:
    data = os.urandom(1_500_000)
    fixture.send_bit_by_bit(data)
    assert fixture.receive(len(data)) == data


def test_the_transport_is_told_how_many_bytes_a_large_frame_still_needs(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected_bytes: list[int] = []
    monkeypatch.setattr(PlainSocket, "expect", lambda _, missing: expected_bytes.append(missing))
    fixture.client.sendall(struct.pack(">i", 10) + b"abc")
    fixture.loop.turn()
    for piece in (b"de", b"fgh", b"ij" + struct.pack(">i", 7) + b"x"):
        fixture.client.sendall(piece)
        fixture.loop.turn()
    assert expected_bytes == [5, 2, 6]


def test_the_next_request_waits_for_the_answer_of_the_last(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"wait"] = pending
    fixture.send(b"wait", b"next")
    fixture.loop.turn()
    assert fixture.dispatcher.frames == [b"wait"]
    pending.answer(b"answer")
    fixture.loop.turn()
    assert fixture.client.recv(100) == b"answernext"


class Acknowledged(FakePending):
    """A produce request whose records wait for other replicas."""

    is_carried_out = True


def produce(content: bytes) -> bytes:
    """Return a frame of API 0."""
    return struct.pack(">h", 0) + content


def wait_in_line(fixture: Fixture, count: int, *, at_once: bool = True) -> list[Acknowledged]:
    """Send so many produce requests whose answers come later; return those."""
    pendings = [Acknowledged() for _ in range(count)]
    frames = [produce(b"%d" % number) for number in range(count)]
    fixture.dispatcher.answers |= dict(zip(frames, pendings, strict=True))
    for sent in [frames] if at_once else [[frame] for frame in frames]:
        fixture.send(*sent)
        fixture.loop.turn()
    fixture.loop.turn()
    return pendings


@pytest.mark.parametrize("at_once", [True, False])
def test_produce_requests_are_carried_out_while_others_wait_for_replicas(fixture: Fixture, at_once: bool) -> None:
    first, second, third = wait_in_line(fixture, 3, at_once=at_once)
    assert fixture.dispatcher.frames == [produce(b"0"), produce(b"1"), produce(b"2")]
    second.answer(b"two")
    first.answer(b"one")
    assert fixture.client.recv(100) == b"onetwo"
    third.answer(b"three")
    assert fixture.client.recv(100) == b"three"


def test_an_immediate_answer_is_sent_after_earlier_ones_that_wait(fixture: Fixture) -> None:
    (waiting,) = wait_in_line(fixture, 1)
    fixture.dispatcher.answers[produce(b"refused")] = b"an error"
    fixture.dispatcher.answers[produce(b"parts")] = [b"of", b"parts"]
    fixture.dispatcher.answers[produce(b"quiet")] = None
    fixture.send(produce(b"refused"), produce(b"quiet"), produce(b"parts"))
    fixture.loop.turn()
    fixture.loop.turn()
    assert len(fixture.dispatcher.frames) == 4
    waiting.answer(b"one,")
    assert fixture.client.recv(100) == b"one,an errorofparts"


def test_records_that_are_not_appended_yet_hold_up_later_requests(fixture: Fixture) -> None:
    """One in line, then one whose validation takes a thread: its successor is appended after it."""
    (first,) = wait_in_line(fixture, 1)
    validated = fixture.dispatcher.answers[produce(b"long")] = FakePending()
    fixture.send(produce(b"long"), produce(b"next"))
    fixture.loop.turn()
    fixture.loop.turn()
    assert fixture.dispatcher.frames[1:] == [produce(b"long")]
    validated.answer(b"long,")
    fixture.loop.turn()
    assert fixture.dispatcher.frames[2:] == [produce(b"next")]
    first.answer(b"first,")
    assert fixture.client.recv(100) == b"first,long," + produce(b"next")


def test_another_request_waits_until_all_in_line_are_answered(fixture: Fixture) -> None:
    first, second = wait_in_line(fixture, 2)
    metadata = struct.pack(">h", 3) + b"metadata"
    fixture.send(metadata, produce(b"after"))
    for pending in (first, second):
        fixture.loop.turn()
        fixture.loop.turn()
        assert len(fixture.dispatcher.frames) == 2
        pending.answer(b"done,")
    assert fixture.receive(10 + len(metadata) + 7) == b"done,done," + metadata + produce(b"after")


def test_the_number_of_waiting_requests_of_a_connection_is_limited(fixture: Fixture) -> None:
    pendings = wait_in_line(fixture, MAX_WAITING + 3)
    assert len(fixture.dispatcher.frames) == MAX_WAITING
    for pending in pendings:
        pending.answer(b".")
        fixture.loop.turn()
    assert len(fixture.dispatcher.frames) == MAX_WAITING + 3
    assert fixture.receive(MAX_WAITING + 3) == b"." * (MAX_WAITING + 3)


def test_the_end_of_the_stream_abandons_late_answers(fixture: Fixture) -> None:
    first, second = wait_in_line(fixture, 2)
    second.answer(b"two")
    fixture.client.close()
    fixture.loop.turn()
    assert fixture.connection.closed
    assert (first.abandoned, second.abandoned) == (True, False)
    first.answer(b"late")


def test_a_failed_request_in_line_closes_the_connection_after_earlier_answers(fixture: Fixture) -> None:
    first, second, third = wait_in_line(fixture, 3)
    second.answer(None)
    third.answer(b"three")
    assert not fixture.connection.closed
    first.answer(b"one")
    assert fixture.client.recv(100) == b"one"
    assert fixture.connection.closed


def test_waiting_requests_are_answered_before_a_later_one_is_refused(fixture: Fixture) -> None:
    """The broker acknowledges first what is in the log by then, or its sender appends it again."""
    first, second = wait_in_line(fixture, 2)
    fixture.dispatcher.answers[produce(b"bad")] = InvalidRequestError("malformed")
    fixture.send(produce(b"bad"), produce(b"after"))
    fixture.loop.turn()
    fixture.loop.turn()
    second.answer(b"two")
    first.answer(b"one")
    assert fixture.client.recv(100) == b"onetwo"
    assert fixture.connection.closed
    assert fixture.dispatcher.frames[2:] == [produce(b"bad")]


def test_a_client_that_goes_is_noticed_while_its_refusal_waits(fixture: Fixture) -> None:
    (first,) = wait_in_line(fixture, 1)
    fixture.dispatcher.answers[produce(b"bad")] = InvalidRequestError("malformed")
    fixture.send(produce(b"bad"))
    fixture.loop.turn()
    fixture.loop.turn()
    fixture.client.close()
    fixture.loop.turn()
    assert fixture.connection.closed
    assert first.abandoned


def test_finishing_waits_for_all_requests_in_line(fixture: Fixture) -> None:
    first, second = wait_in_line(fixture, 2)
    fixture.connection.finish()
    first.answer(b"one")
    assert not fixture.connection.closed
    second.answer(b"two")
    assert fixture.client.recv(100) == b"onetwo"
    assert fixture.connection.closed


def test_a_finishing_connection_begins_no_further_request(fixture: Fixture) -> None:
    first, *others = wait_in_line(fixture, MAX_WAITING + 2)[:MAX_WAITING]
    fixture.connection.finish()
    first.answer(b".")
    fixture.loop.turn()
    assert len(fixture.dispatcher.frames) == MAX_WAITING
    for pending in others:
        pending.answer(b".")
    assert fixture.receive(MAX_WAITING) == b"." * MAX_WAITING
    assert fixture.connection.closed


def test_a_connection_with_requests_in_line_is_not_idle(fixture: Fixture) -> None:
    (pending,) = wait_in_line(fixture, 1)
    fixture.loop.advance(120_000)
    assert not fixture.connection.closed
    pending.answer(b"one")
    assert fixture.client.recv(100) == b"one"


class WaitingFetch(FakePending):
    """Answers when it is hurried."""

    def hurry(self) -> None:
        super().hurry()
        self.answer(b"nothing new,")


@pytest.mark.parametrize("together", [True, False])
def test_another_request_hurries_the_answer_it_waits_for(fixture: Fixture, together: bool) -> None:
    fixture.dispatcher.answers[b"wait"] = WaitingFetch()
    list_offsets = struct.pack(">h", 2) + b"next"
    if together:
        fixture.send(b"wait", list_offsets)
    else:
        fixture.send(b"wait")
        fixture.loop.turn()
        fixture.send(list_offsets)
    fixture.loop.turn()
    fixture.loop.turn()
    assert fixture.receive(18) == b"nothing new," + list_offsets


def test_a_second_fetch_does_not_hurry_the_first(fixture: Fixture) -> None:
    pending = fixture.dispatcher.answers[b"wait"] = WaitingFetch()
    fixture.send(b"wait", struct.pack(">h", 1) + b"next")
    fixture.loop.turn()
    assert not pending.hurried


def test_the_bytes_that_a_waiting_connection_reads_ahead_are_limited(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"wait"] = pending
    fixture.send(b"wait")
    fixture.loop.turn()
    for _ in range(READ_AHEAD_BYTES // 1000 + 1):
        fixture.send(bytes(1000))
        fixture.loop.turn()
    assert fixture.dispatcher.frames == [b"wait"]
    assert not fixture.loop.readers
    pending.answer(b"answer")
    fixture.loop.turn()
    assert fixture.loop.readers


def test_a_request_with_acks_0_gets_no_answer(fixture: Fixture) -> None:
    fixture.dispatcher.answers[b"quiet"] = None
    fixture.send(b"quiet", b"loud")
    fixture.loop.turn()
    assert fixture.client.recv(100) == b"loud"


@pytest.mark.parametrize("length", [-1, MAX_FRAME_BYTES + 1])
def test_a_bad_length_closes_the_connection(fixture: Fixture, length: int) -> None:
    fixture.client.sendall(struct.pack(">i", length))
    fixture.loop.turn()
    assert fixture.connection.closed
    assert not fixture.shell.connections


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "error",
    [InvalidRequestError("bad"), CloseConnectionError("no"), MemoryError(), RecursionError(), KeyError("a mistake")],
    ids=lambda error: type(error).__name__,
)
def test_a_request_that_cannot_be_answered_closes_the_connection(
    fixture: Fixture, error: Exception, at_once: bool
) -> None:
    fixture.dispatcher.answers[b"bad"] = error
    if at_once:
        fixture.send(b"bad")
    else:  # out of the connection's own reader
        fixture.client.sendall(b"\0\0")
        fixture.loop.turn()
        fixture.client.sendall(b"\0\3bad")
    fixture.loop.turn()
    assert fixture.client.recv(1) == b""
    assert not fixture.shell.connections


@pytest.mark.parametrize("at_once", [True, False])
def test_answers_before_a_request_that_closes_the_connection_are_sent(fixture: Fixture, at_once: bool) -> None:
    fixture.dispatcher.answers[b"bad"] = CloseConnectionError("no")
    if at_once:
        fixture.send(b"one", b"two", b"bad", b"three")
    else:  # out of the connection's own reader
        fixture.client.sendall(b"\0\0")
        fixture.loop.turn()
        fixture.client.sendall(b"\0\3one\0\0\0\3two\0\0\0\3bad\0\0\0\5three")
    fixture.loop.turn()
    assert fixture.client.recv(100) == b"onetwo"
    assert fixture.client.recv(1) == b""
    assert fixture.dispatcher.frames == [b"one", b"two", b"bad"]


def test_the_end_of_the_stream_abandons_a_waiting_answer(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"wait"] = pending
    fixture.send(b"wait")
    fixture.loop.turn()
    fixture.client.close()
    fixture.loop.turn()
    assert pending.abandoned
    assert fixture.connection.closed
    pending.answer(b"late")


def test_a_deferred_failure_closes_the_connection(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"wait"] = pending
    fixture.send(b"wait")
    fixture.loop.turn()
    pending.answer(None)
    assert fixture.connection.closed


def test_requests_stop_while_too_much_is_queued(fixture: Fixture) -> None:
    fixture.dispatcher.answers[b"big"] = bytes(QUEUE_BYTES * 2)
    fixture.send(b"big", b"after")
    fixture.loop.turn()
    fixture.loop.turn()
    assert fixture.dispatcher.frames == [b"big"]
    assert fixture.receive(QUEUE_BYTES * 2 + 5)[-5:] == b"after"


def test_a_client_that_reads_nothing_is_closed(fixture: Fixture) -> None:
    fixture.dispatcher.answers[b"big"] = bytes(QUEUE_BYTES * 2)
    fixture.send(b"big")
    fixture.loop.turn()
    fixture.loop.advance(4_000)
    assert not fixture.connection.closed
    fixture.loop.advance(3_000)
    assert fixture.connection.closed


def test_a_half_open_frame_is_closed(fixture: Fixture) -> None:
    fixture.client.sendall(b"\0\0\1\0half")
    fixture.loop.turn()
    fixture.loop.advance(4_000)
    assert not fixture.connection.closed
    fixture.client.sendall(b"x")
    fixture.loop.turn()
    fixture.loop.advance(3_000)
    assert fixture.connection.closed


def test_an_idle_connection_is_closed_and_an_active_one_is_not(fixture: Fixture) -> None:
    for _ in range(4):
        fixture.loop.advance(40_000)
        fixture.send(b"x")
        fixture.loop.turn()
    assert not fixture.connection.closed
    fixture.loop.advance(130_000)
    assert fixture.connection.closed


def test_a_waiting_connection_is_not_idle(fixture: Fixture) -> None:
    fixture.dispatcher.answers[b"wait"] = FakePending()
    fixture.send(b"wait")
    fixture.loop.turn()
    fixture.loop.advance(200_000)
    assert not fixture.connection.closed


def test_a_large_buffer_is_given_back(fixture: Fixture) -> None:
    fixture.send_bit_by_bit(bytes(1_000_000))
    fixture.receive(1_000_000)
    assert fixture.connection in fixture.shell.watched
    fixture.loop.advance(RELEASE_AFTER_MS * 2)
    assert fixture.connection not in fixture.shell.watched
    assert not fixture.connection.closed


def test_finishing_waits_for_the_answer_in_flight(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"wait"] = pending
    fixture.send(b"wait", b"next")
    fixture.loop.turn()
    fixture.connection.finish()
    assert not fixture.connection.closed
    pending.answer(b"last")
    assert fixture.client.recv(100) == b"last"
    fixture.loop.turn()
    assert fixture.client.recv(1) == b""


def test_finishing_an_idle_connection_closes_it(fixture: Fixture) -> None:
    fixture.connection.finish()
    assert fixture.connection.closed


class OneFile:
    """A segment's file, counted."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.retained = 0

    def fileno(self) -> int:
        return self.descriptor

    def retain(self) -> None:
        self.retained += 1

    def release(self) -> None:
        self.retained -= 1


def test_slices_are_sent_and_released(fixture: Fixture, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "segment").write_bytes(content)
    file = OneFile(tmp_path / "segment")
    file.retain()
    fixture.dispatcher.answers[b"fetch"] = [b"head", TransferableRecords(file, 0, len(content)), b"tail"]
    fixture.send(b"fetch", b"next")
    fixture.loop.turn()
    assert fixture.receive(len(content) + 12) == b"head" + content + b"tailnext"
    assert file.retained == 0
    os.close(file.descriptor)


def test_closing_releases_slices(fixture: Fixture, tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(bytes(8_000_000))
    file = OneFile(tmp_path / "segment")
    file.retain()
    fixture.dispatcher.answers[b"fetch"] = [TransferableRecords(file, 0, 8_000_000)]
    fixture.send(b"fetch")
    fixture.loop.turn()
    assert file.retained == 1
    fixture.connection.close()
    assert file.retained == 0
    os.close(file.descriptor)


def test_cold_slices_go_by_a_thread(fixture: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(2_500_000)
    (tmp_path / "segment").write_bytes(content)
    file = OneFile(tmp_path / "segment")
    file.retain()

    def never_in_memory(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", never_in_memory)
    fixture.dispatcher.answers[b"fetch"] = [b"head", TransferableRecords(file, 0, len(content))]
    fixture.send(b"fetch")
    fixture.loop.turn()
    assert fixture.receive(len(content) + 4) == b"head" + content
    assert file.retained == 0
    os.close(file.descriptor)


def test_a_cold_slice_without_a_thread_closes_its_connection(
    fixture: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket counted as being in a thread, and stayed open."""
    (tmp_path / "segment").write_bytes(bytes(2_500_000))
    file = OneFile(tmp_path / "segment")
    file.retain()

    def never_in_memory(*_: object) -> int:
        raise BlockingIOError

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "preadv", never_in_memory)
    monkeypatch.setattr(fixture.loop, "run_in_executor", no_thread)
    fixture.dispatcher.answers[b"fetch"] = [b"head", TransferableRecords(file, 0, 2_500_000)]
    fixture.send(b"fetch")
    fixture.loop.turn()
    assert fixture.connection.closed
    assert fixture.connection.sock.fileno() == -1
    assert file.retained == 0
    os.close(file.descriptor)


def test_read_ahead_is_smaller_than_the_scratch_buffer(fixture: Fixture) -> None:
    assert len(fixture.shell.scratch) > READ_AHEAD_BYTES


def test_a_client_over_its_quota_is_answered_and_then_not_heard_for_a_while(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"much"] = pending
    fixture.send(b"much", b"next")
    fixture.loop.turn()
    fixture.connection.context.throttle_ms = 300
    pending.answer(b"answer")
    fixture.loop.turn()
    assert fixture.client.recv(100) == b"answer"
    fixture.loop.advance(299)
    fixture.loop.turn()
    assert fixture.dispatcher.frames == [b"much"]
    fixture.loop.advance(2)
    fixture.loop.turn()
    assert fixture.client.recv(100) == b"next"


def test_a_muted_client_does_not_hold_up_the_end(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"much"] = pending
    fixture.send(b"much")
    fixture.loop.turn()
    fixture.connection.context.throttle_ms = 30_000
    pending.answer(b"answer")
    fixture.connection.finish()
    assert fixture.connection.closed
    assert fixture.client.recv(100) == b"answer"
    fixture.loop.advance(60_000)


def test_a_muted_connection_can_be_closed(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"much"] = pending
    fixture.send(b"much")
    fixture.loop.turn()
    fixture.connection.context.throttle_ms = 30_000
    timers = len(fixture.loop.timers)
    pending.answer(b"answer")
    assert len(fixture.loop.timers) == timers + 1, "the end of the pause"
    fixture.connection.close()
    assert len(fixture.loop.timers) == timers - 1, "neither the end of the pause nor the connection's own timer is left"


def test_requests_are_handled_though_their_sender_has_finished(fixture: Fixture) -> None:
    count = 3 * FRAMES_PER_TURN + 1
    fixture.send(*[b"%04d" % number for number in range(count)])
    fixture.client.shutdown(socket.SHUT_WR)
    for _ in range(10):
        if not fixture.connection.closed:
            fixture.loop.turn()
    assert fixture.connection.closed
    assert fixture.dispatcher.frames == [b"%04d" % number for number in range(count)]


@pytest.mark.parametrize("cost_ms", [0.1, 0.7, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("padding", [0, 1000])
def test_a_turn_ends_after_its_time_and_the_order_stays(fixture: Fixture, cost_ms: float, padding: int) -> None:
    fixture.dispatcher.cost_ms = cost_ms
    sent = [b"%04d" % number + bytes(padding) for number in range(40)]
    fixture.send(*sent)
    max_frames = TURN_MS / cost_ms + (FRAMES_PER_LOOK if not padding else 1)
    fixture.loop.readers[fixture.connection.sock.fileno()]()
    assert len(fixture.dispatcher.frames) <= max_frames
    while fixture.loop.soon:
        before = len(fixture.dispatcher.frames)
        fixture.loop.run_soon()
        assert 0 < len(fixture.dispatcher.frames) - before <= max_frames
    assert fixture.dispatcher.frames == sent
    assert fixture.client.recv(100_000) == b"".join(sent)


def test_without_free_descriptors_the_oldest_silent_connection_is_closed(fixture: Fixture) -> None:
    shell, talker = fixture.shell, fixture.connection
    talker.context.api_key = 3
    silent = [Connection(shell, PlainSocket(socket.socket()), RequestContext()) for _ in range(2)]
    assert shell.make_room()
    assert [connection.closed for connection in silent] == [True, False]
    assert shell.make_room()
    assert not shell.make_room()
    assert not talker.closed


def test_a_sweep_over_many_connections_takes_several_turns(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the connections is reset."""
    looked_at: list[Connection] = []
    monkeypatch.setattr(Connection, "close_if_reset", lambda self: looked_at.append(self))
    count = 2 * SWEEP_PER_TURN + 1
    connections = [Connection(fixture.shell, PlainSocket(socket.socket()), RequestContext()) for _ in range(count)]
    for connection in connections:
        fixture.shell.watch_for_reset(connection)
    fixture.loop.advance(SWEEP_MS + 10)
    turns = [len(looked_at)]
    while fixture.loop.soon:
        fixture.loop.run_soon()
        turns.append(len(looked_at))
    assert turns == [SWEEP_PER_TURN, 2 * SWEEP_PER_TURN, count]
    assert looked_at == connections
    for connection in connections:
        connection.close()


def test_the_loop_stays_awake_for_a_client_that_asks_again_at_once(fixture: Fixture) -> None:
    for _ in range(QUICK_REQUESTS + SAMPLE - 1):
        assert not fixture.loop.soon
        fixture.loop.time.advance(0.05)
        fixture.send(b"again")
        fixture.loop.readers[fixture.connection.sock.fileno()]()
    assert fixture.loop.soon
    fixture.loop.time.advance(0.2)
    fixture.loop.run_soon()
    assert not fixture.loop.soon


def test_the_loop_sleeps_between_the_requests_of_a_slower_client(fixture: Fixture) -> None:
    for _ in range(QUICK_REQUESTS + SAMPLE + 1):
        fixture.loop.time.advance(0.2)
        fixture.send(b"later")
        fixture.loop.readers[fixture.connection.sock.fileno()]()
    assert not fixture.loop.soon


def times_of(fixture: Fixture, name: str) -> tuple[int, int]:
    """Count and microseconds of the requests that were recorded."""
    samples = {sample.name: sample.value for sample in fixture.metrics.collect() if sample.labels == {"request": name}}
    prefix = "kafka_network_requestmetrics_totaltime_seconds"
    return int(samples.get(f"{prefix}_count", 0)), round(samples.get(f"{prefix}_sum", 0) * 1_000_000)


def test_times_of_requests_are_sampled_by_api(fixture: Fixture) -> None:
    fixture.connection.context.api_key = 0
    fixture.dispatcher.cost_ms = 0.25
    for _ in range(20):
        fixture.send(b"produce")
        fixture.loop.turn()
    count, microseconds = times_of(fixture, "Produce")
    assert 3 <= count <= 6, "one a millisecond at most"
    assert microseconds == count * 250


def test_a_request_that_waits_is_recorded_with_its_wait_and_half_a_frame_is_not(fixture: Fixture) -> None:
    pending = FakePending()
    fixture.dispatcher.answers[b"fetch"] = pending
    fixture.connection.context.api_key = 1
    fixture.send(b"fetch")
    fixture.loop.turn()
    fixture.loop.time.advance(30)
    pending.answer(b"answer")
    assert times_of(fixture, "Fetch") == (1, 30_000)
    fixture.loop.time.advance(30)
    fixture.client.sendall(b"\0\0")
    fixture.loop.turn()
    assert times_of(fixture, "Fetch") == (1, 30_000)
