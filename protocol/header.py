"""Request and response headers, coded by hand for speed, in the layout of Kafka's JSON definitions.

    request   api_key int16 | api_version int16 | correlation_id int32 | client_id nullable string (v1+) | tags (v2+)
    response  correlation_id int32 | tags (v1+)

``client_id`` stays a classic string (int16 length) in v2 too, so that any broker can read it (KIP-511).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct's own spelling

from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION, ApiKey, request_header_version
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.types import Buffer, MalformedError, skip_tagged_fields

_START = Struct(">hhih")  # with the length of the client id
_START_V0 = Struct(">hhi")
_unpack_start = _START.unpack_from
_new: Callable[[type[RequestHeader]], RequestHeader] = object.__new__
_CORRELATION_ID = Struct(">i")
_CONTROLLED_SHUTDOWN = int(ApiKey.CONTROLLED_SHUTDOWN)


class RequestHeader:
    """Header of a request. ``client_id`` is None if the client sent none."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestHeader):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )


def decode_request_header(view: Buffer) -> tuple[RequestHeader, int]:
    """Decode the header at the start of ``view``; return it and the position of the body.

    Raises InvalidRequestError (malformed, unknown API key): without a header there is no answer, the connection closes.
    """
    try:
        api_key, api_version, correlation_id, length = _unpack_start(view)
        if api_key == _CONTROLLED_SHUTDOWN and api_version == 0:
            return RequestHeader(api_key, api_version, correlation_id, None), _START_V0.size
        header = _new(RequestHeader)  # half the cost of a call with arguments
        header.api_key = api_key
        header.api_version = api_version
        header.correlation_id = correlation_id
        if length >= 0:
            end = 10 + length
            if end > len(view):
                raise MalformedError("the client id is longer than the request")
            # As in Kafka, a client id in another encoding is accepted here; the broker's ``note_client_id`` refuses it.
            header.client_id = str(view[10:end], "utf-8", "replace")
        elif length == -1:
            header.client_id = None
            end = 10
        else:
            raise MalformedError(f"a client id of {length} bytes")
        if api_key < 0 or api_version < 0:
            raise MalformedError("a number below 0")
        if api_version >= FIRST_FLEXIBLE_VERSION[api_key]:
            end = end + 1 if view[end] == 0 else skip_tagged_fields(view, end)
    except (StructError, IndexError, MalformedError) as error:
        raise _build_header_error(view, error) from None
    return header, end


def _build_header_error(view: Buffer, error: Exception) -> InvalidRequestError:
    """Build the InvalidRequestError for a header that :func:`decode_request_header` cannot read."""
    if len(view) < _START_V0.size:
        return InvalidRequestError(f"a request of {len(view)} bytes has no header")
    api_key, api_version, _ = _START_V0.unpack_from(view)
    if api_key >= len(FIRST_FLEXIBLE_VERSION):
        return InvalidRequestError(f"there is no API key {api_key}")
    reason = str(error) if isinstance(error, MalformedError) else "it ends early"
    return InvalidRequestError(f"the header of API key {api_key} version {api_version} is malformed: {reason}")


def encode_request_header(header: RequestHeader) -> bytes:
    """Encode the header that a client sends, in the header version of its API version."""
    version = request_header_version(header.api_key, header.api_version)
    start = _START_V0.pack(header.api_key, header.api_version, header.correlation_id)
    if version == 0:
        return start
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(client_id)
    return start + length.to_bytes(2, "big", signed=True) + client_id + (b"\0" if version == 2 else b"")


def decode_response_header(view: Buffer, header_version: int) -> tuple[int, int]:
    """Decode the correlation id at the start of a response; return it and the position of the body. Raises
    InvalidRequestError.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view)
        return correlation_id, 4 if header_version == 0 else skip_tagged_fields(view, 4)
    except (StructError, IndexError, MalformedError) as error:
        raise InvalidRequestError(f"a response header v{header_version} in {len(view)} bytes: {error}") from None
