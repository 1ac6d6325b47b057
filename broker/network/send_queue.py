"""Unsent parts of a connection's answers: bytes and slices of files, in order. Without TLS large slices are never read
into Python.

    queue: bytes | TransferableRecords, in response order
    bytes   -> joined with their neighbours, one send; MSG_MORE when more is queued
    slice   -> small (<= SMALL_SLICE_BYTES): read into the same send, without waiting for the disk (RWF_NOWAIT)
            -> large: ``Transport.send_slice`` (os.sendfile without TLS), at most ``turn_bytes`` a turn, after a probe
               of the first and last page of these bytes (RWF_NOWAIT)
    a probe that would wait for the disk -> COLD: the caller lets a thread send those bytes (``send_cold``), because
    sendfile of cold pages on the loop stalls every connection (KAFKA-7504: p99 from 20 ms to 200 ms)

Invariants: bytes leave in the order they were queued; a slice's file is released exactly once, when the whole slice was
sent or the queue is dropped; if a file ends before its slice does, SliceCutShortError closes the connection, and
nothing is sent in place of the missing bytes.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from enum import Enum

from tidelog.broker.network.transport import Transport
from tidelog.protocol.transferable import ColdSliceError, SliceCutShortError, TransferableRecords

SMALL_SLICE_BYTES = 32 * 1024
"""Reading a slice of at most this size into the bytes around it is faster than a sendfile of its own."""
_JOIN_BYTES = 256 * 1024
"""Neighbouring parts are joined until they have this many bytes."""
_PAGE_BYTES = 4096
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_MSG_MORE = socket.MSG_MORE
_PROBE = [bytearray(1)]
"""Buffer for the probed byte; it is never read."""

ALL = -1
"""Result of ``send_at_once`` when everything was sent."""

Part = bytes | bytearray | memoryview | TransferableRecords


class SendStatus(Enum):
    """Result of ``send_some``."""

    DONE = 0
    """Everything is sent."""
    BLOCKED = 1
    """The socket's buffer is full: go on when it is writable."""
    MORE = 2
    """This turn's share is sent: go on in the next turn."""
    COLD = 3
    """The next bytes are not in the page cache: call ``send_cold`` in a thread."""


def send_at_once(transport: Transport, parts: list[Part], *, has_slices: bool) -> int:
    """Send a response without a queue: joined bytes, or bytes around a slice that is known to be in the page cache.

    Returns ``ALL`` when the kernel took everything (the slice's file is released then), else the number of bytes that
    it took; the caller queues the rest. Raises OSError when the peer is gone, SliceCutShortError.
    """
    try:
        if has_slices:
            return _send_slice(transport, parts)
        data = b"".join(parts) if len(parts) > 1 else parts[0]  # type: ignore[arg-type]
        sent = transport.send(data)  # type: ignore[arg-type]
    except (BlockingIOError, InterruptedError):
        return 0
    return ALL if sent == len(data) else sent


def _send_slice(transport: Transport, parts: Sequence[Part]) -> int:
    """Send a fetch response of one slice without a queue: a third of the Python code that a queue runs for it. That
    saves 5 µs if sent megabytes have displaced the code from the CPU's caches."""
    if len(parts) != 3:
        return 0
    head, records, tail = parts
    if not (isinstance(records, TransferableRecords) and records.in_memory):
        return 0
    size = records.size
    total = transport.send(head, _MSG_MORE)  # type: ignore[arg-type]
    if total < len(head):
        return total
    try:
        sent = transport.send_slice(records.file, records.position, min(size, transport.turn_bytes))
        total += sent
        if sent < size:
            return total
        sent = transport.send(tail)  # type: ignore[arg-type]
    except (BlockingIOError, InterruptedError, ColdSliceError):
        return total
    if sent < len(tail):
        return total + sent
    records.release()
    return ALL


