"""Context of one request and of its connection: client, API, version, throttling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.broker.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from tidelog.broker.security.authorization.grants import FetchGuard, Grants


UNKNOWN_SOFTWARE = ("unknown", "unknown")
"""Name and version of the library of a client that gives none, as in Apache Kafka."""


class RequestContext:
    """Client of a connection, and header of its request in progress. There is one context per connection.

    The fields of the request are valid until its response is queued, because a connection has one request in flight.
    Several produce requests may be in flight once their records are in the log: their answers need the connection's
    fields alone.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "client_port",
        "client_software",
        "correlation_id",
        "fetch_guard",
        "frame_bytes",
        "grants",
        "listener_name",
        "local_host",
        "local_port",
        "on_close",
        "owns_frame",
        "principal",
        "raw_client_id",
        "throttle_ms",
        "token_authenticated",
        "withdraw",
    )

    def __init__(
        self,
        *,
        client_host: str = "127.0.0.1",
        client_port: int = 0,
        local_host: str = "127.0.0.1",
        local_port: int = 9092,
        listener_name: str = "PLAINTEXT",
    ) -> None:
        self.api_key = -1
        self.api_version = -1
        self.correlation_id = -1
        self.client_id: str | None = None
        self.raw_client_id = b""
        """Length and bytes of ``client_id``, as the last request had them."""
        self.frame_bytes = 0
        """Number of the request's bytes, without its length prefix."""
        self.owns_frame = False
        """Whether the request's bytes stay valid after the turn in which it came."""
        self.throttle_ms = 0
        """Time for which the connection is muted after the answer, as its client is over a quota (``throttling``)."""
        self.on_close: Callable[[], object] | None = None
        """Called when the connection closes, for example to end its share session."""
        self.withdraw: Callable[[], Any] | None = None
        """Releases the records that a share fetch has acquired, and returns the response that a client over its quota
        gets instead."""
        self.listener_name = listener_name
        self.client_host = client_host
        self.client_port = client_port
        self.client_software = UNKNOWN_SOFTWARE
        """Name and version of the client's library, as its ApiVersions gave them (KIP-511)."""
        self.local_host = local_host
        self.local_port = local_port
        self.principal = ANONYMOUS
        self.grants: Grants | None = None
        """The authorizer's decisions about this client so far."""
        self.fetch_guard: FetchGuard | None = None
        """The authorizer's check of this client's fetches."""
        self.token_authenticated = False
        """Whether the client logged in with a delegation token: requests about tokens are refused to such a client."""
