"""The encrypting transport: TLS records split anywhere, full sockets, closes, and both kinds of WANT errors."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.certificates import Certificates
from tests.support.tls import TlsPair, client_context, server_context
from tests.unit.broker.network.test_connection import SocketLoop
from tidelog.broker.network.send_queue import ALL, SendQueue, SendStatus, send_at_once
from tidelog.broker.security.tls.tls_socket import CHUNK_BYTES, MAX_AWAITED_BYTES, TURN_BYTES, TlsSocket
from tidelog.protocol.frames import FrameReader
from tidelog.protocol.transferable import SliceCutShortError, TransferableRecords

CONTENT = os.urandom(1_500_000)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["1.3", "1.2"])
def pair(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[TlsPair]:
    client = client_context(certificates.authority.certificate, tls12=request.param == "1.2")
    pair = TlsPair(server_context(certificates), client)
    yield pair
    pair.close()


class CountedFile:
    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self._descriptor = os.open(path, os.O_RDONLY)
        self.retained = 0

    def fileno(self) -> int:
        return self._descriptor

    def retain(self) -> None:
        self.retained += 1

    def release(self) -> None:
        self.retained -= 1

    def slice(self, position: int, size: int) -> TransferableRecords:
        self.retain()
        return TransferableRecords(self, position, size)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CountedFile]:
    file = CountedFile(tmp_path / "segment")
    yield file
    os.close(file.fileno())


def receive_all(tls: TlsSocket, size: int = 1 << 18) -> bytes:
    """Receive all that has come, in buffers of ``size``."""
    received, buffer = b"", bytearray(size)
    with contextlib.suppress(BlockingIOError):
        while count := tls.recv_into(buffer):
            received += buffer[:count]
    return received


def framed(size: int) -> bytes:
    return struct.pack(">i", size) + os.urandom(size)


def test_a_record_split_at_every_byte_is_received_whole(pair: TlsPair) -> None:
    for size in (1, 40):
        position, count = 0, 1
        while position < count:
            data = framed(size)
            record = pair.encrypt(data)
            count = len(record)
            pair.raw.sendall(record[:position])
            received = receive_all(pair.tls)
            pair.raw.sendall(record[position:])
            assert received + receive_all(pair.tls) == data
            position += 1


def test_bytes_that_come_one_by_one_are_received(pair: TlsPair) -> None:
    data = framed(1000) + framed(3)
    received = b""
    for byte in pair.encrypt(data):
        pair.raw.sendall(bytes([byte]))
        received += receive_all(pair.tls)
    assert received == data


def test_all_tls_records_of_one_receive_are_read(pair: TlsPair) -> None:
    data = [framed(size) for size in (10, 9, 1000, 40_000, 0, 1)]
    pair.raw.sendall(b"".join(map(pair.encrypt, data)))
    buffer = bytearray(1 << 17)
    count = pair.tls.recv_into(buffer)
    received = bytes(buffer[:count])
    received += receive_all(pair.tls)
    assert received == b"".join(data)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_decrypted_bytes_beyond_the_buffer_are_read_in_further_turns(pair: TlsPair, size: int) -> None:
    """The kernel's buffer is empty then, so the selector reports no event."""
    loop = SocketLoop()
    received, buffer = b"", bytearray(size)

    def on_readable() -> None:
        nonlocal received
        with contextlib.suppress(BlockingIOError):
            received += buffer[: pair.tls.recv_into(buffer)]

    pair.tls.add_reader(cast(Any, loop), on_readable)
    data = framed(500)
    pair.raw.sendall(pair.encrypt(data))
    loop.readers[pair.tls.fileno()]()
    assert received == data[:size]
    while loop.soon:
        loop.run_soon()
    assert received == data


def test_a_frame_that_fills_the_buffer_hides_no_bytes_after_it(pair: TlsPair) -> None:
    """Both are in one TLS record, so after the first read the selector reports no event."""
    loop, first = SocketLoop(), framed(500)
    pair.tls.add_reader(cast(Any, loop), lambda: None)
    pair.raw.sendall(pair.encrypt(first + framed(3)))
    assert pair.tls.recv_into(bytearray(len(first))) == len(first)
    assert loop.soon


