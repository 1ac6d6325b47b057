"""The TLS listeners of a broker: each with its present context, and the handshakes of all of them.

Store files are looked at every ``ssl.store.refresh.ms``, and at SIGHUP read in any case. A store that cannot be used
changes nothing: it is logged, and the old one serves on.
"""

from __future__ import annotations

import logging
import socket
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial

from tidelog.broker.loop.timers import Timer, TimerQueue
from tidelog.broker.security.tls.handshakes import Handshakes, OnReady
from tidelog.broker.security.tls.listener import Prepared, TlsListener
from tidelog.protocol.config_def import ConfigError

logger = logging.getLogger(__name__)


class TlsListeners:
    """All listeners that encrypt. Loop thread only."""

    def __init__(
        self,
        names: Iterable[str],
        texts: Mapping[str, str],
        loop: AbstractEventLoop,
        timers: TimerQueue,
        executor: Executor,
    ) -> None:
        """Raises ConfigError."""
        self._loop = loop
        self._timers = timers
        self._executor = executor
        self._listeners = {name: TlsListener(name, texts) for name in names}
        self._reading: set[str] = set()
        self._timers_of_looks: dict[str, Timer] = {}
        self.handshakes = Handshakes(loop, timers)
        for listener in self._listeners.values():
            self._schedule_look(listener)

    def begin(
        self, sock: socket.socket, name: str, host: str, *, on_ready: OnReady, on_failed: Callable[[], None]
    ) -> None:
        """Take over a new connection of a listener; give it back encrypted, or close it and say so."""
        self.handshakes.begin(sock, self._listeners[name], host, on_ready=on_ready, on_failed=on_failed)

    def listener(self, name: str) -> TlsListener:
        """The listener of this name."""
        return self._listeners[name]

    def reload(self) -> None:
        """Read all stores again, changed or not."""
        for listener in self._listeners.values():
            self._read(listener, even_if_unchanged=True)

    def close(self) -> None:
        """End handshakes and looks."""
        for timer in self._timers_of_looks.values():
            timer.cancel()
        self.handshakes.close()

    def _schedule_look(self, listener: TlsListener) -> None:
        interval_ms = listener.values["ssl.store.refresh.ms"]
        if interval_ms:
            look = partial(self._look, listener)
            self._timers_of_looks[listener.name] = self._timers.schedule(interval_ms, look)

    def _look(self, listener: TlsListener) -> None:
        self._read(listener, even_if_unchanged=False)
        self._schedule_look(listener)

    def _read(self, listener: TlsListener, *, even_if_unchanged: bool) -> None:
        """Have a thread read a listener's stores, one reading at a time."""
        if listener.name in self._reading:
            return
        self._reading.add(listener.name)
        work = partial(listener.prepare_again, even_if_unchanged=even_if_unchanged)
        self._loop.run_in_executor(self._executor, work).add_done_callback(partial(self._take, listener))

    def _take(self, listener: TlsListener, future: Future[Prepared | None]) -> None:
        self._reading.discard(listener.name)
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, ConfigError):
            logger.error("listener %s keeps its certificate: %s", listener.name, error)
        elif error is not None:
            logger.error("listener %s keeps its certificate", listener.name, exc_info=error)
        elif (found := future.result()) is not None:
            listener.prepared = found
            logger.info("listener %s has a new certificate: %s", listener.name, found.identity.subject)
