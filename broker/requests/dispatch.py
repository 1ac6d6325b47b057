"""Dispatcher of requests: route by (API key, version), decode, handle, encode; handlers' exceptions become error codes.

    frame -> route (one dictionary look-up by the first four bytes) -> decode -> handle -> encode -> bytes

:mod:`tidelog.broker.requests.direct` does this for requests that are answered in one turn; all others come here. A
:class:`Route` is made on the first request of its API and version: only then are the handler module and its message
module imported, so a broker without requests for groups never loads their modules. A thread imports them
(:mod:`tidelog.broker.loop.late_imports`), and the request waits for it. ApiVersions is answered from the registry. What
cannot be routed:

    ApiVersions in an unknown version -> answered in version 0 with UNSUPPORTED_VERSION and the table (KIP-511)
    unknown key, unknown version, malformed body -> InvalidRequestError: the connection closes, as Kafka's does

A request that is long, or whose handler works in steps (:mod:`tidelog.broker.loop.steps`), is decoded, handled and
encoded as a job that the loop advances in slices; it is answered at once when it fits into the first one.

Answers are ``bytes`` (length prefix included), a list of bytes and slices, a :class:`Pending`, or None (acks=0).
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, TypeVar

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Job, StepRunner
from tidelog.broker.requests.bounds import max_bytes
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.direct import DirectDispatcher
from tidelog.broker.requests.registry import REGISTRY, HandlerEntry
from tidelog.broker.requests.route import _PREFIX, Answer, FrameSteps, InSteps, Pending, Route, wait_for_frame
from tidelog.broker.security.principal import ANONYMOUS, Principal
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.frames import OWNED_BYTES

logger = logging.getLogger(__name__)

T = TypeVar("T")

LARGE_BYTES = 128 * 1024
"""A longer request is queued, unless it is a Produce or of WAITING_APIS: few of the queued requests are worked on at a
time, and clients take turns."""
WAITING_APIS = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose answers may wait for other clients: they are not queued, as they would hold up the queue."""


