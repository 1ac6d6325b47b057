"""Transport of a TLS connection: OpenSSL on the non-blocking socket, with the same interface as a plain socket.

OpenSSL differs from a socket in four ways, which this module hides:

    receive   one SSL_read returns one record, so it is repeated until nothing more has come or the buffer is full.
              epoll does not report bytes that OpenSSL has decrypted: then another read is scheduled
              (``_schedule_read``). Clients send large frames in many small records: while much of a frame is missing,
              the kernel wakes the loop only for many bytes (``expect``). So a produce takes 2.5 s of processor time
              per GB in place of 2.8 (benchmarks/RESULTS.md, "TLS beside Tidelog's own plain listener, and the floor").
    send      at most CHUNK_BYTES in an SSL_write and TURN_BYTES in a call. If OpenSSL could not send a whole chunk,
              the same bytes must be offered again before any others (``_begun``).
    MSG_MORE  is unknown to TLS: bytes sent with it are held back and join the next ones in one record (``_held``).
    waiting   a read may have to wait until the socket can be written, and a write until it can be read.

Loop thread only, except ``send_cold``, which uses only the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Callable
from struct import Struct

from tidelog.protocol.transferable import ColdSliceError, RetainedFile, SliceCutShortError

CHUNK_BYTES = 64 * 1024
"""Largest size of one SSL_write, four records, to which ``send`` may add the held bytes: less than one record. No more
than this is kept in memory for a client that does not read.
"""
TURN_BYTES = 256 * 1024
"""Largest number of bytes that one ``send`` or ``send_slice`` encrypts, in about 0.15 ms. Of slices, no more are sent
in one turn of the loop.
"""
RECORD_BYTES = 16 * 1024
"""Largest size of a TLS record's content."""
MAX_AWAITED_BYTES = 128 * 1024
"""Largest number of bytes for which the kernel waits before it reports the socket readable."""
_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

_unpack_length = Struct(">i").unpack_from


