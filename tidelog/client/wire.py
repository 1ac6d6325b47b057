"""Requests and responses of one connection as bytes, without a socket: correlation ids, headers, frames.

A broker answers in the order of the requests, so the next frame is the response to the oldest request in flight.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from typing import NamedTuple, TypeVar, cast

from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import Buffer

MAX_RESPONSE_BYTES = 128 * 1024 * 1024
"""Largest response without records. The first four bytes of another service, such as ``HTTP``, are a larger number."""
_MAX_FRAME_BYTES = 2**31 - 1
CLIENT_ID = "tidelog"
LENGTH = struct.Struct(">i")

_Response = TypeVar("_Response", bound=Message)


class ClientError(Exception):
    """A request has no usable result: no connection, no answer to this request, or a wrong setting or argument.

    A malformed response of a broker is an InvalidRequestError instead.
    """


class SettingsError(ClientError):
    """A setting is wrong: a broker's address, a profile or one of its keys, or a file that an option names."""


def explain_os_error(error: OSError) -> str:
    """Build the text of a system error without its number: the file, if it names one, and the reason."""
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"


class _Waiting(NamedTuple):
    """A request in flight."""

    correlation_id: int
    header_version: int
    version: int
    max_response_bytes: int


class Wire:
    """The encoder and decoder of one connection; ``peer`` is its address, for errors."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._correlation_id = 0
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """Number of requests in flight."""
        return len(self._waiting)

    def encode(self, request: Message, version: int) -> list[Buffer]:
        """Encode a request as the parts of its frame, and note that it is in flight."""
        self._correlation_id += 1
        api_key = ApiKey(request.API_KEY)
        client_id = CLIENT_ID.encode()
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(client_id)) + client_id
        if request_header_version(api_key, version) >= 2:
            header += b"\0"
        # The cast is right: parts that are ranges of files occur in responses only.
        first, *rest = cast("list[Buffer]", request.encode_parts(version)) or [b""]
        size = len(header) + len(first) + sum(len(part) for part in rest)
        # A batch is sent whole, and only the broker's configuration limits it.
        longest = _MAX_FRAME_BYTES if api_key == ApiKey.FETCH else MAX_RESPONSE_BYTES
        self._waiting.append(
            _Waiting(self._correlation_id, response_header_version(api_key, version), version, longest)
        )
        return [LENGTH.pack(size) + header + first, *rest]

    def frame_size(self, prefix: bytes) -> int:
        """Decode the size of the next frame, the response to the oldest request, from its four-byte prefix.

        Raises ClientError.
        """
        (size,) = LENGTH.unpack(prefix)
        if not LENGTH.size <= size <= self._waiting[0].max_response_bytes:
            raise ClientError(f"{self._peer} sent a frame of {size} bytes: this is not a Kafka broker")
        return int(size)

    def decode(self, frame: Buffer, response_type: type[_Response]) -> _Response:
        """Decode the response to the oldest request in flight. Raises ClientError; InvalidRequestError if malformed."""
        expected, header_version, version, _ = self._waiting.popleft()
        (correlation_id,) = LENGTH.unpack_from(frame)
        if correlation_id != expected:
            raise ClientError(f"{self._peer} answered request {correlation_id} instead of {expected}")
        return response_type.decode(memoryview(frame)[5 if header_version >= 1 else 4 :], version)