class Dispatcher(DirectDispatcher):
    """The dispatcher of a broker: it routes frames to handlers. Loop thread only."""

    __slots__ = ("runner",)

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, broker.services.quotas)
        self.runner = StepRunner(
            broker.timers.turns.measure_callbacks("long request", broker.loop.call_soon),
            broker.timers.monotonic_ms,
            broker.timers.schedule,
        )

    def routes(self) -> list[Route]:
        """Return the routes used so far, for metrics."""
        return list(self._routes.values())

    def _dispatch_first(self, context: RequestContext, frame: memoryview, word: int, correlation_id: int) -> Answer:
        entry = find_entry(word)
        if entry is None:
            return unsupported_api_versions(correlation_id)
        if not self._broker.imports.is_loaded(entry.module):
            return self._dispatch_later(context, own_frame(frame), entry.module)
        self._make_route(word, entry)
        return DirectDispatcher.dispatch(self, context, frame)

    def _dispatch_later(self, context: RequestContext, frame: memoryview, module: str) -> Answer:
        """Answer the first request of an API once its handler is imported. The connection's next one waits."""

        def steps() -> FrameSteps:
            yield from self._broker.imports.wait_until_loaded(module)
            return (yield from wait_for_frame(self.dispatch(context, frame)))

        answer = self.runner.run(steps())
        api_key = int.from_bytes(frame[:2], "big", signed=True)  # the context has that of the request before
        return InSteps(api_key, answer) if isinstance(answer, Job) else answer

    def _answer_long(self, route: Route, context: RequestContext, frame: memoryview, position: int) -> Answer:
        allowed = max_bytes(route.api_key, self._broker.config)
        if len(frame) > allowed:
            raise InvalidRequestError(f"a request of {len(frame)} bytes; this API has at most {allowed}")
        steps = self._answer_in_steps(route, context, own_frame(frame), position)
        if len(frame) > LARGE_BYTES and route.api_key not in WAITING_APIS:
            return InSteps(route.api_key, self.runner.queue(queue_key_of(context), steps))
        return mute_after(context, route.run(steps))

    def _answer_many(self, route: Route, context: RequestContext, frame: memoryview, position: int) -> Answer:
        return mute_after(context, route.run(self._answer_in_steps(route, context, own_frame(frame), position)))

    def _answer_in_steps(self, route: Route, context: RequestContext, frame: memoryview, position: int) -> FrameSteps:
        """Decode and answer a request in steps. ``frame`` is in memory of its own, as the steps take several turns."""
        request, _ = yield from route.request_class.decode_in_steps(
            frame, position, route.api_version, route.max_elements
        )
        context.owns_frame, context.frame_bytes = True, len(frame)
        if self._quotas.made is not None:
            answer = self._answer_measured(route, context, request, len(frame))
        else:
            answer = route.answer(self._broker, context, request, is_long=True)
        del request  # the steps release its elements bit by bit
        return (yield from wait_for_frame(answer))

    def _answer_measured(self, route: Route, context: RequestContext, request: Any, size: int) -> Answer:
        from tidelog.broker.requests.throttling import answer  # only brokers whose clients have quotas need it

        return answer(self._broker, route, context, request, size)

    def _make_route(self, word: int, entry: HandlerEntry) -> Route:
        """Build the route of an API and version at their first use, once the handler is imported."""
        route = Route(word >> 16, word & 0xFFFF, self._handler(word >> 16, entry), self.runner)
        self._routes[word] = route
        return route

    def _handler(self, api_key: int, entry: HandlerEntry) -> Any:
        """Return the handler of an API, with the checks that come before it."""
        module: Any = importlib.import_module(entry.module)
        if self._broker.authorizer is not None:
            # Late: it imports the messages of many APIs.
            from tidelog.broker.security.authorization.table import guard_handler

            module = guard_handler(self._broker.authorizer, api_key, module)
        return module


def mute_after(context: RequestContext, answer: Answer) -> Answer:
    """Return the answer to a request in steps. If it came in the first slice and its client is over a quota, the
    connection is muted after it."""
    if not context.throttle_ms or isinstance(answer, Pending):
        return answer
    from tidelog.broker.requests.throttling import ThrottledAnswer  # only brokers whose clients have quotas need it

    return ThrottledAnswer(answer)


def queue_key_of(context: RequestContext) -> str | Principal:
    """Return the key of a client in the queue of large requests: its principal, else its address."""
    if context.principal != ANONYMOUS:
        return context.principal
    from tidelog.broker.security.client_address import source_of  # only large requests of anonymous clients need it

    return source_of(context.client_host)


def find_entry(word: int) -> HandlerEntry | None:
    """Return the entry for the API key and version in ``word``; None for an unknown version of ApiVersions.

    Raises InvalidRequestError for others that are not served.
    """
    api_key, api_version = word >> 16, word & 0xFFFF
    entry = REGISTRY.get(api_key)
    if entry is None:
        raise InvalidRequestError(f"API {api_key} is not served")
    if not entry.min_version <= api_version <= entry.max_version:
        if api_key == ApiKey.API_VERSIONS:
            return None
        raise InvalidRequestError(f"API {api_key} is not served in version {api_version}")
    return entry


def own_frame(frame: memoryview) -> memoryview:
    """Return the frame in memory of its own, which no later receive overwrites."""
    return frame if len(frame) > OWNED_BYTES else memoryview(bytearray(frame))


def unsupported_api_versions(correlation_id: int) -> bytes:
    """Answer an ApiVersions request of an unknown version: in version 0, with the table of APIs (KIP-511)."""
    handler = importlib.import_module(REGISTRY[ApiKey.API_VERSIONS].module)
    body: bytes = handler.error_response(None, UnsupportedVersionError()).encode(0)
    return _PREFIX.pack(len(body) + 4, correlation_id) + body
