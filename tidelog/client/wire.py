"""Requests and responses of one connection as bytes, without a socket: correlation ids, headers, frames.

A broker answers in the order it was asked, so the oldest request that waits is the one that the next frame answers.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple, TypeVar, cast

from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import Buffer

MAX_RESPONSE_BYTES = 128 * 1024 * 1024
CLIENT_ID = "tidelog"
LENGTH = struct.Struct(">i")

_Response = TypeVar("_Response", bound=Message)


class ClientError(Exception):
    """The broker cannot be reached, or sends no valid answer. The message names the address."""


class _Waiting(NamedTuple):
    """A request that has no answer yet."""

    correlation_id: int
    header_version: int
    version: int


class Wire:
    """The bytes of one connection to ``peer``, which errors name."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._correlation_id = 0
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return len(self._waiting)

    def encode(self, request: Message, version: int) -> list[Buffer]:
        """Encode a request as the parts of its frame, and note that it waits for an answer."""
        self._correlation_id += 1
        api_key = ApiKey(request.API_KEY)
        client_id = CLIENT_ID.encode()
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(client_id)) + client_id
        if request_header_version(api_key, version) >= 2:
            header += b"\0"
        # Files are promised in answers only.
        first, *rest = cast("list[Buffer]", request.encode_parts(version)) or [b""]
        size = len(header) + len(first) + sum(len(part) for part in rest)
        self._waiting.append(_Waiting(self._correlation_id, response_header_version(api_key, version), version))
        return [LENGTH.pack(size) + header + first, *rest]

    def frame_size(self, prefix: bytes) -> int:
        """Read the size of the frame that a length begins. Raises ClientError."""
        (size,) = LENGTH.unpack(prefix)
        if not LENGTH.size <= size <= MAX_RESPONSE_BYTES:
            raise ClientError(f"{self._peer} sent a frame of {size} bytes: this is no Kafka broker")
        return int(size)

    def decode(self, frame: Buffer, response_type: type[_Response]) -> _Response:
        """Decode the answer to the oldest request that waits. Raises ClientError."""
        expected, header_version, version = self._waiting.popleft()
        (correlation_id,) = LENGTH.unpack_from(frame)
        if correlation_id != expected:
            raise ClientError(f"{self._peer} answered request {correlation_id} instead of {expected}")
        return response_type.decode(memoryview(frame)[5 if header_version >= 1 else 4 :], version)
