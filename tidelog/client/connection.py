"""A small blocking client with one connection, for Tidelog's commands, its Spark pipeline and the broker for tests.

The console has subclasses without a socket (``tidelog.console.local_client``). Applications use a Kafka client of their
language.

The client asks the broker which versions it serves and uses the newest that both sides know. ``post`` sends without
waiting, so that several requests can be in flight; a broker answers in their order, and ``answer`` reads the responses
in that order.

With credentials each connection begins with a login. A session may have a limited lifetime (KIP-368): shortly before
its end, the next request that is sent while no other is in flight opens a new connection.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self, TypeVar

from tidelog.client.security import Security
from tidelog.client.wire import (
    CLIENT_ID,
    LENGTH,
    MAX_RESPONSE_BYTES,
    ClientError,
    SettingsError,
    Wire,
    explain_os_error,
)
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import UnsupportedVersionError
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schema.fields import EncodeError, Message

__all__ = ["CLIENT_ID", "MAX_RESPONSE_BYTES", "Client", "ClientError", "SettingsError", "parse_bootstrap"]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 10.0
PLAIN = Security({})
RENEWAL_AT = 0.85
"""Share of a session's lifetime after which a new session begins; Kafka's clients choose one from 0.85 to 0.95."""

_ADDRESS = re.compile(r"(?:[\w%.-]+://)?(?:\[([0-9a-f:.%\w-]+)\]|([\w%.-]+)):(\d{1,5})", re.ASCII | re.IGNORECASE)
"""An address. As in Kafka's clients a listener's name may precede it: ``SSL://host:9093``. IPv6 is in brackets."""

_Response = TypeVar("_Response", bound=Message)


