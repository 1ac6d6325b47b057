"""Checks of requests to an HTTP interface, made before any page sees them.

A request must be meant for this broker, must not come from another site's web page, must be small, and must arrive in
time. If logins are configured (``tidelog.broker.admin.login.logins``), it must identify its sender, who must be allowed
to make it. The permission is checked last: it may be revoked while the body arrives, which may take ten seconds.

A web page in an operator's browser can send requests to this broker, and read the answers by DNS rebinding. But the
page cannot choose the ``Host``, ``Origin`` and ``Sec-Fetch-Site`` that the browser sends. A GET without ``Origin``, as
of a link, may come from another site: the page there cannot read the answer. Programs such as curl send no ``Origin``
and no ``Sec-Fetch-Site``: of the three, only their ``Host`` is checked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

from aiohttp import web

from tidelog.broker.admin.connections import Activity, Connections
from tidelog.broker.config.keys.admin import ADMIN_ALLOWED_HOSTS, ADMIN_LISTENER

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

    from tidelog.broker.config.broker_config import BrokerConfig

MAX_BODY_BYTES = 64 * 1024
REQUEST_TIMEOUT_S = 10.0
"""Time in which a request's header must be complete; its body has the same time after the login is checked."""
KEEPALIVE_S = 75.0
"""How long a connection may wait for its next request."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{1,5})?")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OWN_SITES = frozenset({"same-origin", "none"})
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Referrer-Policy": "no-referrer",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Hosts:
    """The host names and addresses that requests may use for this broker."""

    def __init__(self, config: BrokerConfig, listener: str = ADMIN_LISTENER) -> None:
        bound = config.get_str(listener).rpartition(":")[0].strip("[]").lower()
        advertised = [endpoint.host for endpoint in config.advertised_listeners.values()]
        given = ["localhost", bound, *advertised, *config.get_list(ADMIN_ALLOWED_HOSTS)]
        self._names = {name.lower() for name in given if name}
        self._is_any_address = bound in ("", "0.0.0.0", "::")

    def has(self, header: str) -> bool:
        """Return whether a ``Host`` header names this broker. Its port is ignored."""
        found = _HOST.fullmatch(header.lower())
        if found is None:
            return False
        name = found[1].rstrip(".")
        try:
            address = ip_address(name.strip("[]"))
        except ValueError:
            return name in self._names
        if address.is_unspecified:
            return False
        # DNS rebinding needs a name, so an address is safe; a listener on all addresses accepts any of them.
        return address.is_loopback or self._is_any_address or str(address) in self._names


def refuse_nothing(_request: web.Request) -> None:
    """Return None: every sender may use every page."""


def make_guard(
    hosts: Hosts,
    check_caller: Callable[[web.Request], Awaitable[web.Response | None]],
    max_body_bytes: int = MAX_BODY_BYTES,
    *,
    check_page: Callable[[web.Request], web.Response | None] = refuse_nothing,
) -> Middleware:
    """Make the middleware that refuses requests or passes them to their handlers. ``check_caller`` checks the sender,
    then the body is received, then ``check_page`` checks whether the sender may use the page. Each check returns the
    refusal or None."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        clock = request.transport.get_protocol() if request.transport is not None else None
        if isinstance(clock, RequestClock):
            clock.stop()
        try:
            refusal = refuse_sender(request, hosts) or await check_caller(request)
            refusal = refusal or await refuse_body(request, max_body_bytes) or check_page(request)
            if refusal is not None:
                return refusal
            if isinstance(clock, RequestClock):
                clock.begin_answer()
            return await handler(request)
        finally:
            if isinstance(clock, RequestClock):
                clock.expect_next()

    return guard


def refuse_sender(request: web.Request, hosts: Hosts) -> web.Response | None:
    """Return the refusal of a request that is not meant for this broker or comes from another site's page, or None."""
    names = request.headers.getall("Host", [])
    is_old = request.version < (1, 1) and not names  # no browser speaks HTTP/1.0
    if not is_old and (len(names) != 1 or not hosts.has(names[0])):
        host = ", ".join(names) or "missing"
        return refusal(421, f"the Host header is {host}, not a name of this broker; {ADMIN_ALLOWED_HOSTS} adds names")
    own = names[0].lower() if names else ""
    for origin in request.headers.getall("Origin", []):
        if origin.lower() not in (f"http://{own}", f"https://{own}"):
            return refusal(403, "the request comes from another origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if request.method not in _SAFE_METHODS and site not in _OWN_SITES:
        return refusal(403, "the request comes from another site")
    return None


async def refuse_body(request: web.Request, max_bytes: int = MAX_BODY_BYTES) -> web.Response | None:
    """Return the refusal of a request whose body is too large or too slow, or None."""
    too_large = f"the body is larger than {max_bytes} bytes"
    if (request.content_length or 0) > max_bytes:
        return refusal(413, too_large)
    if request.can_read_body:
        try:
            body = await asyncio.wait_for(request.read(), REQUEST_TIMEOUT_S)
            return refusal(413, too_large) if len(body) > max_bytes else None
        except web.HTTPRequestEntityTooLarge:
            return refusal(413, too_large)
        except TimeoutError:
            return refusal(408, "the body did not come in time")
    return None


def refusal(status: int, reason: str) -> web.Response:
    """Build an error response in JSON, after which the connection closes."""
    response = web.json_response({"error": reason}, status=status)
    response.force_close()
    return response


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers for browsers, which every response has."""
    response.headers.update(_HEADERS)


class RequestClock(asyncio.Protocol):
    """Passes all events to aiohttp's protocol, and closes a connection whose request header is not complete in time.

    The time runs from the accept (with TLS from the end of the handshake), and for later requests from their first
    bytes: aiohttp itself has no limit. A kept connection is closed ``KEEPALIVE_S`` after its last answer at the latest,
    unless the next header is complete.
    """

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_new = True
        self._is_handled = False
        """Whether a request is being checked or answered."""
        self._is_answered = False
        """Whether a request has passed the checks and is being answered."""
        self._is_stuck = False

    @property
    def activity(self) -> Activity:
        """The current activity of the connection."""
        if self._is_stuck:
            return Activity.STUCK
        return Activity.BUSY if self._is_answered else Activity.NEW if self._is_new else Activity.IDLE

    def abort(self) -> None:
        """Close the connection at once, without sending what is buffered."""
        if self._transport is not None:
            self._transport.abort()

    def _close_in(self, seconds: float) -> None:
        """Set the timer that closes the connection, unless it is set to an earlier time."""
        loop = asyncio.get_running_loop()
        if self._transport is None or (self._timer is not None and self._timer.when() <= loop.time() + seconds):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._transport.close)

    def stop(self) -> None:
        """Stop the timer: the header is complete. Until the request has passed the checks, the connection counts as
        new.
        """
        self._is_handled = self._is_new = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin_answer(self) -> None:
        """Note that the request has passed all checks: its handler runs."""
        self._is_answered, self._is_new = True, False

    def expect_next(self) -> None:
        """Note that the request is answered, and set the timer for the next one."""
        self._is_handled = self._is_answered = False
        self._close_in(KEEPALIVE_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._close_in(REQUEST_TIMEOUT_S)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_handled:
            self._close_in(REQUEST_TIMEOUT_S)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop()
        self._transport = None
        self._connections.remove(self)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_stuck = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_stuck = False
        self._inner.resume_writing()