class SendQueue:
    """Unsent parts of one connection's answers. Loop thread only, except ``send_cold``."""

    __slots__ = ("_parts", "_sent_of_first", "queued_bytes")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._sent_of_first = 0
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def extend(self, parts: Sequence[Part]) -> None:
        """Queue the parts of responses; the queue releases the slices' files from now on."""
        for part in parts:
            size = len(part)
            if size:
                self._parts.append(part)
                self.queued_bytes += size
            elif isinstance(part, TransferableRecords):
                part.release()

    def drop(self) -> None:
        """Drop the unsent parts, and release their files."""
        for part in self._parts:
            if isinstance(part, TransferableRecords):
                part.release()
        self._parts.clear()
        self._sent_of_first = 0
        self.queued_bytes = 0

    def send_some(self, transport: Transport) -> SendStatus:
        """Send as much as one turn may.

        Raises OSError when the peer is gone, SliceCutShortError when a file is shorter than promised.
        """
        budget = transport.turn_bytes  # for slices alone: a slice of 1 MiB leaves in one turn with the head before it
        try:
            while self._parts:
                first = self._parts[0]
                if isinstance(first, TransferableRecords) and first.size > SMALL_SLICE_BYTES:
                    if budget <= 0:
                        return SendStatus.MORE
                    if not self._is_in_memory(first, budget):
                        return SendStatus.COLD
                    budget -= self._send_slice(transport, first, budget)
                    continue
                data = self._gather()
                if data is None:
                    return SendStatus.COLD
                sent = transport.send(data, _MSG_MORE if self._has_more_than(len(data)) else 0)
                self.advance(sent)
                if sent < len(data):
                    return SendStatus.BLOCKED
        except BlockingIOError:
            return SendStatus.BLOCKED
        except ColdSliceError:
            return SendStatus.COLD
        return SendStatus.DONE

    def send_cold(self, transport: Transport) -> int:
        """Send at most ``turn_bytes`` of the first slice from a worker thread, which waits for the disk. A TLS
        transport only reads them into the page cache.

        Returns the number of bytes sent, which the loop passes to ``advance``. Of the queue's methods, only ``extend``
        may be called meanwhile. Raises OSError, SliceCutShortError.
        """
        part = self._parts[0]
        assert isinstance(part, TransferableRecords)
        count = min(part.size - self._sent_of_first, transport.turn_bytes)
        return transport.send_cold(part.file, part.position + self._sent_of_first, count)

    def advance(self, sent: int) -> None:
        """Remove ``sent`` bytes from the front, and release the files of slices that are sent whole."""
        self.queued_bytes -= sent
        sent += self._sent_of_first
        parts = self._parts
        while parts and sent >= len(parts[0]):
            part = parts.popleft()
            sent -= len(part)
            if isinstance(part, TransferableRecords):
                part.release()
        self._sent_of_first = sent

    def _gather(self) -> bytes | memoryview | None:
        """Gather bytes from the front, with small slices read in; None if a small slice at the front is not in the page
        cache."""
        first = self._parts[0]
        if len(self._parts) == 1 and not isinstance(first, TransferableRecords):
            return memoryview(first)[self._sent_of_first :]
        pieces: list[bytes | memoryview] = []
        total, skip = 0, self._sent_of_first
        for part in self._parts:
            if isinstance(part, TransferableRecords):
                if part.size > SMALL_SLICE_BYTES:
                    break
                data = _read_without_waiting(part, skip)
                if data is None:
                    break
                pieces.append(data)
            else:
                pieces.append(memoryview(part)[skip:])
            total += len(pieces[-1])
            skip = 0
            if total >= _JOIN_BYTES:
                break
        if not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _has_more_than(self, gathered: int) -> bool:
        return gathered < self.queued_bytes

    def _is_in_memory(self, part: TransferableRecords, budget: int) -> bool:
        position = part.position + self._sent_of_first
        count = min(part.size - self._sent_of_first, budget)
        descriptor = part.file.fileno()
        return _page_is_in_memory(descriptor, position) and (
            count <= _PAGE_BYTES or _page_is_in_memory(descriptor, position + count - 1)
        )

    def _send_slice(self, transport: Transport, part: TransferableRecords, budget: int) -> int:
        position = part.position + self._sent_of_first
        count = min(part.size - self._sent_of_first, budget)
        sent = transport.send_slice(part.file, position, count)
        self.advance(sent)
        return sent


def _read_without_waiting(part: TransferableRecords, skip: int) -> bytes | None:
    """Read the slice's bytes from ``skip`` on, or return None when they are not all in the page cache or the file.

    Raises OSError, and SliceCutShortError when the file has none of them.
    """
    size = part.size - skip
    buffer = bytearray(size)
    try:
        count = os.preadv(part.file.fileno(), [buffer], part.position + skip, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        count = os.preadv(part.file.fileno(), [buffer], part.position + skip)
    if count == size:
        return bytes(buffer)
    if count == 0:
        raise SliceCutShortError(f"the file has no bytes at position {part.position + skip}")
    return None


def _page_is_in_memory(descriptor: int, position: int) -> bool:
    try:
        os.preadv(descriptor, _PROBE, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    return True
