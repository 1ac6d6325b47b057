"""Client quotas applied to requests: use is measured, and a client over a quota gets a throttle time and is muted.

As in Kafka since 2.0 (KIP-219), a client over its quota is answered at once, with the time that it has to wait in
``throttle_time_ms``. Its connection is not read from for that long.

    produce     the request's bytes count; its records are appended, and the answer has the throttle time
    fetch       the answer's bytes count; over the quota an empty one is sent in its place. One answer holds at most
                what the quota allows within its window, or one longer batch, so that a consumer always makes progress
    share fetch the same; results of acknowledgements are sent at once, acquired records are released
    any         the loop thread's time for handling and encoding counts against ``request_percentage``
    of brokers  fetches of followers and transaction markers neither count nor wait, whatever quotas are set for the
                users and client ids of the brokers

The longest of these times applies. Until a first quota is set, none of this runs: the dispatcher tests one attribute.
An answer is encoded as usual, and the throttle time is written into its bytes if the field has a fixed place. If not,
an answer in one part is decoded and encoded again. Loop thread only.

Source: KIP-13, KIP-124, KIP-219.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from tidelog.broker.quota.quotas import FETCH, MUTATION, PRODUCE, REQUEST, Client, Quotas, client_of
from tidelog.broker.requests.route import Answer, Parts, Pending, Route
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from tidelog.protocol.schema.source import has_field, position_of
from tidelog.protocol.transferable import release_slices

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica.fetching.fetch_session import FetchSessionCache
    from tidelog.broker.requests.context import RequestContext
    from tidelog.protocol.messages.share_fetch import ShareFetchRequest

_SESSION = struct.Struct(">ihi")
"""First fields of a fetch response from version 7 on: throttle time, error code, session id."""
_INT32 = struct.Struct(">i")
_FIRST_FETCH_WITH_SESSION = 7
_INITIAL_EPOCH = 0
_FETCHES = (ApiKey.FETCH, ApiKey.SHARE_FETCH)


class ThrottledAnswer(Pending):
    """An answer that is sent at once; then the connection is muted (``RequestContext.throttle_ms``)."""

    __slots__ = ("_frame",)

    def __init__(self, frame: bytes | Parts | None) -> None:
        self._frame = frame

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        """Call ``callback`` at once; with acks=0 nothing is sent."""
        callback(b"" if self._frame is None else self._frame)

    def abandon(self) -> None:
        """Do nothing: no work is under way for it."""

    def hurry(self) -> None:
        """Do nothing: the answer is sent at once."""


class MeasuredAnswer(Pending):
    """An answer that comes later, and is measured when it comes."""

    __slots__ = ("_measure", "_waiting")

    def __init__(self, waiting: Pending, measure: Measure) -> None:
        self._waiting = waiting
        self._measure = measure

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        """Call ``callback`` with the frame, once the quotas are applied to it."""
        self._waiting.on_answer(lambda frame: callback(frame if frame is None else self._finish(frame)))

    def _finish(self, frame: bytes | Parts) -> bytes | Parts | None:
        self._measure.seconds = max(self._measure.seconds, self._waiting.seconds)
        return self._measure.finish(frame)

    def abandon(self) -> None:
        self._waiting.abandon()

    def hurry(self) -> None:
        self._waiting.hurry()


def answer(broker: Broker, route: Route, context: RequestContext, request: Any, size: int) -> Answer:
    """Answer a request as ``Route.answer`` does, under quotas. ``size``: bytes of the request.

    Raises CloseConnectionError.
    """
    if is_of_broker(broker, request):
        context.throttle_ms = 0
        return route.answer(broker, context, request, is_long=size > route.one_turn_bytes)
    measure = Measure(broker.services.quotas.get(), route, context, request, broker.fetch_sessions)
    if route.api_key == ApiKey.PRODUCE:
        measure.wait_for(PRODUCE, measure.quotas.record(PRODUCE, measure.client, size))
    elif route.api_key in _FETCHES:
        context.withdraw = None
        limit_fetch(measure.quotas, measure.client, request)
    began = perf_counter()
    found = route.answer(broker, context, request, is_long=size > route.one_turn_bytes)
    measure.seconds = perf_counter() - began
    if isinstance(found, Pending):
        return MeasuredAnswer(found, measure)
    frame = measure.finish(found)
    return ThrottledAnswer(frame) if context.throttle_ms else frame


def is_of_broker(broker: Broker, request: Any) -> bool:
    """Return whether another broker of the cluster sends such a request, to replicate or to end a transaction: no
    quota applies to it, as in Kafka. The handler checks that the client may send it."""
    if broker.replica_manager.roles is None:
        return False
    if isinstance(request, FetchRequest):
        return max(request.replica_id, request.replica_state.replica_id) >= 0
    return isinstance(request, WriteTxnMarkersRequest)


def limit_fetch(quotas: Quotas, client: Client, request: FetchRequest | ShareFetchRequest) -> None:
    """Reduce the bytes that a fetch asks for to those that the quota allows within its window."""
    limit = quotas.fetch_limit(client)
    if limit is not None:
        request.max_bytes = min(request.max_bytes, limit)
        request.min_bytes = min(request.min_bytes, limit)


class Measure:
    """Use of quotas by one request, and the longest wait that they impose."""

    __slots__ = ("_context", "_key", "_request", "_route", "_sessions", "client", "quotas", "seconds")

    def __init__(
        self, quotas: Quotas, route: Route, context: RequestContext, request: Any, sessions: FetchSessionCache
    ) -> None:
        self.quotas = quotas
        self._sessions = sessions
        self._route = route
        self._context = context
        self._request = request
        self._key = MUTATION  # handlers set its throttle time; ``wait_for`` notes a longer one of another quota
        self.client = client_of(context)
        self.seconds = 0.0
        context.throttle_ms = 0

    def wait_for(self, key: str, wait_ms: int) -> None:
        """Note the wait that one of the quotas imposes; the longest applies."""
        if wait_ms > self._context.throttle_ms:
            self._key = key
            self._context.throttle_ms = wait_ms

    def finish(self, frame: bytes | Parts | None) -> bytes | Parts | None:
        """Return the frame that is sent, and put the throttle time into the context. With acks=0 ``frame`` is None or
        empty, and so is the result."""
        self.wait_for(REQUEST, self.quotas.record_request(self.client, self.seconds))
        if frame is not None and self._route.api_key in _FETCHES:
            frame = self._finish_fetch(frame)
        elif frame and self._context.throttle_ms:
            frame = self._write_throttle_time(frame)
        if self._context.throttle_ms:
            self.quotas.note_wait(self._key, self._context.throttle_ms)
        return frame

    def _finish_fetch(self, frame: bytes | Parts) -> bytes | Parts:
        size = len(frame) if isinstance(frame, bytes) else sum(map(len, frame))
        wait_ms = self.quotas.record_fetch(self.client, size)
        self.wait_for(FETCH, wait_ms)
        if not self._context.throttle_ms:
            return frame
        if not wait_ms:
            self.quotas.take_back_fetch(self.client, size)
        if self._route.api_key == ApiKey.FETCH:
            return self._build_empty_fetch(frame)
        return self._withdraw_records(frame)

    def _withdraw_records(self, frame: bytes | Parts) -> bytes | Parts:
        """Return the answer to a share fetch without its records; an error, or the end of a session, only gets the
        throttle time."""
        withdraw = self._context.withdraw
        if withdraw is None:
            return self._write_throttle_time(frame)
        release_slices(frame)
        response = withdraw()
        response.throttle_time_ms = self._context.throttle_ms
        return self._route.encode(self._context.correlation_id, response)

    def _build_empty_fetch(self, frame: bytes | Parts) -> bytes | Parts:
        """Return an answer without partitions. An incremental session goes on, and sends the offsets later; a new one
        is removed: the client does not get its id."""
        head: bytes = frame if isinstance(frame, bytes) else frame[0]  # type: ignore[assignment]
        version = self._route.api_version
        session_id = 0
        if version >= _FIRST_FETCH_WITH_SESSION:
            _, error_code, session_id = _SESSION.unpack_from(head, self._route.prefix.size)
            if error_code:
                return self._write_throttle_time(frame)  # it has no records that could be withheld
            if self._request.session_epoch <= _INITIAL_EPOCH:
                self._sessions.remove(session_id)
                session_id = 0
            else:
                self._sessions.take_back(session_id)
        release_slices(frame)
        response = FetchResponse(throttle_time_ms=self._context.throttle_ms, session_id=session_id)
        return self._route.encode(self._context.correlation_id, response)

    def _write_throttle_time(self, frame: bytes | Parts) -> bytes | Parts:
        """Write the throttle time into the answer, if its version has a field for it.

        An answer in several parts stays unchanged if the field has no fixed place. The handler of long Produce requests
        has written the wait for the quota of bytes already.
        """
        route, response_class = self._route, response_class_of(self._request)
        if not has_field(response_class, "throttle_time_ms", route.api_version):
            return frame
        position = position_of(response_class, "throttle_time_ms", route.api_version)
        if position is not None:
            return write_int32(
                frame, position if position < 0 else route.prefix.size + position, self._context.throttle_ms
            )
        if not isinstance(frame, bytes):
            return frame
        response = response_class.decode(memoryview(frame)[route.prefix.size :], route.api_version)
        response.throttle_time_ms = self._context.throttle_ms
        return route.encode(self._context.correlation_id, response)


def write_int32(frame: bytes | Parts, position: int, value: int) -> bytes | Parts:
    """Write a number into the first part of a frame. A negative ``position`` counts from the end of the last part, into
    which the number is written then."""
    parts = [frame] if isinstance(frame, bytes) else [*frame]
    index = -1 if position < 0 else 0
    part = bytearray(cast(bytes, parts[index]))
    _INT32.pack_into(part, position, value)
    parts[index] = bytes(part)
    return parts[0] if isinstance(frame, bytes) else parts  # type: ignore[return-value]


def response_class_of(request: Any) -> Any:
    """Return the response class that belongs to a request, from the module of its class."""
    request_class = request.__class__
    module = import_module(request_class.__module__)
    return getattr(module, request_class.__name__.removesuffix("Request") + "Response")
