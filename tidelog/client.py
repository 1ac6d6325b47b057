"""A small blocking client: one connection, one request at a time. For the commands, not for applications.

It asks the broker which versions it serves and uses the newest that both sides know.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self, TypeVar

from protocol.api_keys import ApiKey, request_header_version, response_header_version
from protocol.errors import UnsupportedVersionError
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema import Message

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
DEFAULT_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 128 * 1024 * 1024
CLIENT_ID = "tidelog"

_Response = TypeVar("_Response", bound=Message)
_LENGTH = struct.Struct(">i")


class ClientError(Exception):
    """The broker cannot be reached, or what it sends is no answer. The message names the address."""


def parse_bootstrap(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; the port may be left out. Raises ClientError."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit()):
        raise ClientError(f"--bootstrap {text}: expected HOST:PORT")
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
        self._served: dict[int, tuple[int, int]] | None = None

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
        """Ask in this version and wait for the answer. Raises ClientError."""
        self._correlation_id += 1
        api_key = ApiKey(request.API_KEY)
        client_id = CLIENT_ID.encode()
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(client_id)) + client_id
        if request_header_version(api_key, version) >= 2:
            header += b"\0"
        body = request.encode(version)
        try:
            self._socket.sendall(_LENGTH.pack(len(header) + len(body)) + header + body)
            frame = self._read_frame()
        except OSError as error:
            raise ClientError(f"no answer from {self.bootstrap}: {error}") from error
        (correlation_id,) = _LENGTH.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise ClientError(f"{self.bootstrap} answered request {correlation_id} instead of {self._correlation_id}")
        start = 5 if response_header_version(api_key, version) >= 1 else 4
        return response_type.decode(frame[start:], version)

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
