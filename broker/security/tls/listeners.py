"""The TLS listeners of a broker: each with its present context, and the handshakes of all of them."""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping

from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.security.tls.handshakes import Handshakes, OnReady
from tidelog.broker.security.tls.listener import TlsListener


class TlsListeners:
    """All listeners that encrypt. Loop thread only."""

    def __init__(
        self, names: Iterable[str], texts: Callable[[], Mapping[str, str]], loop: AbstractEventLoop, timers: TimerQueue
    ) -> None:
        """``texts`` returns the configuration as it is at the time. Raises ConfigError."""
        self._listeners = {name: TlsListener(name, texts()) for name in names}
        self.handshakes = Handshakes(loop, timers)

    def begin(
        self, sock: socket.socket, name: str, host: str, *, on_ready: OnReady, on_failed: Callable[[], None]
    ) -> None:
        """Take over a new connection of a listener; give it back encrypted, or close it and say so."""
        self.handshakes.begin(sock, self._listeners[name], host, on_ready=on_ready, on_failed=on_failed)
