from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.broker.network.send_queue import SMALL_SLICE_BYTES, SendQueue, SendStatus
from tidelog.broker.network.transport import TURN_BYTES, PlainSocket
from tidelog.protocol.transferable import SliceCutShortError, TransferableRecords


class CountedFile:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self.retained = 0

    def fileno(self) -> int:
        return self._descriptor

    def retain(self) -> None:
        self.retained += 1

    def release(self) -> None:
        self.retained -= 1

    def close(self) -> None:
        os.close(self._descriptor)


CONTENT = os.urandom(4 * 1024 * 1024)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sender") / "segment"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def file(path: Path) -> Iterator[CountedFile]:
    file = CountedFile(path)
    yield file
    file.close()


@pytest.fixture
def pair() -> Iterator[tuple[PlainSocket, socket.socket]]:
    accepted, theirs = socket.socketpair()
    with PlainSocket(accepted) as ours, theirs:
        yield ours, theirs


def slice_of(file: CountedFile, position: int, size: int) -> TransferableRecords:
    file.retain()
    return TransferableRecords(file, position, size)


def receive(pair: tuple[PlainSocket, socket.socket], queue: SendQueue, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        queue.send_some(pair[0])
        received += pair[1].recv(1 << 20)
    assert not queue
    return bytes(received)


def test_bytes_and_slices_leave_in_order(pair: tuple[PlainSocket, socket.socket], file: CountedFile) -> None:
    queue = SendQueue()
    large = SMALL_SLICE_BYTES + 5
    queue.extend([b"head", slice_of(file, 10, 100), b"middle", slice_of(file, 1000, large), b"tail"])
    expected = b"head" + CONTENT[10:110] + b"middle" + CONTENT[1000 : 1000 + large] + b"tail"
    assert receive(pair, queue, len(expected)) == expected
    assert file.retained == 0
    assert not queue


def test_one_turn_sends_a_bounded_part_of_a_slice(pair: tuple[PlainSocket, socket.socket], file: CountedFile) -> None:
    ours, _ = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
    queue = SendQueue()
    queue.extend([slice_of(file, 0, len(CONTENT))])
    queue.send_some(ours)
    assert len(CONTENT) - queue.queued_bytes <= TURN_BYTES
    assert receive(pair, queue, len(CONTENT)) == CONTENT
    assert file.retained == 0


def test_a_full_socket_blocks_and_continues(pair: tuple[PlainSocket, socket.socket]) -> None:
    ours, _ = pair
    data = os.urandom(3 * 1024 * 1024)
    queue = SendQueue()
    queue.extend([data])
    assert queue.send_some(ours) is SendStatus.BLOCKED
    assert queue.send_some(ours) is SendStatus.BLOCKED
    assert 0 < queue.queued_bytes < len(data)
    assert receive(pair, queue, len(data)) == data


def test_dropping_releases_every_slice(file: CountedFile) -> None:
    queue = SendQueue()
    queue.extend([slice_of(file, 0, 10), b"x", slice_of(file, 0, 0)])
    queue.drop()
    assert file.retained == 0
    assert queue.queued_bytes == 0


@pytest.mark.parametrize("size", [100, SMALL_SLICE_BYTES * 2])
def test_a_file_shorter_than_promised_closes(
    pair: tuple[PlainSocket, socket.socket], file: CountedFile, size: int
) -> None:
    queue = SendQueue()
    queue.extend([slice_of(file, len(CONTENT), size)])
    with pytest.raises(SliceCutShortError):
        queue.send_some(pair[0])


def test_a_gone_peer_is_an_os_error(pair: tuple[PlainSocket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    queue = SendQueue()
    queue.extend([b"x"])
    with pytest.raises(OSError, match=r"pipe|reset"):
        queue.send_some(ours)


@pytest.mark.parametrize("size", [100, SMALL_SLICE_BYTES * 2])
def test_cold_pages_are_left_to_a_thread(
    pair: tuple[PlainSocket, socket.socket], file: CountedFile, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    queue = SendQueue()
    queue.extend([b"head", slice_of(file, 0, size)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", refuse)
        assert queue.send_some(pair[0]) is SendStatus.COLD
    sent = queue.send_cold(pair[0])
    queue.advance(sent)
    assert receive(pair, queue, 4 + size) == b"head" + CONTENT[:size]
    assert file.retained == 0


@pytest.mark.parametrize("size", [100, SMALL_SLICE_BYTES * 2])
def test_pages_that_left_memory_are_cold(pair: tuple[PlainSocket, socket.socket], tmp_path: Path, size: int) -> None:
    """Not a pretended answer: the kernel has really dropped the pages, and the thread's read brings them back."""
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    file = CountedFile(path)
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    queue = SendQueue()
    queue.extend([slice_of(file, 1_000_000, size)])
    status = queue.send_some(pair[0])
    if status is SendStatus.DONE:
        pytest.skip("this file system keeps pages that it was told to drop")
    assert status is SendStatus.COLD
    queue.advance(queue.send_cold(pair[0]))
    assert receive(pair, queue, size) == CONTENT[1_000_000 : 1_000_000 + size]
    file.close()


def test_a_file_system_without_nowait_counts_as_hot(
    pair: tuple[PlainSocket, socket.socket], file: CountedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def plain_only(descriptor: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "no flags here")
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", plain_only)
    queue = SendQueue()
    queue.extend([slice_of(file, 5, 50), slice_of(file, 0, SMALL_SLICE_BYTES * 2)])
    expected = CONTENT[5:55] + CONTENT[: SMALL_SLICE_BYTES * 2]
    assert receive(pair, queue, len(expected)) == expected


def test_send_cold_says_zero_when_the_socket_is_full(
    pair: tuple[PlainSocket, socket.socket], file: CountedFile
) -> None:
    ours, _ = pair
    queue = SendQueue()
    queue.extend([slice_of(file, 0, len(CONTENT))])
    while queue.send_some(ours) is not SendStatus.BLOCKED:
        pass
    assert queue.send_cold(ours) == 0
