"""A small blocking client: one connection. For the commands and the pipeline, not for applications.

It asks the broker which versions it serves and uses the newest that both sides know. ``post`` sends without waiting, so
that several requests are under way; a broker answers in their order, and so ``answer`` takes them.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from types import TracebackType
from typing import Self, TypeVar, cast

from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import UnsupportedVersionError
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import Buffer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 128 * 1024 * 1024
CLIENT_ID = "tidelog"

_Response = TypeVar("_Response", bound=Message)
_LENGTH = struct.Struct(">i")


class ClientError(Exception):
    """The broker cannot be reached, or sends no valid answer. The message names the address."""


def parse_bootstrap(text: str, option: str = "--bootstrap") -> tuple[str, int]:
    """Host and port of ``HOST:PORT``. Raises ClientError, which names the option."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ClientError(f"{option} {text!r}: expected HOST:PORT with a port from 1 to 65535")
    return host.strip("[]"), int(port)


class Client:
    """A connection to one broker, closed by ``close`` or at the end of ``with``. One thread at a time."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Connect; every later wait is bounded by ``timeout_s`` too. Raises ClientError."""
        self.bootstrap = bootstrap
        host, port = parse_bootstrap(bootstrap)
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise ClientError(f"cannot connect to {bootstrap}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._served: dict[int, tuple[int, int]] | None = None
        self.is_broken = False
        """Whether a request or an answer was cut off, by an error or a signal: nothing more can be asked here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """API key -> lowest and highest version served; asked once per connection. Raises ClientError."""
        if self._served is None:
            request = ApiVersionsRequest(client_software_name="tidelog", client_software_version="1")
            response = self.send(request, ApiVersionsResponse, 3)
            if response.error_code:
                raise ClientError(f"{self.bootstrap} refused ApiVersions: error {response.error_code}")
            self._served = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        return self._served

    def call(self, request: Message, response_type: type[_Response]) -> _Response:
        """Ask in the newest version both sides know. Raises ClientError, UnsupportedVersionError."""
        lowest, highest = self.api_versions().get(request.API_KEY, (0, -1))
        version = min(highest, request.VERSIONS.highest)
        if version < max(lowest, request.VERSIONS.lowest):
            name = ApiKey(request.API_KEY).name
            raise UnsupportedVersionError(
                f"{self.bootstrap} serves {name} {lowest} to {highest}, not {request.VERSIONS}"
            )
        return self.send(request, response_type, version)

    def send(self, request: Message, response_type: type[_Response], version: int) -> _Response:
        """Ask in this version and wait for the answer; nothing else may wait for one. Raises ClientError."""
        if self._waiting:
            raise ClientError(f"{self.bootstrap} has left {len(self._waiting)} requests without an answer")
        self.post(request, version)
        return self.answer(response_type)

    def post(self, request: Message, version: int) -> None:
        """Send in this version. Raises ClientError."""
        self._correlation_id += 1
        api_key = ApiKey(request.API_KEY)
        client_id = CLIENT_ID.encode()
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(client_id)) + client_id
        if request_header_version(api_key, version) >= 2:
            header += b"\0"
        first, *rest = cast("list[Buffer]", request.encode_parts(version)) or [
            b""
        ]  # files are promised in answers only
        size = len(header) + len(first) + sum(len(part) for part in rest)
        try:
            self._socket.sendall(_LENGTH.pack(size) + header + first)
            for part in rest:  # large, hence not worth a copy
                self._socket.sendall(part)
        except OSError as error:
            self.is_broken = True
            raise ClientError(f"no answer from {self.bootstrap}: {error}") from error
        except BaseException:  # a signal
            self.is_broken = True
            raise
        self._waiting.append((self._correlation_id, response_header_version(api_key, version), version))

    def answer(self, response_type: type[_Response]) -> _Response:
        """The answer to the oldest request that has none yet. Raises ClientError."""
        expected, header_version, version = self._waiting.popleft()
        try:
            frame = self._read_frame()
        except OSError as error:
            self.is_broken = True
            raise ClientError(f"no answer from {self.bootstrap}: {error}") from error
        except BaseException:  # ClientError, or a signal
            self.is_broken = True
            raise
        (correlation_id,) = _LENGTH.unpack_from(frame)
        if correlation_id != expected:
            raise ClientError(f"{self.bootstrap} answered request {correlation_id} instead of {expected}")
        return response_type.decode(frame[5 if header_version >= 1 else 4 :], version)

    def _read_frame(self) -> memoryview:
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if not _LENGTH.size <= size <= MAX_RESPONSE_BYTES:
            raise ClientError(f"{self.bootstrap} sent a frame of {size} bytes: this is no Kafka broker")
        return memoryview(self._read(size))

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ClientError(f"{self.bootstrap} closed the connection")
            parts += part
        return bytes(parts)
