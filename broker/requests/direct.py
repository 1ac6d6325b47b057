# cython: wraparound=True, boundscheck=True
"""Compiled part of dispatch: the header, route, message, handler and answer of requests that are answered in one turn.

:class:`tidelog.broker.requests.dispatch.Dispatcher` and :class:`tidelog.broker.requests.route.Route` extend these two
classes by what other requests need: new routes, long requests, quotas, answers that come later, errors. ``direct.pxd``
declares the C types. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.protocol.compiled import words
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.frames import OWNED_BYTES
from tidelog.protocol.header import decode_request_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.broker.broker import Broker
    from tidelog.broker.loop.lazy import Lazy
    from tidelog.broker.quota.quotas import Quotas
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.requests.route import Answer
    from tidelog.protocol.errors import KafkaError
    from tidelog.protocol.schema.fields import Coder, Message

_HEAD_BYTES = 10
"""API key, version, correlation id, length of the client id."""
_CORRELATION_ID, _CLIENT_ID = 4, 8
_MAX_REUSED = OWNED_BYTES
"""Largest frame whose memory the next bytes of connections may overwrite after its turn; a longer one keeps its own."""


class DirectRoute:
    """Route of one API in one version: the part that is needed by requests that are answered at once."""

    __slots__ = (
        "api_key",
        "api_version",
        "decode",
        "encoder",
        "encodes",
        "error_response",
        "flexible_header",
        "handle",
        "header_bytes",
        "max_elements",
        "one_turn_bytes",
        "one_turn_elements",
        "requests",
    )

    if TYPE_CHECKING:
        handle: Callable[[Broker, RequestContext, Any], Any]
        error_response: Callable[[Any, KafkaError], Any]
        decode: Callable[[memoryview, int, int], tuple[Any, int]]
        api_key: int
        api_version: int
        flexible_header: bool
        header_bytes: int
        max_elements: int
        one_turn_bytes: int
        one_turn_elements: int

    def __init__(self) -> None:
        self.requests = 0
        self.encodes: type[Message] | None = None
        """Class of the last response, which ``encoder`` encodes."""
        self.encoder: Coder | None = None

    def answer_now(self, broker: Broker, context: RequestContext, request: Any) -> Answer:
        """Handle a request and encode its answer. Raises CloseConnectionError."""
        try:
            response = self.handle(broker, context, request)
        except Exception as error:  # noqa: BLE001 - answer_error answers each
            return self.answer_error(broker, context, request, error)
        if type(response) is not self.encodes or self.encoder is None:
            return self.finish(broker, context, request, response)
        parts = self.encoder.encode_frame(response, context.correlation_id, self.header_bytes)
        return parts if len(parts) > 1 else parts[0]  # type: ignore[return-value]

    def answer_error(self, broker: Broker, context: RequestContext, request: Any, error: Exception) -> Answer:
        """Answer a request whose handler raised ``error``. Raises CloseConnectionError."""
        raise NotImplementedError

    def finish(self, broker: Broker, context: RequestContext, request: Any, response: Any) -> Answer:
        """Answer with a handler's result: a message of another class than the last one, bytes, steps, a Deferred, or
        None."""
        raise NotImplementedError


class DirectDispatcher:
    """Dispatcher of requests that are answered at once."""

    __slots__ = ("_broker", "_quotas", "_routes")

    def __init__(self, broker: Broker, quotas: Lazy[Quotas]) -> None:
        self._broker = broker
        self._quotas = quotas
        self._routes: dict[int, Any] = {}
        """API key and version, as the first four bytes of a frame -> route."""

    def dispatch(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer one request. ``frame`` is valid only until this returns, unless it has more than OWNED_BYTES.

        Raises InvalidRequestError or CloseConnectionError when the connection is to be closed.
        """
        held = words.hold(frame)
        data, size = held.data, held.size
        if size < _HEAD_BYTES:
            words.release(held)
            raise InvalidRequestError(f"a frame of {size} bytes holds no request header")
        word = words.load_be_u32(data, 0)
        correlation_id = words.load_be_i32(data, _CORRELATION_ID)
        length = words.load_be_i16(data, _CLIENT_ID)
        position = _HEAD_BYTES + length if length > 0 else _HEAD_BYTES
        raw_client_id = words.copy_of(data, _CLIENT_ID, min(position, size) - _CLIENT_ID)
        has_tags = position >= size or data[position] != 0
        words.release(held)
        route = self._routes.get(word)
        if route is None:
            return self._dispatch_first(context, frame, word, correlation_id)
        route.requests += 1
        context.api_key = route.api_key
        context.api_version = route.api_version
        context.correlation_id = correlation_id
        # The client id seldom changes on a connection: one comparison instead of decoding the header.
        if raw_client_id != context.raw_client_id:
            note_client_id(context, raw_client_id, length)
        if route.flexible_header:
            position = decode_request_header(frame)[1] if has_tags else position + 1
        return self._answer(route, context, frame, position)

    def _answer(self, route: Any, context: RequestContext, frame: memoryview, position: int) -> Answer:
        """Decode the message at ``position`` and handle it. Raises InvalidRequestError, CloseConnectionError."""
        size = len(frame)
        if size > route.one_turn_bytes:
            return self._answer_long(route, context, frame, position)
        # Bytes after the message are ignored, as by Kafka: librdkafka's Metadata v13 for all topics has three of them.
        try:
            request = route.decode(frame, position, route.one_turn_elements)[0]
        except InvalidRequestError:
            if route.one_turn_elements == route.max_elements:
                raise
            return self._answer_many(route, context, frame, position)
        context.owns_frame, context.frame_bytes = size > _MAX_REUSED, size
        if self._quotas.made is not None:
            return self._answer_measured(route, context, request, size)
        return route.answer_now(self._broker, context, request)  # type: ignore[no-any-return]

    def _dispatch_first(self, context: RequestContext, frame: memoryview, word: int, correlation_id: int) -> Answer:
        """Answer a request that has no route yet. Raises InvalidRequestError, CloseConnectionError."""
        raise NotImplementedError

    def _answer_long(self, route: Any, context: RequestContext, frame: memoryview, position: int) -> Answer:
        """Answer a request that is too long for a turn. Raises InvalidRequestError, CloseConnectionError."""
        raise NotImplementedError

    def _answer_many(self, route: Any, context: RequestContext, frame: memoryview, position: int) -> Answer:
        """Answer a request that one turn did not decode, for its many elements or because it is malformed. Raises
        InvalidRequestError, CloseConnectionError."""
        raise NotImplementedError

    def _answer_measured(self, route: Any, context: RequestContext, request: Any, size: int) -> Answer:
        """Answer a request under client quotas. Raises CloseConnectionError."""
        raise NotImplementedError


def note_client_id(context: RequestContext, raw: bytes, length: int) -> None:
    """Decode a client id that differs from the connection's last one. Raises InvalidRequestError."""
    if len(raw) != 2 + max(length, 0):
        raise InvalidRequestError(f"a client id of {length} bytes goes beyond the frame")
    try:
        context.client_id = str(raw[2:], "utf-8") if length >= 0 else None
    except UnicodeDecodeError:
        raise InvalidRequestError("the client id is not UTF-8") from None
    context.raw_client_id = raw