def parse_bootstrap(text: str, option: str = "--bootstrap") -> tuple[str, int]:
    """Parse host and port of ``HOST:PORT``. Raises SettingsError, which names the option."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65536:
        raise SettingsError(f"{option} {text!r}: expected HOST:PORT with a port from 1 to 65535")
    return found[1] or found[2], int(found[3])


class Client:
    """A connection to one broker; a context manager. One thread at a time."""

    def __init__(
        self, bootstrap: str = DEFAULT_BOOTSTRAP, timeout_s: float = DEFAULT_TIMEOUT_S, security: Security = PLAIN
    ) -> None:
        """Connect and log in; ``timeout_s`` limits each wait, also later ones. Raises ClientError, KafkaError."""
        self.bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._security = security
        self._served: dict[int, tuple[int, int]] | None = None
        self._has_answered = False
        self.is_broken = False
        """True when an error or a signal interrupted a request or a response: the connection cannot be used any
        more."""
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @contextmanager
    def extend_timeout(self, timeout_s: float) -> Iterator[None]:
        """Wait up to ``timeout_s`` for answers inside ``with``, if that is longer than the client's own timeout."""
        own_s, self._timeout_s = self._timeout_s, max(timeout_s, self._timeout_s)
        try:
            self._socket.settimeout(self._timeout_s)
            yield
        finally:
            self._timeout_s = own_s
            with suppress(OSError):  # the connection was closed, and could not be opened again
                self._socket.settimeout(own_s)

    def _connect(self) -> None:
        """Open the connection and log in. Raises ClientError, KafkaError."""
        host, port = parse_bootstrap(self.bootstrap)
        try:
            self._socket = socket.create_connection((host, port), timeout=self._timeout_s)
        except OSError as error:
            raise ClientError(f"cannot connect to {self.bootstrap}: {explain_os_error(error)}") from error
        except UnicodeError as error:
            raise ClientError(f"cannot connect to {self.bootstrap}: not the name of a host") from error
        self._wire = Wire(self.bootstrap)
        self._has_answered = False
        self._renew_at: float | None = None
        try:
            self._secure(host)
            self._log_in()
        except BaseException:
            self.close()
            raise

    def _secure(self, host: str) -> None:
        """Do the TLS handshake, if the settings require TLS. Raises ClientError."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._security.secure(self._socket, host)
        except OSError as error:
            raise ClientError(f"cannot connect to {self.bootstrap}: {explain_os_error(error)}") from error

    def _log_in(self) -> None:
        """Log in, if the settings have credentials, and note when a new session must begin (``_renew_at``, by the
        monotonic clock; None: never). Raises ClientError, KafkaError."""
        if self._security.credentials is None:
            return
        from tidelog.client.sasl.login import log_in

        start = time.monotonic()
        lifetime_ms = log_in(self, self._security.credentials)
        if lifetime_ms > 0:
            self._renew_at = start + RENEWAL_AT * lifetime_ms / 1000

    def _renew_session(self) -> None:
        """Open a new connection if the session of this one is about to end and no request is in flight. Raises
        ClientError, KafkaError."""
        if self._renew_at is None or self._wire.waiting or time.monotonic() < self._renew_at:
            return
        self.is_broken = True  # until the new connection is open
        self.close()
        self._connect()
        self.is_broken = False

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Map each API key to the lowest and highest version that the broker serves; asked once. Raises ClientError,
        KafkaError."""
        if self._served is None:
            request = ApiVersionsRequest(client_software_name="tidelog", client_software_version="1")
            response = self.send(request, ApiVersionsResponse, 3)
            if response.error_code:
                raise ClientError(f"{self.bootstrap} refused ApiVersions: error {response.error_code}")
            self._served = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        return self._served

    def call(self, request: Message, response_type: type[_Response]) -> _Response:
        """Send a request in the newest version that both sides know, and return the response. Raises what ``send``
        raises, and UnsupportedVersionError."""
        name, served = ApiKey(request.API_KEY).name, self.api_versions().get(request.API_KEY)
        if served is None:
            raise UnsupportedVersionError(f"{self.bootstrap} does not serve {name}")
        version = min(served[1], request.VERSIONS.highest)
        if version < max(served[0], request.VERSIONS.lowest):
            raise UnsupportedVersionError(
                f"{self.bootstrap} serves {name} {served[0]} to {served[1]}, not {request.VERSIONS}"
            )
        return self.send(request, response_type, version)

    def send(self, request: Message, response_type: type[_Response], version: int) -> _Response:
        """Send a request in this version and return the response; no other request may be in flight. Raises
        ClientError; KafkaError if a new login fails or the response is malformed."""
        if self._wire.waiting:
            raise ClientError(f"{self.bootstrap} has left {self._wire.waiting} requests without an answer")
        self.post(request, version)
        return self.answer(response_type)

    def post(self, request: Message, version: int) -> None:
        """Send a request in this version, without waiting. Raises ClientError; KafkaError if a new login fails."""
        self._renew_session()
        try:
            parts = self._wire.encode(request, version)
        except EncodeError as error:
            raise ClientError(str(error)) from error
        try:
            for part in parts:  # sent one by one: joining them would copy large ones
                self._socket.sendall(part)
        except OSError as error:
            self.is_broken = True
            raise self._build_no_answer(error) from error
        except BaseException:  # a signal
            self.is_broken = True
            raise

    def answer(self, response_type: type[_Response]) -> _Response:
        """Read the response to the oldest request in flight. Raises ClientError; InvalidRequestError if malformed."""
        try:
            return self._wire.decode(self._read_frame(), response_type)
        except OSError as error:
            self.is_broken = True
            raise self._build_no_answer(error) from error
        except BaseException:  # ClientError, InvalidRequestError, or a signal
            self.is_broken = True
            raise

    def _build_no_answer(self, error: OSError) -> ClientError:
        """Build the error of a request without an answer."""
        hint = self._hint if isinstance(error, ConnectionError) else ""
        return ClientError(f"no answer from {self.bootstrap}: {explain_os_error(error)}{hint}")

    @property
    def _hint(self) -> str:
        """Advice for a connection that was closed before the first answer; a listener with TLS or a login does so."""
        if self._has_answered:
            return ""
        return f"; does this listener expect another security.protocol than {self._security.protocol} (--profile)?"

    def _read_frame(self) -> bytes:
        frame = self._read(self._wire.frame_size(self._read(LENGTH.size)))
        self._has_answered = True
        return frame

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ClientError(f"{self.bootstrap} closed the connection{self._hint}")
            parts += part
        return bytes(parts)
