"""From a frame to an answer: route by (API key, version), decode, handle, encode; exceptions become error codes here.

    frame -> like the connection's last one? -> answered from that one's pattern
    (``tidelog.broker.requests.repeated_fetch``)
          -> route (one dictionary look-up by the first four bytes) -> decode -> handle -> encode -> bytes

A :class:`Route` is made on the first request of its API and version: only then are the handler module and its message
module imported, so a broker that nobody asked for groups never loads them. The registry is the table
ApiVersions answers from. What cannot be routed:

    ApiVersions in an unknown version -> answered in version 0 with UNSUPPORTED_VERSION and the table (KIP-511)
    unknown key, unknown version, malformed body -> InvalidRequestError: the connection closes, as Kafka's does

A request that is long, or whose handler works in steps (:mod:`tidelog.broker.loop.steps`), is decoded, handled and
encoded as a job that the loop advances in slices; it is answered at once when it fits into the first one.

Answers are ``bytes`` (length prefix included), a list of bytes and slices, a :class:`Pending`, or None (acks=0).
"""

from __future__ import annotations

import importlib
import logging
import struct
import sys
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, TypeVar, Union

from tidelog.broker.broker import Broker, Repeat, RequestContext, RequestCount
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Job, StepRunner, Steps, let_go
from tidelog.broker.requests.bounds import max_bytes, max_elements
from tidelog.broker.requests.registry import REGISTRY
from tidelog.log.records.work_budget import AppendPostponedError
from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import InvalidRequestError, KafkaError, UnknownServerError, UnsupportedVersionError
from tidelog.protocol.header import decode_request_header
from tidelog.protocol.schema.fields import EncodeError, Message, Struct
from tidelog.protocol.transferable import release_slices
from tidelog.protocol.types import Part

logger = logging.getLogger(__name__)

T = TypeVar("T")
Parts = list[Part]

_HEAD = struct.Struct(">Iih")  # api key and version as one number, correlation id, client id length
_PREFIX = struct.Struct(">ii")
_FLEXIBLE_PREFIX = struct.Struct(">iix")  # with an empty set of tagged fields
MOST_PATIENCE = 4096
FEW = 8


ONE_TURN_BYTES = 8192
"""A longer request is decoded in steps, from a copy: at 2 bytes for the smallest element it may be over a
millisecond's work. Requests of records are long and have few elements: they are decoded where they are."""
ONE_TURN_ELEMENTS = 1024
"""A produce request with more partitions and topics than this is decoded in steps, too."""


Answer = Union[bytes, Parts, "Pending", None]
FrameSteps = Steps[bytes | Parts | None]


