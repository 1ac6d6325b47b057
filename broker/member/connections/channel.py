"""One connection of a member to another node, one request at a time; opened when it is needed.

    TLS handshake, where the listener encrypts -> ApiVersions -> login, where it authenticates -> requests

A request that gets no answer in time closes the connection: its answer must not be taken for the next one's. All steps
before the requests together have the time limit of one request. If the node ends sessions
(``connections.max.reauth.ms``), the first request after SESSION_SHARE of a session's lifetime opens a new connection.
Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections.abc import Coroutine, Generator, Iterator
from math import inf
from typing import Any, NamedTuple, TypeVar

from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member.connections.frame_link import MAX_FRAME_BYTES, MAX_RESPONSE_BYTES, FrameLink
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.security.sasl.client.exchange import NONCE_BYTES, Credentials, begin_exchange
from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import InvalidRequestError, SaslAuthenticationFailedError, error_for_code
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.schema.fields import Message

CLIENT_ID = b"tidelog-member"
API_VERSIONS_VERSION = 4
NEWEST = 2**15 - 1
SASL_HANDSHAKE_VERSION = 1
SASL_AUTHENTICATE_VERSION = 2
SESSION_SHARE = 0.9
"""The share of a session's lifetime after which a new session is begun; in Kafka's clients 0.85 to 0.95."""

Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")
_CORRELATION_ID = struct.Struct(">i")


class ChannelError(Exception):
    """The node cannot be reached, does not answer in time, or does not serve the request."""


class _Connection(NamedTuple):
    """An open connection, and the lowest and highest version of each API that its node serves."""

    link: FrameLink
    served: dict[int, tuple[int, int]]


class Channel:
    """A connection to the node that was asked last."""

    def __init__(self, timeout_s: float, security: PeerSecurity) -> None:
        self._timeout_s = timeout_s
        self._security = security
        self._expires_s = inf
        self._asked: Address | None = None
        self._limit: asyncio.Timeout | None = None
        """Timeout of the connection attempt or request under way."""
        self._address: Address | None = None
        self._connection: _Connection | None = None
        self._correlation_id = 0
        self.last_served: dict[int, tuple[int, int]] = {}
        """Lowest and highest version of each API on the node of the last connection; empty before the first one."""

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.link.close()
        self._connection = self._address = None

    async def ask(
        self, address: Address, request: Message, response_type: type[Response], highest: int = NEWEST
    ) -> Response:
        """Ask a node in the newest version up to ``highest`` that both sides know. Raises ChannelError."""
        with self._close_on_failure(address):
            connection = await self._run_in_time(self._connect(address))
            version = self._version(address, request, connection.served, highest)
            return await self._run_in_time(self._exchange(connection, request, response_type, version))

    def turn_to(self, address: Address) -> None:
        """Let a request to any other node fail now, so that its sender can ask this one."""
        if self._limit is not None and self._asked != address and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @contextlib.contextmanager
    def _close_on_failure(self, address: Address) -> Iterator[None]:
        """Close the connection after a failure, and raise it as ChannelError."""
        self._asked = address
        try:
            yield
        except (
            OSError,
            TimeoutError,
            InvalidRequestError,
            RuntimeError,
        ) as error:  # RuntimeError: no thread can be started
            self.close()
            raise ChannelError(f"{address}: {str(error) or type(error).__name__}") from error
        except (ChannelError, asyncio.CancelledError):
            self.close()
            raise

    async def _run_in_time(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await ``work``. Raises TimeoutError after the channel's timeout, or when ``turn_to`` names another node."""
        try:
            async with asyncio.timeout(self._timeout_s) as self._limit:
                return await work
        finally:
            self._limit = None

    async def _connect(self, address: Address) -> _Connection:
        """Return the connection to a node. A new one is opened and logged in if none is open, if the open one is to
        another node, or if its session ends soon.
        """
        now_s, former = asyncio.get_running_loop().time(), self._connection
        is_open = former is not None and not former.link.is_closed
        if former is not None and is_open and self._address == address and now_s < self._expires_s:
            return former
        self.close()
        connection = _Connection(await self._security.connect(address), {})
        self._connection, self._address = connection, address
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version="1")
        answer = await self._exchange(connection, request, ApiVersionsResponse, API_VERSIONS_VERSION)
        if answer.error_code:
            raise ChannelError(f"{address} refuses ApiVersions: error {answer.error_code}")
        connection.served.update({one.api_key: (one.min_version, one.max_version) for one in answer.api_keys})
        self.last_served = connection.served
        credentials = self._security.credentials
        lifetime_ms = 0 if credentials is None else await self._log_in(connection, address, credentials)
        self._expires_s = now_s + SESSION_SHARE * lifetime_ms / 1000 if lifetime_ms else inf
        return connection

    async def _log_in(self, connection: _Connection, address: Address, credentials: Credentials) -> int:
        """Log in; return the session's lifetime in ms, 0 if it has no end. Raises ChannelError, OSError,
        InvalidRequestError, RuntimeError.
        """
        chosen = SaslHandshakeRequest(mechanism=credentials.mechanism)
        offer = await self._exchange(connection, chosen, SaslHandshakeResponse, SASL_HANDSHAKE_VERSION)
        if offer.error_code:
            raise ChannelError(
                f"{address} does not accept {credentials.mechanism}; it accepts {', '.join(offer.mechanisms)}"
            )
        exchange = begin_exchange(credentials, secrets.token_urlsafe(NONCE_BYTES))
        token: bytes | None = next(exchange)
        lifetime_ms = 0
        while token is not None:
            request = SaslAuthenticateRequest(auth_bytes=token)
            answer = await self._exchange(connection, request, SaslAuthenticateResponse, SASL_AUTHENTICATE_VERSION)
            if answer.error_code:
                reason = answer.error_message or error_for_code(answer.error_code).default_message
                raise ChannelError(f"{address} refuses the login of {credentials.user}: {' '.join(reason.split())}")
            lifetime_ms = answer.session_lifetime_ms
            step = asyncio.get_running_loop().run_in_executor(None, next_token, exchange, bytes(answer.auth_bytes))
            try:
                token = await step
            except SaslAuthenticationFailedError as error:
                raise ChannelError(f"{address}, login of {credentials.user}: {error.message}") from error
        return lifetime_ms

    def _version(
        self, address: Address, request: Message, served: dict[int, tuple[int, int]], wanted: int = NEWEST
    ) -> int:
        lowest, highest = served.get(request.API_KEY, (0, -1))
        version = min(highest, request.VERSIONS.highest, wanted)
        if version < max(lowest, request.VERSIONS.lowest):
            raise ChannelError(f"{address} serves no version of {ApiKey(request.API_KEY).name} that this node knows")
        return version

    async def _exchange(
        self, connection: _Connection, request: Message, response_type: type[Response], version: int
    ) -> Response:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        api_key = ApiKey(request.API_KEY)
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(CLIENT_ID)) + CLIENT_ID
        if request_header_version(api_key, version) >= 2:
            header += b"\0"
        body = request.encode(version)
        # An answer with records may be as long as a frame: ``replica.fetch.response.max.bytes`` is set by the user, and
        # a leader exceeds it for a first batch that is larger.
        longest = MAX_FRAME_BYTES if api_key == ApiKey.FETCH else MAX_RESPONSE_BYTES
        frame = memoryview(await connection.link.exchange(header + body, longest))
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise ChannelError(f"request {correlation_id} was answered instead of {self._correlation_id}")
        return response_type.decode(frame[5 if response_header_version(api_key, version) else 4 :], version)


def next_token(exchange: Generator[bytes, bytes, None], token: bytes) -> bytes | None:
    """Return the answer to a server's token, None after the last token. Call it in a thread: SCRAM takes milliseconds.

    Raises SaslAuthenticationFailedError.
    """
    try:
        return exchange.send(token)
    except StopIteration:
        return None
