"""The listening socket of an HTTP interface, with time limits, a limit of connections, and TLS.

The interface is the admin interface or the schema registry. ``RequestClock`` sets the time limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from aiohttp import web

from tidelog.broker.admin.connections import Connections
from tidelog.broker.admin.guard import REQUEST_TIMEOUT_S, RequestClock
from tidelog.broker.network.acceptor import OUT_OF_RESOURCES
from tidelog.broker.security.tls.listener import TlsListener

logger = logging.getLogger(__name__)

BACKLOG = 64
"""Largest number of clients that wait to be accepted, and of those that are accepted in one turn of the loop."""
MAX_HANDSHAKES = 100
"""Largest number of handshakes in progress; a further one ends the oldest."""
PAUSE_S = 1.0
"""Time after which clients are accepted again if no descriptor was left for one, as in asyncio's own server."""


class PlainSite(web.BaseSite):
    """The listening socket, without TLS."""

    def __init__(self, runner: web.AppRunner, listener: socket.socket, connections: Connections) -> None:
        super().__init__(runner)
        self._listener = listener
        self._connections = connections

    @property
    def name(self) -> str:
        """The address on which the socket listens."""
        return str(self._listener.getsockname())

    async def start(self) -> None:
        """Start serving."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self.protocol_factory(), sock=self._listener, backlog=BACKLOG
        )

    def protocol_factory(self) -> Callable[[], RequestClock]:
        """Return a function that makes the protocol of a connection."""
        make = self._runner.server
        assert make is not None
        return lambda: RequestClock(make(), self._connections)


class TlsSite(PlainSite):
    """The listening socket, whose connections begin with a TLS handshake."""

    def __init__(
        self, runner: web.AppRunner, listener: socket.socket, connections: Connections, tls: TlsListener
    ) -> None:
        super().__init__(runner, listener, connections)
        self._tls = tls
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._resume: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start serving."""
        await web.BaseSite.start(self)
        self._listen(self.protocol_factory())

    def _listen(self, make: Callable[[], RequestClock]) -> None:
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept, make)

    async def stop(self) -> None:
        """Close the listening socket, and end the handshakes."""
        if self._resume is not None:
            self._resume.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        tasks = list(self._handshakes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().stop()

    def _accept(self, make: Callable[[], RequestClock]) -> None:
        for _ in range(BACKLOG):
            try:
                client, _address = self._listener.accept()
            except BlockingIOError:  # no client waits
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    self._pause(make)
                    return
                continue  # this client gave up while it waited
            client.setblocking(False)
            if len(self._handshakes) >= MAX_HANDSHAKES:
                self._end_oldest()
            task = asyncio.get_running_loop().create_task(self._shake_hands(client, make))
            self._handshakes[task] = client
            task.add_done_callback(self._end)

    def _pause(self, make: Callable[[], RequestClock]) -> None:
        """Stop accepting for PAUSE_S: while clients wait in the backlog, the loop would call ``_accept`` all the
        time."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self._resume = loop.call_later(PAUSE_S, self._listen, make)

    def _end_oldest(self) -> None:
        oldest = next(iter(self._handshakes))
        self._end(oldest)
        oldest.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _shake_hands(self, client: socket.socket, make: Callable[[], RequestClock]) -> None:
        is_done = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make, client, ssl=self._tls.context, ssl_handshake_timeout=REQUEST_TIMEOUT_S, ssl_shutdown_timeout=1.0
            )
            is_done = True
        except OSError as error:  # SSLError is one
            logger.info("closing an HTTP connection: TLS handshake failed (%s)", getattr(error, "reason", error))
        finally:
            if not is_done:
                client.close()