class Route(RequestCount):
    """How one API in one version is served. ``requests`` counts them."""

    __slots__ = (
        "api_key",
        "api_version",
        "decode_from",
        "error_response",
        "flexible_header",
        "handle",
        "has_slices",
        "max_bytes",
        "max_elements",
        "one_turn_bytes",
        "one_turn_elements",
        "prefix",
        "repeat_of",
        "request_class",
        "runner",
    )

    def __init__(self, api_key: int, api_version: int, module: Any, runner: StepRunner) -> None:
        self.runner = runner
        self.api_key = api_key
        self.api_version = api_version
        self.request_class: type[Message] = module.Request
        self.decode_from: Callable[[memoryview, int, int, int], tuple[Any, int]] = module.Request.decode_from
        self.max_elements = max_elements(api_key)
        self.max_bytes = max_bytes(api_key)
        self.one_turn_bytes = sys.maxsize if api_key == ApiKey.PRODUCE else ONE_TURN_BYTES
        self.one_turn_elements = ONE_TURN_ELEMENTS if api_key == ApiKey.PRODUCE else self.max_elements
        self.handle: Callable[[Broker, RequestContext, Any], Any] = module.handle
        self.error_response: Callable[[Any, KafkaError], Any] = module.error_response
        self.flexible_header = request_header_version(ApiKey(api_key), api_version) >= 2
        self.prefix = _FLEXIBLE_PREFIX if response_header_version(ApiKey(api_key), api_version) >= 1 else _PREFIX
        self.has_slices = api_key in (ApiKey.FETCH, ApiKey.SHARE_FETCH)
        self.repeat_of: Callable[[Broker, RequestContext, Any, memoryview, int], Repeat | None] | None = getattr(
            module, "repeat_of", None
        )
        super().__init__()

    def answer(self, broker: Broker, context: RequestContext, request: Any, *, is_long: bool = False) -> Answer:
        """Handle a request; what it raises becomes its error response. Steps begin here; a long request's answer is
        encoded in steps whatever its handler does.

        Raises CloseConnectionError.
        """
        try:
            response = self.handle(broker, context, request)
        except KafkaError as error:
            response = self.error_response(request, error)
        except CloseConnectionError:
            raise
        except Exception:
            logger.exception("API %d version %d failed", self.api_key, self.api_version)
            response = self.error_response(request, UnknownServerError())
        if is_long or response.__class__ is GeneratorType:
            return self.run(self._finish(context.correlation_id, request, response))
        if response.__class__ is Deferred:
            return Pending(self, context.correlation_id, request, response)
        return None if response is None else self.encode(context.correlation_id, response)

    def run(self, steps: FrameSteps) -> Answer:
        """The frame that ``steps`` return, now if they fit into one slice. Raises what they raise in that."""
        answer = self.runner.run(steps)
        return InSteps(self, answer) if isinstance(answer, Job) else answer

    def _finish(self, correlation_id: int, request: Any, response: Any) -> FrameSteps:
        """Do a handler's steps, wait for what it deferred, and encode that. Raises CloseConnectionError."""
        try:
            if response.__class__ is GeneratorType:
                response = yield from response
            if response.__class__ is Deferred:
                response = yield from wait_for(response, release_records if self.has_slices else None)
        except KafkaError as error:
            response = yield from self._fail(request, error)
        except CloseConnectionError:
            raise
        except Exception:
            logger.exception("API %d version %d failed", self.api_key, self.api_version)
            response = yield from self._fail(request, UnknownServerError())
        if response is None:
            return None
        frame = yield from self._encode_in_steps(correlation_id, response)
        held = [*elements_of(request), *elements_of(response)]
        del request, response
        yield from let_go(held)
        return frame

    def _fail(self, request: Any, error: KafkaError) -> Steps[Any]:
        """The error response, which may be made in steps too."""
        response = self.error_response(request, error)
        return (yield from response) if response.__class__ is GeneratorType else response

    def fail_at_once(self, request: Any, error: KafkaError) -> Any:
        """The error response of a request that is not long."""
        steps = self._fail(request, error)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    def _encode_in_steps(self, correlation_id: int, response: Any) -> FrameSteps:
        """As ``encode``. Raises CloseConnectionError."""
        if response.__class__ is bytes:
            return self.encode(correlation_id, response)
        try:
            parts = yield from response.encode_in_steps(self.api_version)
        except GeneratorExit:
            if self.has_slices:
                release_records(response)
            raise
        except EncodeError as error:
            logger.exception("API %d version %d cannot be encoded", self.api_key, self.api_version)
            raise CloseConnectionError("a response cannot be encoded") from error
        return self._frame(correlation_id, parts)

    def encode(self, correlation_id: int, response: Any) -> bytes | Parts:
        """The whole frame of a response, length prefix included."""
        prefix = self.prefix
        if not self.has_slices:
            body = response if response.__class__ is bytes else response.encode(self.api_version)
            return prefix.pack(len(body) + prefix.size - 4, correlation_id) + body
        return self._frame(correlation_id, response.encode_parts(self.api_version))

    def _frame(self, correlation_id: int, parts: Parts) -> bytes | Parts:
        """Put the length and the header before the parts of a response."""
        prefix = self.prefix
        size = prefix.size - 4
        for part in parts:
            size += len(part)
        head = prefix.pack(size, correlation_id)
        first = parts[0]
        if isinstance(first, bytes):
            head += first
            if len(parts) == 1:
                return head
            parts[0] = head
        else:
            parts.insert(0, head)
        return parts


def shielded(work: Callable[..., T], *arguments: Any) -> T:
    """Do one partition's part of a request: what is our own mistake there must not fail the partitions beside it.

    Raises KafkaErrors and AppendPostponedErrors as they come, anything else as UnknownServerError, logged whole.
    """
    try:
        return work(*arguments)
    except (KafkaError, CloseConnectionError, AppendPostponedError):
        raise
    except Exception as error:
        logger.exception("one partition of a request failed")
        raise UnknownServerError from error


