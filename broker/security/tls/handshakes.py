"""Handshakes of all TLS listeners: OpenSSL works in one thread, waiting for clients happens on the loop.

    waiting --first byte is a handshake's--> in thread --must read or write--> waiting --...--> done: ``on_ready``
       |    --any other byte: not TLS-----> failed     --refused by either side--> failed
       '--------------- the deadline -----> failed

A handshake takes up to 2 ms of processor time. OpenSSL's calls release the interpreter lock, so in a thread it delays
the other connections little. For the thread's Python code the switch interval is 0.5 ms, in place of the usual 5. As
there is one thread, handshakes queue, and the acceptor pauses while too many do (``is_full``). Handshakes that wait for
their clients delay no others. If too many handshakes are under way, of one address or in all, the oldest that waits for
its client is closed. Either the loop or the thread uses a socket, never both. Loop thread only, except
``_Handshake.step``.
"""

from __future__ import annotations

import logging
import socket
import ssl
from asyncio import AbstractEventLoop, Future
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial

from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.security.client_address import source_of
from tidelog.broker.security.principal import ANONYMOUS, Principal
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.broker.security.tls.principal_rules import NoRuleMatchesError
from tidelog.broker.security.tls.subject_names import MalformedCertificateError
from tidelog.broker.security.tls.tls_socket import CHUNK_BYTES, TlsSocket
from tidelog.log.records.quiet_import import shorten_switch_interval

logger = logging.getLogger(__name__)

CLOSE_DELAY_MS = 100
"""Delay in ms between a refusal and the end of its connection. If the connection were closed at once, with unread
bytes, the kernel would reset it, and the client could not read the alert that says why. It is Kafka's default of
``connection.failed.authentication.delay.ms``.
"""
MAX_HANDSHAKES, MAX_PER_HOST = 1024, 256
"""Largest numbers of handshakes under way, in all and of one address: of one /64 network for IPv6 (``source_of``)."""
DEADLINE_MS = 10_000
"""Longest time of a handshake."""
_HANDSHAKE = 0x16
"""First byte of a TLS record of a handshake."""

OnReady = Callable[[TlsSocket, Principal], object]


class Step(Enum):
    """Result of one step of a handshake."""

    DONE = 0
    WANTS_BYTES = 1
    """It continues when the client has sent more."""
    WANTS_ROOM = 2
    """It continues when the socket's send buffer has room."""


class HandshakeError(Exception):
    """A failed handshake; the text says why, and may be logged."""


class Handshakes:
    """All handshakes that are under way."""

    def __init__(self, loop: AbstractEventLoop, timers: TimerQueue) -> None:
        self.loop = loop
        self.timers = timers
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="tls-handshake")
        shorten_switch_interval()
        self.scratch = memoryview(bytearray(CHUNK_BYTES))
        self.in_thread = 0
        """Number of handshakes that wait for the thread, or are in it."""
        self._under_way: dict[_Handshake, None] = {}
        self._per_host: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        """Return whether new clients have to wait in the backlog, as the thread has enough to do."""
        return self.in_thread >= MAX_HANDSHAKES

    def begin(
        self, sock: socket.socket, listener: TlsListener, host: str, *, on_ready: OnReady, on_failed: Callable[[], None]
    ) -> None:
        """Take over a new connection. ``on_ready`` gets its encrypted socket; if the handshake fails, the connection is
        closed and ``on_failed`` is called.
        """
        handshake = _Handshake(self, sock, listener, host, on_ready, on_failed)
        self._under_way[handshake] = None
        self._per_host[handshake.source] += 1
        handshake.wait(Step.WANTS_BYTES)
        if self._per_host[handshake.source] > MAX_PER_HOST:
            self._close_oldest(lambda one: one.source == handshake.source)
        elif len(self._under_way) > MAX_HANDSHAKES:
            self.make_room()

    def end(self, handshake: _Handshake) -> bool:
        """Remove a handshake that has ended; return whether it was under way."""
        if self._under_way.pop(handshake, self) is not None:
            return False
        self._per_host[handshake.source] -= 1
        if not self._per_host[handshake.source]:
            del self._per_host[handshake.source]
        return True

    def make_room(self) -> bool:
        """Close the oldest handshake that waits for its client; return whether there was one."""
        return self._close_oldest(lambda _: True)

    def _close_oldest(self, may_close: Callable[[_Handshake], bool]) -> bool:
        for handshake in self._under_way:
            if not handshake.in_thread and may_close(handshake):
                handshake.abort("too many handshakes are under way")
                return True
        return False

    def close(self) -> None:
        """Close all handshakes, and the thread."""
        for handshake in list(self._under_way):
            handshake.abort("the broker stops")
        self.executor.shutdown(wait=False, cancel_futures=True)


