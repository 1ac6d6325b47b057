"""The transport of a connection: a plain socket, or one that encrypts.

A connection receives, sends and waits for readiness through its transport alone. ``PlainSocket`` is the kernel's socket
and sends slices of files by ``sendfile``. No other code may call ``sendfile``: it would send plain bytes on an
encrypted connection. The other transport is ``security.tls.tls_socket``.
"""

from __future__ import annotations

import os
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Protocol

from tidelog.protocol.transferable import RetainedFile, SliceCutShortError

TURN_BYTES = 1024 * 1024
"""At most this much of a slice leaves in one turn of the loop, so that one client cannot block the loop."""
_TCP_CLOSE = 7
"""The state of a connection that was reset, in the first byte of Linux' ``tcp_info``."""


class Transport(Protocol):
    """Non-blocking byte stream of one client. Loop thread only, except ``send_cold``.

    Raises BlockingIOError when the call would wait, and OSError when the peer is gone.
    """

    turn_bytes: int
    """Bytes of slices that may leave in one turn of the loop."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive into the buffer, and return the number of bytes; 0 at the end of the stream."""
        ...

    def expect(self, missing: int, /) -> None:
        """Note how many bytes of a frame are missing: a transport may wait for more of them before it calls back."""
        ...

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0, /) -> int:
        """Send what can be sent now, and return the number of bytes; MSG_MORE in ``flags`` means that more follows at
        once."""
        ...

    def send_slice(self, file: RetainedFile, position: int, count: int, /) -> int:
        """Send bytes of a file that are in the page cache. Raises SliceCutShortError, ColdSliceError."""
        ...

    def send_cold(self, file: RetainedFile, position: int, count: int, /) -> int:
        """Wait in a worker thread for bytes that are not in the page cache, and send them if the transport can send in
        that thread. Returns the number of bytes sent, 0 if none. Raises SliceCutShortError."""
        ...

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        """Read an option of the socket."""
        ...

    def add_reader(self, loop: AbstractEventLoop, callback: Callable[[], None], /) -> None:
        """Call ``callback`` whenever there is something to receive."""
        ...

    def remove_reader(self, loop: AbstractEventLoop, /) -> None:
        """Remove the callback."""
        ...

    def add_writer(self, loop: AbstractEventLoop, callback: Callable[[], None], /) -> None:
        """Call ``callback`` whenever more can be sent."""
        ...

    def remove_writer(self, loop: AbstractEventLoop, /) -> None:
        """Remove the callback."""
        ...

    def close(self) -> None:
        """Close the socket."""
        ...


class PlainSocket(socket.socket):
    """The kernel's socket without encryption; takes over the descriptor of ``sock``."""

    __slots__ = ()
    turn_bytes = TURN_BYTES

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)

    def expect(self, missing: int, /) -> None:
        """Do nothing: without TLS a client's frames seldom come in many small pieces."""

    def send_slice(self, file: RetainedFile, position: int, count: int, /) -> int:
        """Send by ``sendfile``. Raises OSError, SliceCutShortError."""
        sent = os.sendfile(self.fileno(), file.fileno(), position, count)
        if not sent:
            raise SliceCutShortError(f"the file has no bytes at position {position}")
        return sent

    def send_cold(self, file: RetainedFile, position: int, count: int, /) -> int:
        """Send by ``sendfile``, which waits for the disk. Raises OSError, SliceCutShortError."""
        try:
            return self.send_slice(file, position, count)
        except BlockingIOError:
            return 0

    def add_reader(self, loop: AbstractEventLoop, callback: Callable[[], None], /) -> None:
        """Let the loop watch the descriptor."""
        loop.add_reader(self.fileno(), callback)

    def remove_reader(self, loop: AbstractEventLoop, /) -> None:
        """Let the loop stop watching the descriptor."""
        loop.remove_reader(self.fileno())

    def add_writer(self, loop: AbstractEventLoop, callback: Callable[[], None], /) -> None:
        """Let the loop watch the descriptor."""
        loop.add_writer(self.fileno(), callback)

    def remove_writer(self, loop: AbstractEventLoop, /) -> None:
        """Let the loop stop watching the descriptor."""
        loop.remove_writer(self.fileno())


def is_reset(sock: Transport) -> bool:
    """Return whether the kernel has closed this TCP connection. Costs 0.5 µs; never raises."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
    except OSError:
        return False  # not TCP