class Pending:
    """An answer that comes later. ``on_answer`` is called once, with the answer or None to close the connection."""

    __slots__ = ("_correlation_id", "_deferred", "_request", "_route")

    seconds = 0.0
    """How long work on it took in steps, after the turn in which the request came."""

    def __init__(self, route: Route, correlation_id: int, request: Any, deferred: Deferred[Any]) -> None:
        self._route = route
        self._correlation_id = correlation_id
        self._request = request
        self._deferred = deferred

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        """Call back with the frame when it is known."""
        self._deferred.on_done(lambda _: callback(self._answer()))

    def abandon(self) -> None:
        """The connection is gone."""
        self._deferred.abandon()

    def hurry(self) -> None:
        """Another request of the connection waits for this answer."""
        self._deferred.hurry()

    def _answer(self) -> bytes | Parts | None:
        try:
            response = self._deferred.result()
            return self._route.encode(self._correlation_id, response)
        except KafkaError as error:
            return self._route.encode(self._correlation_id, self._route.fail_at_once(self._request, error))
        except CloseConnectionError:
            return None
        except Exception:
            logger.exception("request of API %d failed after waiting", self._route.api_key)
            failed = self._route.fail_at_once(self._request, UnknownServerError())
            return self._route.encode(self._correlation_id, failed)


class InSteps(Pending):
    """The answer to a long request, which is worked on in steps."""

    __slots__ = ("_job",)

    def __init__(self, route: Route, job: Job) -> None:
        self._route = route
        self._job = job
        self._deferred = job.done

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self._job.seconds

    def _answer(self) -> bytes | Parts | None:
        try:
            frame: bytes | Parts | None = self._deferred.result()
            return b"" if frame is None else frame  # nothing is sent for acks=0, and the connection goes on
        except (KafkaError, CloseConnectionError) as error:
            logger.info("a request of API %d cannot be answered: %s", self._route.api_key, error)
            return None


def wait_for(deferred: Deferred[T], drop: Callable[[T], object] | None = None) -> Steps[T]:
    """What a Deferred holds that is waited for here alone: it is abandoned with the steps, or dropped if it came.

    Raises its error.
    """
    try:
        yield deferred
    except GeneratorExit:
        if drop is not None and deferred.done and deferred.has_value:
            drop(deferred.result())
        deferred.abandon()
        raise
    return deferred.result()


def wait_for_frame(answer: Answer) -> FrameSteps:
    """The frame of an answer. Raises CloseConnectionError where there is none."""
    if not isinstance(answer, Pending):
        return answer
    done: Deferred[bytes | Parts | None] = Deferred()
    done.on_abandon(answer.abandon)
    done.on_hurry(answer.hurry)
    answer.on_answer(done.complete)
    frame = yield from wait_for(done, release_slices)
    if frame is None:
        raise CloseConnectionError("a deferred request failed")
    return frame or None


def elements_of(message: Any) -> Iterator[list[Any]]:
    """The elements of a message's arrays, and of the arrays within them where there are few of those."""
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if isinstance(value, list) and value:
            yield list(value)
            if len(value) <= FEW and isinstance(value[0], Struct):
                for element in value:
                    yield from elements_of(element)


def release_records(response: Any) -> None:
    """Let the files go of a fetch response that is never sent."""
    for topic in response.responses:
        for partition in topic.partitions:
            records = partition.records
            release_slices(records if isinstance(records, list) else [records])


