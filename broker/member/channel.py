"""One connection of a member to another node, one request at a time; opened when it is needed.

A request that gets no answer in time closes the connection: its answer must not be taken for the next one's. Loop
thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import NamedTuple, TypeVar

from tidelog.broker.cluster.quorum import Address
from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schema.fields import Message

CLIENT_ID = b"tidelog-member"
MAX_RESPONSE_BYTES = 128 * 1024 * 1024
API_VERSIONS_VERSION = 4

Response = TypeVar("Response", bound=Message)
_LENGTH = struct.Struct(">i")


class ChannelError(Exception):
    """The node cannot be reached, does not answer in time, or does not serve the request."""


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: dict[int, tuple[int, int]]


class Channel:
    """A connection to the node that was asked last."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._address: Address | None = None
        self._connection: _Connection | None = None
        self._correlation_id = 0

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.writer.close()
        self._connection = self._address = None

    async def ask(self, address: Address, request: Message, response_type: type[Response]) -> Response:
        """Ask a node in the newest version that both sides know. Raises ChannelError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connect(address)
                version = self._version(address, request, connection.served)
                return await self._exchange(connection, request, response_type, version)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, InvalidRequestError) as error:
            self.close()
            raise ChannelError(f"{address}: {str(error) or type(error).__name__}") from error
        except (ChannelError, asyncio.CancelledError):
            self.close()
            raise

    async def served(self, address: Address) -> dict[int, tuple[int, int]]:
        """Return lowest and highest version of each API that a node serves. Raises ChannelError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await self._connect(address)).served
        except (OSError, TimeoutError, asyncio.IncompleteReadError, InvalidRequestError) as error:
            self.close()
            raise ChannelError(f"{address}: {str(error) or type(error).__name__}") from error

    async def _connect(self, address: Address) -> _Connection:
        if self._connection is not None and self._address == address:
            return self._connection
        self.close()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        connection = _Connection(reader, writer, {})
        self._connection, self._address = connection, address
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version="1")
        answer = await self._exchange(connection, request, ApiVersionsResponse, API_VERSIONS_VERSION)
        if answer.error_code:
            raise ChannelError(f"{address} refuses ApiVersions: error {answer.error_code}")
        connection.served.update({one.api_key: (one.min_version, one.max_version) for one in answer.api_keys})
        return connection

    def _version(self, address: Address, request: Message, served: dict[int, tuple[int, int]]) -> int:
        lowest, highest = served.get(request.API_KEY, (0, -1))
        version = min(highest, request.VERSIONS.highest)
        if version < max(lowest, request.VERSIONS.lowest):
            raise ChannelError(f"{address} does not serve {ApiKey(request.API_KEY).name} as a controller does")
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
        connection.writer.write(_LENGTH.pack(len(header) + len(body)) + header + body)
        with contextlib.suppress(ConnectionError):  # reading tells it, too
            await connection.writer.drain()
        (size,) = _LENGTH.unpack(await connection.reader.readexactly(_LENGTH.size))
        if not _LENGTH.size <= size <= MAX_RESPONSE_BYTES:
            raise ChannelError(f"a frame of {size} bytes: this is no Kafka node")
        frame = memoryview(await connection.reader.readexactly(size))
        (correlation_id,) = _LENGTH.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise ChannelError(f"request {correlation_id} was answered instead of {self._correlation_id}")
        return response_type.decode(frame[5 if response_header_version(api_key, version) else 4 :], version)
