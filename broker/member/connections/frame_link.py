"""Protocol of one connection to another node: it sends the frame of a request, and receives that of its answer.

    idle --exchange--> receives the length --4 bytes--> receives the frame --all its bytes--> idle

Each answer is received into a buffer of its own, and its records are used from there. A follower that catches up
receives gigabytes this way, for half the CPU time of a stream that copies answers out of its buffer. The buffer begins
with FIRST_BYTES and grows to at most twice the bytes received, so a large length alone reserves no further memory.
Bytes without a request, and a frame that is too long or too short, close the connection.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

MAX_RESPONSE_BYTES = 128 * 1024 * 1024
"""Largest answer without records. The first four bytes of another service, such as ``HTTP``, are a larger number."""
MAX_FRAME_BYTES = 2**31 - 1
"""Largest frame of the protocol."""
FIRST_BYTES = 1024 * 1024
"""First size of an answer's buffer, unless the answer is shorter."""

_LENGTH = struct.Struct(">i")


class FrameLink(asyncio.BufferedProtocol):
    """One connection, one request at a time. Loop thread only."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytearray] | None = None
        self._failure: Exception | None = None
        self._length = bytearray(_LENGTH.size)
        self._frame: bytearray | None = None
        """Buffer of the answer, once its length is known."""
        self._size = 0
        """Size in bytes of what is being received: the answer's length, or the answer."""
        self._max_size = MAX_RESPONSE_BYTES
        """Largest size of the answer that is waited for."""
        self._received = 0
        self._expect_length()

    async def exchange(self, request: bytes, max_response_bytes: int = MAX_RESPONSE_BYTES) -> bytearray:
        """Send a request; return the frame of its answer. Both are without their length. Raises OSError.

        Cancellation closes the connection: a late answer would be taken for the next request's.
        """
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        assert self._answer is None
        self._answer, self._max_size = asyncio.get_running_loop().create_future(), max_response_bytes
        try:
            self._transport.write(_LENGTH.pack(len(request)) + request)
            return await self._answer
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._answer = None

    @property
    def is_closed(self) -> bool:
        """True once the connection is lost, or closed because of what the node sent."""
        return self._failure is not None

    def close(self) -> None:
        """Close the connection at once, even if a node that hangs has not read the rest of a request."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange under way, and those that come later."""
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory that receives the next bytes: the rest of the length, or of the answer's buffer."""
        if self._frame is None:
            return memoryview(self._length)[self._received :]
        if self._received == len(self._frame):
            self._frame += bytes(min(self._received, self._size - self._received))
        return memoryview(self._frame)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes; a complete length begins the answer, a complete answer ends the exchange."""
        self._received += nbytes
        if self._answer is None or self._answer.done():
            self._refuse("the node sent bytes that were not asked for")
        elif self._received == self._size:
            if self._frame is None:
                self._expect_frame(_LENGTH.unpack(self._length)[0])
            else:
                self._answer.set_result(self._frame)
                self._expect_length()

    def _expect_length(self) -> None:
        self._frame, self._size, self._received = None, _LENGTH.size, 0

    def _expect_frame(self, size: int) -> None:
        if not _LENGTH.size <= size <= self._max_size:  # an answer has at least a correlation id of four bytes
            self._refuse(f"a frame of {size} bytes: this is not a Kafka node")
            return
        self._frame, self._size, self._received = bytearray(min(size, FIRST_BYTES)), size, 0

    def _refuse(self, reason: str) -> None:
        """Close the connection because of what the node sent."""
        self._fail(ConnectionAbortedError(reason))
        self._received = 0  # get_buffer must have room for what the transport may still hold
        self.close()

    def _fail(self, failure: OSError) -> None:
        if self._failure is None:
            self._failure = failure
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._failure)