class Dispatcher:
    """Routes frames to handlers. Loop thread only."""

    __slots__ = ("_broker", "_routes", "runner")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[int, Route] = {}
        self.runner = StepRunner(
            broker.timers.turns.measured("long request", broker.loop.call_soon), broker.timers.monotonic_ms
        )

    def routes(self) -> list[Route]:
        """The routes used so far, for metrics."""
        return list(self._routes.values())

    def dispatch(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer one request. ``frame`` is valid only until this returns.

        Raises InvalidRequestError or CloseConnectionError when the connection is to be closed.
        """
        repeat = context.repeat
        if repeat is not None:
            try:
                again = repeat.answer(frame)
            except Exception:
                logger.exception("a repeated request failed")
                return self._failed_repeat(context, frame)
            if again is not None:
                context.repeat_route.requests += 1
                return again
        try:
            word, correlation_id, client_id_length = _HEAD.unpack_from(frame)
        except struct.error:
            raise InvalidRequestError(f"a frame of {len(frame)} bytes holds no request header") from None
        route = self._routes.get(word)
        if route is None:
            route = self._make_route(word)
            if route is None:
                return unsupported_api_versions(correlation_id)
        route.requests += 1
        context.api_key = route.api_key
        context.api_version = route.api_version
        context.correlation_id = correlation_id
        # The client id seldom changes on a connection: one comparison instead of decoding the header.
        position = _HEAD.size + client_id_length if client_id_length > 0 else _HEAD.size
        raw_client_id = frame[8:position]
        if raw_client_id != context.raw_client_id:
            _note_client_id(context, raw_client_id, client_id_length)
        if route.flexible_header:
            position = (
                position + 1 if position < len(frame) and frame[position] == 0 else decode_request_header(frame)[1]
            )
        return self._answer(route, context, frame, position)

    def _answer(self, route: Route, context: RequestContext, frame: memoryview, position: int) -> Answer:
        """Decode the message at ``position`` and handle it. Raises InvalidRequestError, CloseConnectionError."""
        if len(frame) > route.one_turn_bytes:
            if len(frame) > route.max_bytes:
                raise InvalidRequestError(f"a request of {len(frame)} bytes; this API has at most {route.max_bytes}")
            return route.run(self._answer_in_steps(route, context, memoryview(bytes(frame)), position))
        # Bytes left over are ignored, as Kafka does: librdkafka's Metadata v13 for all topics has three too many.
        try:
            request, _ = route.decode_from(frame, position, route.api_version, route.one_turn_elements)
        except InvalidRequestError:
            if route.one_turn_elements == route.max_elements:
                raise
            return route.run(self._answer_in_steps(route, context, memoryview(bytearray(frame)), position))
        context.owns_frame, context.frame_bytes = False, len(frame)
        if self._broker.quotas is not None:
            return self._answer_measured(route, context, request, len(frame))
        found = route.answer(self._broker, context, request)
        if route.repeat_of is not None:
            context.unlike_requests += 1
            if context.unlike_requests >= context.repeat_patience:
                expect_repeats(context, route, route.repeat_of(self._broker, context, request, frame, position))
        return found

    def _answer_in_steps(self, route: Route, context: RequestContext, frame: memoryview, position: int) -> FrameSteps:
        """As ``_answer``, for a long request in a frame of its own."""
        request, _ = yield from route.request_class.decode_in_steps(
            frame, position, route.api_version, route.max_elements
        )
        context.owns_frame, context.frame_bytes = True, len(frame)
        if self._broker.quotas is not None:
            answer = self._answer_measured(route, context, request, len(frame))
        else:
            answer = route.answer(self._broker, context, request, is_long=True)
        del request  # so that it can be let go of in steps
        return (yield from wait_for_frame(answer))

    def _answer_measured(self, route: Route, context: RequestContext, request: Any, size: int) -> Answer:
        """Handle a request of a broker whose clients have quotas. Raises CloseConnectionError."""
        from tidelog.broker.requests.throttling import answer  # only brokers whose clients have quotas need it

        return answer(self._broker, route, context, request, size)

    def _failed_repeat(self, context: RequestContext, frame: memoryview) -> Answer:
        """What is our own mistake answers with an error, as in ``Route.answer``."""
        header, position = decode_request_header(frame)
        route = self._routes[header.api_key << 16 | header.api_version]
        route.requests += 1
        request, _ = route.decode_from(frame, position, route.api_version, route.max_elements)
        return route.encode(header.correlation_id, route.fail_at_once(request, UnknownServerError()))

    def _make_route(self, word: int) -> Route | None:
        """The route of a pair that was not used before; None for an unknown version of ApiVersions.

        Raises InvalidRequestError for what is not served.
        """
        api_key, api_version = word >> 16, word & 0xFFFF
        entry = REGISTRY.get(api_key)
        if entry is None:
            raise InvalidRequestError(f"API {api_key} is not served")
        if not entry.min_version <= api_version <= entry.max_version:
            if api_key == ApiKey.API_VERSIONS:
                return None
            raise InvalidRequestError(f"API {api_key} is not served in version {api_version}")
        route = Route(api_key, api_version, importlib.import_module(entry.module), self.runner)
        self._routes[word] = route
        return route


def expect_repeats(context: RequestContext, route: Route, repeat: Repeat | None) -> None:
    """Compare the connection's next requests with this one, and be slower to do so again should they differ."""
    context.repeat, context.repeat_route = repeat, route
    context.unlike_requests = 0
    context.repeat_patience = min(context.repeat_patience * 2, MOST_PATIENCE)


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The answer to an ApiVersions request in a version we do not know: version 0, with the table (KIP-511)."""
    handler = importlib.import_module(REGISTRY[ApiKey.API_VERSIONS].module)
    body: bytes = handler.error_response(None, UnsupportedVersionError()).encode(0)
    return _PREFIX.pack(len(body) + 4, correlation_id) + body


def _note_client_id(context: RequestContext, raw: memoryview, length: int) -> None:
    """Decode a client id that differs from the connection's last one."""
    if len(raw) != 2 + max(length, 0):
        raise InvalidRequestError(f"a client id of {length} bytes goes beyond the frame")
    try:
        context.client_id = str(raw[2:], "utf-8") if length >= 0 else None
    except UnicodeDecodeError:
        raise InvalidRequestError("the client id is not UTF-8") from None
    context.raw_client_id = bytes(raw)