class TlsSocket:
    """One client's encrypted stream, after its handshake. ``scratch`` is shared by all connections of a loop."""

    __slots__ = (
        "_awaited",
        "_begun",
        "_ended",
        "_held",
        "_loop",
        "_on_readable",
        "_on_writable",
        "_owed",
        "_read_needs_room",
        "_read_scheduled",
        "_scratch",
        "_sock",
        "_watches_read",
        "_watches_write",
        "_write_needs_bytes",
        "fileno",
        "getsockopt",
    )

    turn_bytes = TURN_BYTES

    def __init__(self, sock: ssl.SSLSocket, scratch: memoryview) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.getsockopt = sock.getsockopt
        self._scratch = scratch
        self._held = b""
        """Bytes that were accepted with MSG_MORE and wait for the next ones."""
        self._begun = b""
        """The chunk that OpenSSL has begun to send, empty if there is none."""
        self._owed = 0
        """Number of bytes of ``_begun`` that are not reported as sent yet: all but those that were held back."""
        self._awaited = 1
        """Smallest number of bytes for which the kernel reports the socket readable (SO_RCVLOWAT); it always reports
        the end.
        """
        self._ended = False
        self._loop: AbstractEventLoop | None = None
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._watches_read = self._watches_write = False
        self._read_scheduled = False
        self._read_needs_room = self._write_needs_bytes = False

    # Receiving

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive until nothing more has come, the buffer is full, or the first record is exactly one frame. Return the
        number of bytes, 0 at the end of the stream. Raises BlockingIOError, OSError.
        """
        read, view = self._sock.read, memoryview(buffer)
        size, total = len(view), 0
        try:
            while total < size and not self._ended:
                count: int = read(size - total, view[total:])  # type: ignore[assignment]
                total += count
                if not count:
                    self._ended = True
                elif count == total < RECORD_BYTES and count < size and is_one_frame(view, count):
                    return count  # one complete frame: the client probably waits for its answer
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._read_needs_room = True
            self._watch()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        if not total:
            if self._ended:
                return 0
            raise BlockingIOError
        if self._ended or (total == size and self._sock.pending()):
            self._schedule_read()
        return total

    def expect(self, missing: int, /) -> None:
        """Let the kernel report the socket only when enough of the ``missing`` bytes of a frame have come.

        OpenSSL may have received a part of one record already, so the kernel waits for one record less than
        ``missing``: for MAX_AWAITED_BYTES at most, and for one byte if fewer than two records are missing.
        """
        smallest = min(missing - RECORD_BYTES, MAX_AWAITED_BYTES)
        smallest = smallest if smallest >= RECORD_BYTES else 1
        if smallest != self._awaited:
            self._awaited = smallest
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, smallest)

    # Sending

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0, /) -> int:
        """Encrypt and send; return the number of bytes sent. Raises BlockingIOError if none could be sent, OSError."""
        if self._begun:
            return self._go_on()
        if flags & socket.MSG_MORE and len(self._held) + len(data) < RECORD_BYTES:
            self._held += bytes(data)
            return len(data)
        view, sent = memoryview(data), 0
        while sent < len(view) and sent < TURN_BYTES:
            piece = view[sent : sent + CHUNK_BYTES]
            if not self._write(b"".join((self._held, piece)) if self._held else piece, len(piece)):
                break
            sent += len(piece)
        if not sent:
            raise BlockingIOError
        return sent

    def send_slice(self, file: RetainedFile, position: int, count: int, /) -> int:
        """Read bytes of a file from the page cache, encrypt and send them; return their number.

        Raises BlockingIOError, OSError, SliceCutShortError, ColdSliceError.
        """
        if self._begun:
            return self._go_on()
        sent, count = 0, min(count, TURN_BYTES)
        try:
            while sent < count:
                chunk, size = self._chunk_of(file, position + sent, count - sent)
                if not self._write(chunk, size):
                    break
                sent += size
        except ColdSliceError:
            if not sent:
                raise
            return sent
        if not sent:
            raise BlockingIOError
        return sent

    def send_cold(self, file: RetainedFile, position: int, count: int, /) -> int:
        """Read bytes of a file into the page cache, so that ``send_slice`` can go on; return 0, as none is sent here.

        Any thread. Raises OSError, SliceCutShortError.
        """
        end = position + min(count, TURN_BYTES)
        buffer = bytearray(CHUNK_BYTES)
        while position < end:
            read = os.preadv(file.fileno(), [buffer], position)
            if not read:
                raise SliceCutShortError(f"the file has no bytes at position {position}")
            position += read
        return 0

    def _chunk_of(self, file: RetainedFile, position: int, count: int) -> tuple[memoryview, int]:
        """Return the next chunk, held bytes followed by bytes of the file, and the number of bytes of the file.

        Raises ColdSliceError, SliceCutShortError, OSError.
        """
        held, scratch = len(self._held), self._scratch
        scratch[:held] = self._held
        room = scratch[held : min(held + count, CHUNK_BYTES)]
        read = read_cached(file.fileno(), room, position)
        if not read:
            raise SliceCutShortError(f"the file has no bytes at position {position}")
        return scratch[: held + read], read

    def _write(self, chunk: bytes | memoryview, owed: int) -> bool:
        """Do one SSL_write; return False if the socket did not accept all, and keep the chunk then. Raises OSError."""
        if self._offer(chunk):
            self._held = b""
            return True
        self._begun, self._owed, self._held = bytes(chunk), owed, b""
        return False

    def _go_on(self) -> int:
        """Offer the begun chunk to OpenSSL again; return the number of bytes to report. Raises BlockingIOError,
        OSError.
        """
        if not self._offer(self._begun):
            raise BlockingIOError
        owed, self._begun, self._owed = self._owed, b"", 0
        return owed

    def _offer(self, chunk: bytes | memoryview) -> bool:
        try:
            self._sock.send(chunk)
        except ssl.SSLWantWriteError:
            return False
        except ssl.SSLWantReadError:
            self._write_needs_bytes = True
            self._watch()
            return False
        return True

    # Readiness

    def add_reader(self, loop: AbstractEventLoop, callback: Callable[[], None], /) -> None:
        """Call ``callback`` whenever there is something to receive, even if it is decrypted already."""
        self._loop, self._on_readable = loop, callback
        self._watch()
        if self._ended or self._sock.pending():
            self._schedule_read()

    def remove_reader(self, loop: AbstractEventLoop, /) -> None:
        """Stop the calls that ``add_reader`` began."""
        self._on_readable = None
        self._watch()

    def add_writer(self, loop: AbstractEventLoop, callback: Callable[[], None], /) -> None:
        """Call ``callback`` whenever more can be sent."""
        self._loop, self._on_writable = loop, callback
        self._watch()

    def remove_writer(self, loop: AbstractEventLoop, /) -> None:
        """Stop the calls that ``add_writer`` began."""
        self._on_writable = None
        self._watch()

    def _watch(self) -> None:
        """Let the loop watch the socket as needed: a write may need bytes to read, and a read may need room to
        write.
        """
        loop = self._loop
        if loop is None:
            return
        reads = self._on_readable is not None or self._write_needs_bytes
        writes = self._read_needs_room or (self._on_writable is not None and not self._write_needs_bytes)
        if reads != self._watches_read:
            self._watches_read = reads
            loop.add_reader(self.fileno(), self._handle_readable) if reads else loop.remove_reader(self.fileno())
        if writes != self._watches_write:
            self._watches_write = writes
            loop.add_writer(self.fileno(), self._handle_writable) if writes else loop.remove_writer(self.fileno())

    def _handle_readable(self) -> None:
        if self._write_needs_bytes:
            self._write_needs_bytes = False
            self._watch()
            if self._on_writable is not None:
                self._on_writable()
        if self._on_readable is not None:
            self._on_readable()

    def _handle_writable(self) -> None:
        if self._read_needs_room:
            self._read_needs_room = False
            self._watch()
            if self._on_readable is not None:
                self._on_readable()
        elif self._on_writable is not None:
            self._on_writable()

    def _schedule_read(self) -> None:
        """Queue another read, as no event reports bytes that OpenSSL has already."""
        if self._loop is not None and self._on_readable is not None and not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._read_scheduled = False
        if self._on_readable is not None:
            self._on_readable()

    # The end

    def close(self) -> None:
        """Send TLS's close_notify if that needs no waiting, and close."""
        self._on_readable = self._on_writable = None
        self._read_needs_room = self._write_needs_bytes = False
        self._watch()
        if not self._begun:
            with contextlib.suppress(OSError, ValueError):
                self._sock.unwrap()
        self._sock.close()


def is_one_frame(view: memoryview, count: int) -> bool:
    """Return whether these bytes are exactly one frame."""
    size: int = _unpack_length(view)[0] if count >= 4 else -1
    return size + 4 == count


def read_cached(descriptor: int, room: memoryview, position: int) -> int:
    """Read from the page cache into ``room``; return the number of bytes. A file system without RWF_NOWAIT may wait for
    the disk. Raises ColdSliceError, OSError.
    """
    try:
        return os.preadv(descriptor, [room], position, os.RWF_NOWAIT)
    except BlockingIOError as error:
        raise ColdSliceError from error
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return os.preadv(descriptor, [room], position)