def test_a_paused_reader_gets_decrypted_bytes_when_it_resumes(pair: TlsPair) -> None:
    loop, calls = cast(Any, SocketLoop()), []
    pair.tls.add_reader(loop, lambda: calls.append("first"))
    pair.raw.sendall(pair.encrypt(framed(500)))
    pair.tls.recv_into(bytearray(10))
    pair.tls.remove_reader(loop)
    loop.run_soon()
    assert not calls
    pair.tls.add_reader(loop, lambda: calls.append("second"))
    loop.run_soon()
    assert calls == ["second"]


@pytest.fixture(params=["1.3", "1.2"])
def tcp_pair(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[TlsPair]:
    """A TCP connection, for which the kernel waits until SO_RCVLOWAT bytes are there."""
    client = client_context(certificates.authority.certificate, tls12=request.param == "1.2")
    pair = TlsPair(server_context(certificates), client, is_tcp=True)
    yield pair
    pair.close()


def is_readable(tls: TlsSocket, limit_s: float) -> bool:
    """Return whether a loop that watches the socket would call back."""
    return bool(select.select([tls.fileno()], [], [], limit_s)[0])


def take(pair: TlsPair, reader: FrameReader, frames: list[bytes]) -> None:
    """Receive once and take the frames, as a connection does after a notification."""
    with contextlib.suppress(BlockingIOError):
        reader.buffer_updated(pair.tls.recv_into(reader.get_buffer()))
    while (frame := reader.next_frame()) is not None:
        frames.append(bytes(frame))
    pair.tls.expect(reader.missing_bytes)


def turn_of(loop: SocketLoop) -> None:
    """Run the turn of one event, and the turns that it schedules for bytes that are decrypted already."""
    loop.turn()
    while loop.soon:
        loop.run_soon()


@pytest.mark.parametrize("seed", range(6))
def test_the_loop_is_notified_of_frames_however_tls_records_split_them(tcp_pair: TlsPair, seed: int) -> None:
    """The socket must not wait for bytes of a TLS record that OpenSSL has taken from the kernel already."""
    rng, loop, reader = random.Random(seed), SocketLoop(), FrameReader(1 << 20)
    received: list[bytes] = []
    tcp_pair.tls.add_reader(cast(Any, loop), lambda: take(tcp_pair, reader, received))
    sent = [os.urandom(rng.choice([0, 10, 1_000, 33_000, 50_000, 200_000])) for _ in range(8)]
    stream = memoryview(b"".join(struct.pack(">i", len(frame)) + frame for frame in sent))
    wire = b""
    while stream:
        size = rng.choice([9, 1_000, 16_384, 70_000])
        wire += tcp_pair.encrypt(bytes(stream[:size]))
        stream = stream[size:]
    while wire:
        size = rng.randrange(1, 60_000)
        tcp_pair.raw.setblocking(True)
        tcp_pair.raw.sendall(wire[:size])
        wire = wire[size:]
        while is_readable(tcp_pair.tls, 0):
            turn_of(loop)
    while len(received) < len(sent):
        assert is_readable(tcp_pair.tls, 20), "the bytes received complete a frame, but the socket is not readable"
        turn_of(loop)
    assert received == sent


def test_the_loop_is_not_notified_of_small_parts_of_a_large_frame(tcp_pair: TlsPair) -> None:
    tcp_pair.tls.expect(300_000)
    tcp_pair.raw.sendall(tcp_pair.encrypt(bytes(1_000)))
    assert not is_readable(tcp_pair.tls, 0)
    tcp_pair.raw.setblocking(True)
    tcp_pair.raw.sendall(tcp_pair.encrypt(bytes(MAX_AWAITED_BYTES)))
    assert is_readable(tcp_pair.tls, 60)
    receive_all(tcp_pair.tls)
    tcp_pair.tls.expect(0)
    tcp_pair.raw.sendall(tcp_pair.encrypt(b"x"))
    assert is_readable(tcp_pair.tls, 60)


def test_the_loop_is_notified_of_the_end_of_the_stream_within_a_large_frame(tcp_pair: TlsPair) -> None:
    tcp_pair.tls.expect(300_000)
    tcp_pair.raw.shutdown(socket.SHUT_WR)
    assert is_readable(tcp_pair.tls, 60)
    assert tcp_pair.tls.recv_into(bytearray(10)) == 0


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_the_end_comes_after_the_last_bytes(pair: TlsPair, says_goodbye: bool) -> None:
    loop, calls = cast(Any, SocketLoop()), []
    pair.tls.add_reader(loop, lambda: calls.append(1))
    data = framed(30_000)
    pair.raw.sendall(pair.encrypt(data) + (pair.goodbye() if says_goodbye else b""))
    pair.raw.shutdown(socket.SHUT_WR)
    buffer = bytearray(1 << 17)
    assert buffer[: pair.tls.recv_into(buffer)] == data
    loop.run_soon()
    assert calls == [1]
    assert pair.tls.recv_into(buffer) == 0


def test_garbage_in_place_of_a_record_is_an_error(pair: TlsPair) -> None:
    pair.raw.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises(OSError, match="SSL"):
        pair.tls.recv_into(bytearray(100))


def test_a_close_says_goodbye(pair: TlsPair) -> None:
    pair.tls.send(b"last")
    pair.tls.close()
    pair.drain()
    assert pair.client.read(100) == b"last"
    assert pair.client.read(100) == b"", "without a close_notify there would be more to wait for"


def random_parts(rng: random.Random, file: CountedFile) -> list[Any]:
    """Draw an answer's parts: bytes and slices of many sizes."""
    parts: list[Any] = []
    for _ in range(rng.randrange(1, 8)):
        size = rng.choice([1, 30, 5000, 40_000, 70_000, 300_000])
        if rng.random() < 0.5:
            parts.append(file.slice(rng.randrange(len(CONTENT) - size), size))
        else:
            parts.append(os.urandom(size))
    return parts


def bytes_of(part: Any) -> bytes:
    return CONTENT[part.position : part.position + part.size] if isinstance(part, TransferableRecords) else bytes(part)


class Sender:
    """The sending half of a connection: sends at once if the queue is empty, else appends to the queue."""

    def __init__(self, tls: TlsSocket) -> None:
        self.tls, self.queue = tls, SendQueue()

    def send(self, parts: list[Any]) -> None:
        for part in parts:
            if isinstance(part, TransferableRecords):
                part.in_memory = True
        sent = 0
        if not self.queue:
            sent = send_at_once(self.tls, parts, has_slices=any(isinstance(p, TransferableRecords) for p in parts))
            if sent == ALL:
                return
        self.queue.extend(parts)
        if sent:
            self.queue.advance(sent)
        self.send_queued()

    def send_queued(self) -> SendStatus:
        while (status := self.queue.send_some(self.tls)) is SendStatus.MORE:
            pass
        return status


@pytest.mark.parametrize("seed", range(4))
def test_a_full_socket_at_every_chunk_loses_and_repeats_nothing(pair: TlsPair, file: CountedFile, seed: int) -> None:
    rng = random.Random(seed)
    own = socket.socket(fileno=os.dup(pair.tls.fileno()))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, expected, received = Sender(pair.tls), b"", b""
    for _ in range(3):
        parts = random_parts(rng, file)
        expected += b"".join(map(bytes_of, parts))
        sender.send(parts)
        for _ in range(rng.randrange(40)):
            pair.drain(rng.choice([1, 100, 5000, 20_000]))
            received += pair.decrypted()
            sender.send_queued()
    while len(received) < len(expected):
        sender.send_queued()
        pair.drain()
        received += pair.decrypted()
    assert received == expected
    assert not sender.queue
    assert file.retained == 0
    own.close()


def test_a_chunk_that_was_begun_continues_whatever_is_offered_next(pair: TlsPair) -> None:
    data = os.urandom(3 * TURN_BYTES)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += pair.tls.send(data[sent:])
    received = b""
    while sent < len(data):
        pair.drain()
        received += pair.decrypted()
        with contextlib.suppress(BlockingIOError):
            sent += pair.tls.send(data[sent : sent + 10_000])  # less than the chunk that was begun
    while len(received) < len(data):
        pair.drain()
        received += pair.decrypted()
    assert received == data


def test_one_call_encrypts_no_more_than_a_turns_share(pair: TlsPair, file: CountedFile) -> None:
    pair.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    own = socket.socket(fileno=os.dup(pair.tls.fileno()))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    assert 0 < pair.tls.send(bytes(2 * TURN_BYTES)) <= TURN_BYTES
    pair.drain(1 << 22)
    assert 0 < pair.tls.send_slice(file, 0, 2 * TURN_BYTES) <= TURN_BYTES
    own.close()


def test_the_head_of_an_answer_joins_its_slice_in_one_record(pair: TlsPair, file: CountedFile) -> None:
    assert pair.tls.send(b"head", socket.MSG_MORE) == 4
    pair.drain()
    assert pair.decrypted() == b""
    assert pair.tls.send_slice(file, 100, 1000) == 1000
    raw = pair.raw.recv(1 << 16, socket.MSG_PEEK)
    assert struct.unpack_from(">H", raw, 3)[0] == len(raw) - 5, "more than one record"
    pair.drain()
    assert pair.decrypted() == b"head" + CONTENT[100:1100]


def test_a_slice_that_is_not_in_memory_is_left_to_a_thread(
    pair: TlsPair, file: CountedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, cold = os.preadv, True

    def preadv(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        nonlocal cold
        if flags and cold:
            raise BlockingIOError
        cold = cold and bool(flags)
        return read(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    queue = SendQueue()
    queue.extend([b"head", file.slice(5, 200_000), b"tail"])
    assert queue.send_some(pair.tls) is SendStatus.COLD
    queue.advance(queue.send_cold(pair.tls))
    received = b""
    while queue:
        queue.send_some(pair.tls)
        pair.drain()
        received += pair.decrypted()
    pair.drain()
    assert received + pair.decrypted() == b"head" + CONTENT[5:200_005] + b"tail"


def test_a_file_that_ends_before_the_slice_does_is_an_error(pair: TlsPair, file: CountedFile) -> None:
    with pytest.raises(SliceCutShortError):
        pair.tls.send_slice(file, len(CONTENT), CHUNK_BYTES)
    with pytest.raises(SliceCutShortError):
        pair.tls.send_cold(file, len(CONTENT), CHUNK_BYTES)


class Wanting:
    """An SSLSocket that wants the other direction once."""

    def __init__(self, sock: socket.socket) -> None:
        self.fileno, self.getsockopt = sock.fileno, sock.getsockopt
        self.read_raises: type[OSError] | None = None
        self.send_raises: type[OSError] | None = None

    def read(self, _size: int, view: memoryview) -> int:
        if self.read_raises is not None:
            raise self.read_raises
        view[:2] = b"ab"
        return 2

    def send(self, data: bytes) -> int:
        if self.send_raises is not None:
            raise self.send_raises
        return len(data)

    def pending(self) -> int:
        return 0


@pytest.fixture
def wanting() -> Iterator[SimpleNamespace]:
    ours, theirs = socket.socketpair()
    fake, loop, calls = Wanting(ours), SocketLoop(), cast("list[str]", [])
    tls = TlsSocket(cast(Any, fake), memoryview(bytearray(CHUNK_BYTES)))
    yield SimpleNamespace(fake=fake, loop=loop, calls=calls, tls=tls, descriptor=ours.fileno())
    ours.close()
    theirs.close()


def note(calls: list[str], what: str) -> Callable[[], None]:
    return lambda: calls.append(what)


def test_a_read_that_wants_to_write_continues_when_the_socket_is_writable(wanting: SimpleNamespace) -> None:
    wanting.tls.add_reader(wanting.loop, note(wanting.calls, "read"))
    wanting.fake.read_raises = ssl.SSLWantWriteError
    with pytest.raises(BlockingIOError):
        wanting.tls.recv_into(bytearray(10))
    wanting.loop.writers[wanting.descriptor]()
    assert wanting.calls == ["read"]
    assert not wanting.loop.writers


def test_a_write_that_wants_to_read_continues_when_bytes_came_also_while_reading_is_paused(
    wanting: SimpleNamespace,
) -> None:
    wanting.fake.send_raises = ssl.SSLWantReadError
    wanting.tls.add_writer(wanting.loop, note(wanting.calls, "write"))
    with pytest.raises(BlockingIOError):
        wanting.tls.send(b"data")
    assert not wanting.loop.writers, "a socket with room would wake the loop for nothing, again and again"
    wanting.fake.send_raises = None
    wanting.loop.readers[wanting.descriptor]()
    assert wanting.calls == ["write"]
    assert wanting.tls.send(b"data") == 4
    assert not wanting.loop.readers
    assert wanting.loop.writers