class _Handshake:
    """One client's handshake."""

    def __init__(
        self,
        handshakes: Handshakes,
        sock: socket.socket,
        listener: TlsListener,
        host: str,
        on_ready: OnReady,
        on_failed: Callable[[], None],
    ) -> None:
        self._handshakes = handshakes
        self._sock = sock
        self._listener = listener
        self.host = host
        self.source = source_of(host)
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._tls: ssl.SSLSocket | None = None
        self._principal = ANONYMOUS
        self.in_thread = self._ended = False
        self._waits_for: Step | None = None
        self._deadline = handshakes.timers.schedule(
            DEADLINE_MS, partial(self.fail, f"no handshake within {DEADLINE_MS} ms")
        )

    def wait(self, wanted: Step) -> None:
        """Wait until the socket can be read or written, as OpenSSL wants it."""
        self._waits_for = wanted
        loop, descriptor = self._handshakes.loop, self._sock.fileno()
        if wanted is Step.WANTS_BYTES:
            loop.add_reader(descriptor, self._on_event)
        else:
            loop.add_writer(descriptor, self._on_event)

    def _stop_waiting(self) -> None:
        loop, descriptor = self._handshakes.loop, self._sock.fileno()
        if self._waits_for is Step.WANTS_BYTES:
            loop.remove_reader(descriptor)
        elif self._waits_for is Step.WANTS_ROOM:
            loop.remove_writer(descriptor)
        self._waits_for = None

    def _on_event(self) -> None:
        self._stop_waiting()
        if self._tls is None:
            try:
                first = self._sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                self.wait(Step.WANTS_BYTES)
                return
            except OSError:
                first = b""
            if not first:
                self.abort("the client disconnected before its TLS handshake")
                return
            if first[0] != _HANDSHAKE:
                self.fail(f"it does not speak TLS, which listener {self._listener.name} asks for")
                return
        try:
            future = self._handshakes.loop.run_in_executor(self._handshakes.executor, self.step)
        except (MemoryError, RuntimeError) as error:
            self.abort(f"no thread can be started for its TLS handshake ({error})")
            return
        self.in_thread = True
        self._handshakes.in_thread += 1
        future.add_done_callback(self._on_step)

    def step(self) -> Step:
        """Continue the handshake as far as possible without waiting. Any thread. Raises HandshakeError."""
        try:
            if self._tls is None:
                self._tls = self._listener.context.wrap_socket(
                    self._sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
                )
                self._sock = self._tls
            self._tls.do_handshake()
            self._principal = self._listener.principal_of(self._tls.getpeercert(binary_form=True))
        except ssl.SSLWantReadError:
            return Step.WANTS_BYTES
        except ssl.SSLWantWriteError:
            return Step.WANTS_ROOM
        except ssl.SSLError as error:
            raise HandshakeError(f"TLS handshake failed ({error.reason or 'the client disconnected'})") from error
        except OSError as error:
            raise HandshakeError(f"TLS handshake failed ({error.strerror})") from error
        except (NoRuleMatchesError, MalformedCertificateError) as error:
            raise HandshakeError(str(error)) from error
        return Step.DONE

    def _on_step(self, future: Future[Step]) -> None:
        self.in_thread = False
        self._handshakes.in_thread -= 1
        if self._ended:
            self._close_failed()
            return
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.fail(str(error))
        elif not future.cancelled() and (wanted := future.result()) is not Step.DONE:
            self.wait(wanted)
        elif self._tls is not None:
            self._ended = True
            self._deadline.cancel()
            self._handshakes.end(self)
            self._on_ready(TlsSocket(self._tls, self._handshakes.scratch), self._principal)

    def fail(self, reason: str) -> None:
        """End the handshake, and log why. If TLS has begun, the connection is closed after CLOSE_DELAY_MS, so that the
        client can read the alert. A connection that the thread uses is closed when the thread has finished with it.
        """
        if self._ended:
            return
        logger.info("closing the connection of %s: %s", self.host, reason)
        self._stop_waiting()
        self._ended = True
        self._deadline.cancel()
        if self.in_thread:
            return
        if self._tls is None:
            self._close_failed()
        else:
            self._handshakes.timers.schedule(CLOSE_DELAY_MS, self._close_failed)

    def abort(self, reason: str) -> None:
        """End the handshake and close the connection now, or when the thread has finished with it."""
        self.fail(reason)
        if not self.in_thread:
            self._close_failed()

    def _close_failed(self) -> None:
        """Close the connection of a failed handshake, unless that was done."""
        if self._handshakes.end(self):
            self._sock.close()
            self._on_failed()
