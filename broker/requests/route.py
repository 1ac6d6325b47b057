"""Route of one API in one version, and answers that come later."""

from __future__ import annotations

import logging
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar, Union

from tidelog.broker.broker import Broker
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Acknowledgement, Deferred, NotReadyError
from tidelog.broker.loop.steps import Job, StepRunner, Steps, free_in_steps
from tidelog.broker.requests.bounds import MAX_ANSWER_BYTES, max_elements
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.direct import DirectRoute
from tidelog.log.records.work_budget import AppendPostponedError
from tidelog.protocol.api_keys import ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import KafkaError, UnknownServerError
from tidelog.protocol.schema.fields import EncodeError, Message, MessageTooLongError, Struct
from tidelog.protocol.schema.refusal import refuse_in_steps
from tidelog.protocol.schema.source import add_frame
from tidelog.protocol.transferable import release_slices
from tidelog.protocol.types import Part

T = TypeVar("T")

logger = logging.getLogger(__name__)

Parts = list[Part]

_PREFIX = struct.Struct(">ii")
_FLEXIBLE_PREFIX = struct.Struct(">iix")  # with an empty set of tagged fields

FEW = 8
"""Largest array whose elements' own arrays are released in steps, too (``elements_of``)."""
ONE_TURN_BYTES = 8192
"""A longer request is decoded in steps, from a copy unless its frame owns its memory (OWNED_BYTES): with elements of 2
bytes it may take over a millisecond. Produce requests are long but have few elements: they are decoded in the receive
buffer."""
ONE_TURN_ELEMENTS = 1024
"""A produce request with more partitions and topics than this is decoded in steps, too."""

Answer = Union[bytes, Parts, "Pending", None]
FrameSteps = Steps[bytes | Parts | None]


class Route(DirectRoute):
    """Request class, handler and encoder of one API in one version. ``requests`` counts the requests."""

    __slots__ = ("has_slices", "prefix", "request_class", "runner")

    def __init__(self, api_key: int, api_version: int, module: Any, runner: StepRunner) -> None:
        super().__init__()
        self.runner = runner
        self.api_key = api_key
        self.api_version = api_version
        self.request_class: type[Message] = module.Request
        self.decode = self.request_class.decoder_at(api_version).decode
        self.max_elements = max_elements(api_key)
        self.one_turn_bytes = sys.maxsize if api_key == ApiKey.PRODUCE else ONE_TURN_BYTES
        self.one_turn_elements = ONE_TURN_ELEMENTS if api_key == ApiKey.PRODUCE else self.max_elements
        self.handle = module.handle
        self.error_response = module.error_response
        self.flexible_header = request_header_version(ApiKey(api_key), api_version) >= 2
        self.prefix = _FLEXIBLE_PREFIX if response_header_version(ApiKey(api_key), api_version) >= 1 else _PREFIX
        self.header_bytes = self.prefix.size - 4
        self.has_slices = api_key in (ApiKey.FETCH, ApiKey.SHARE_FETCH)

    def answer(self, broker: Broker, context: RequestContext, request: Any, *, is_long: bool = False) -> Answer:
        """Handle a request; an exception of its handler becomes its error response. After a NotReadyError the request
        waits and is handled again. The steps of a generator begin here. With ``is_long`` the answer is encoded in
        steps.

        Raises CloseConnectionError.
        """
        try:
            response = self.handle(broker, context, request)
        except Exception as error:  # noqa: BLE001 - answer_error answers each
            return self.answer_error(broker, context, request, error, is_long=is_long)
        return self.finish(broker, context, request, response, is_long=is_long)

    def answer_error(
        self, broker: Broker, context: RequestContext, request: Any, error: Exception, *, is_long: bool = False
    ) -> Answer:
        if isinstance(error, CloseConnectionError):
            raise error
        refuse = self._refuse if is_long else self.error_response
        if isinstance(error, NotReadyError):
            response = self._wait_and_handle(broker, context, request, error.ready)
        elif isinstance(error, KafkaError):
            response = refuse(request, error)
        else:
            logger.error("API %d version %d failed", self.api_key, self.api_version, exc_info=error)
            response = refuse(request, UnknownServerError())
        return self.finish(broker, context, request, response, is_long=is_long)

    def finish(
        self, broker: Broker, context: RequestContext, request: Any, response: Any, *, is_long: bool = False
    ) -> Answer:
        if is_long or response.__class__ is GeneratorType:
            again = partial(self._wait_and_handle, broker, context, request)
            return self.run(self._finish(context.correlation_id, request, response, again))
        if response.__class__ is Deferred:
            return Pending(self, context.correlation_id, request, response)
        if response.__class__ is Acknowledgement:
            return Acknowledging(self, context.correlation_id, request, response)
        return None if response is None else self.encode(context.correlation_id, response)

    def run(self, steps: FrameSteps) -> Answer:
        """Run ``steps``; return their frame if they end in the first slice, else an answer that comes later. Raises
        what they raise in the first slice."""
        answer = self.runner.run(steps)
        return InSteps(self.api_key, answer) if isinstance(answer, Job) else answer

    def _wait_and_handle(
        self, broker: Broker, context: RequestContext, request: Any, ready: Deferred[None]
    ) -> Steps[Any]:
        """Handle a request once the log that it needs is open. Raises KafkaError, CloseConnectionError."""
        if not ready.done:
            yield ready
        response = self.handle(broker, context, request)
        return (yield from response) if response.__class__ is GeneratorType else response

    def _finish(
        self, correlation_id: int, request: Any, response: Any, again: Callable[[Deferred[None]], Steps[Any]]
    ) -> FrameSteps:
        """Run a handler's steps, wait for its Deferred, and encode the response. ``again`` calls the handler once more
        after a NotReadyError. Raises CloseConnectionError."""
        try:
            if response.__class__ is GeneratorType:
                try:
                    response = yield from response
                except NotReadyError as error:
                    response = yield from again(error.ready)
            if isinstance(response, Deferred):
                response = yield from wait_for(response, release_records if self.has_slices else None)
        except KafkaError as error:
            response = yield from self._refuse(request, error)
        except CloseConnectionError:
            raise
        except Exception:
            logger.exception("API %d version %d failed", self.api_key, self.api_version)
            response = yield from self._refuse(request, UnknownServerError())
        if response is None:
            return None
        frame = yield from self._encode_in_steps(correlation_id, response)
        held = [*elements_of(request), *elements_of(response)]
        del request, response, again
        yield from free_in_steps(held)
        return frame

    def _refuse(self, request: Any, error: KafkaError) -> Steps[Any]:
        """Build the error response in steps."""
        return refuse_in_steps(self.error_response, request, error)

    def refuse_frame_in_steps(self, correlation_id: int, request: Any, error: KafkaError) -> FrameSteps:
        """Build the frame of the error response in steps, and release the request. Raises CloseConnectionError."""
        response = yield from self._refuse(request, error)
        frame = yield from self._encode_in_steps(correlation_id, response)
        held = [*elements_of(request), *elements_of(response)]
        del request, response
        yield from free_in_steps(held)
        return frame

    def fail_at_once(self, request: Any, error: KafkaError) -> Any:
        """Build the error response in this turn: the request is not long."""
        steps = self._refuse(request, error)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    def _encode_in_steps(self, correlation_id: int, response: Any) -> FrameSteps:
        """Encode like ``encode``, in steps. Raises CloseConnectionError."""
        if response.__class__ is bytes:
            return self.encode(correlation_id, response)
        try:
            parts = yield from response.encode_in_steps(self.api_version, MAX_ANSWER_BYTES)
        except (GeneratorExit, MessageTooLongError) as error:
            if self.has_slices:
                release_records(response)
            if isinstance(error, GeneratorExit):
                raise
            logger.warning(
                "an answer of API %d version %d is %s: the connection is closed", self.api_key, self.api_version, error
            )
            raise CloseConnectionError("an answer is too long") from error
        except EncodeError as error:
            logger.exception("API %d version %d cannot be encoded", self.api_key, self.api_version)
            raise CloseConnectionError("a response cannot be encoded") from error
        return self._frame(correlation_id, parts)

    def encode(self, correlation_id: int, response: Any) -> bytes | Parts:
        """Encode the whole frame of a response, length prefix included."""
        if response.__class__ is bytes:
            prefix = self.prefix
            return prefix.pack(len(response) + prefix.size - 4, correlation_id) + response
        encoder = self.encoder
        if encoder is None or response.__class__ is not self.encodes:
            self.encodes = response.__class__
            encoder = self.encoder = response.encoder_at(self.api_version)
        parts = encoder.encode_frame(response, correlation_id, self.header_bytes)
        return parts if len(parts) > 1 else parts[0]  # type: ignore[return-value]

    def _frame(self, correlation_id: int, parts: Parts) -> bytes | Parts:
        """Put the length and the header before the parts of a response."""
        parts = add_frame(parts, correlation_id, self.header_bytes)
        return parts if len(parts) > 1 else parts[0]  # type: ignore[return-value]


def run_isolated(work: Callable[..., T], *arguments: Any) -> T:
    """Call ``work`` for one partition of a request; a defect in it must not fail the other partitions.

    Raises EXPECTED_ERRORS as they come, and any other exception as UnknownServerError, logged with its traceback.
    """
    try:
        return work(*arguments)
    except EXPECTED_ERRORS:
        raise
    except Exception as error:
        raise unexpected_failure() from error


EXPECTED_ERRORS = (KafkaError, CloseConnectionError, AppendPostponedError)
"""Exceptions that work for one partition raises by design."""


def unexpected_failure() -> UnknownServerError:
    """Log the exception being handled, which is a defect, and return the error that answers the partition."""
    logger.exception("one partition of a request failed")
    return UnknownServerError()


class Pending:
    """An answer that comes later. The callback of ``on_answer`` is called once, unless the answer is abandoned: with
    the frame, with empty bytes if nothing is sent (acks=0), or with None to close the connection."""

    __slots__ = ("_correlation_id", "_deferred", "_request", "_route")

    is_carried_out = False
    """Whether the records of a produce request are in the log, so that the next one may be handled before the
    answer."""
    seconds = 0.0
    """Seconds of work in steps so far, the steps of the turn in which the request came included."""

    def __init__(self, route: Route, correlation_id: int, request: Any, deferred: Deferred[Any]) -> None:
        self._route = route
        self._correlation_id = correlation_id
        self._request = request
        self._deferred = deferred

    def on_answer(self, callback: Callable[[bytes | Parts | None], None]) -> None:
        """Call ``callback`` with the frame when it is known."""
        self._deferred.on_done(lambda _: callback(self._answer()), lambda _: callback(None))

    def abandon(self) -> None:
        """Abandon the answer: the connection is closed."""
        self._deferred.abandon()

    def hurry(self) -> None:
        """Hurry the answer: another request of the connection waits for it."""
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


class Acknowledging(Pending):
    """The answer to a produce request whose records are in the log."""

    __slots__ = ()

    is_carried_out = True


class InSteps(Pending):
    """The answer to a request that is worked on in steps and was not finished in the turn in which it came."""

    __slots__ = ("_api_key", "_job")

    def __init__(self, api_key: int, job: Job) -> None:
        self._api_key = api_key
        self._job = job
        self._deferred = job.done

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self._job.seconds

    def _answer(self) -> bytes | Parts | None:
        try:
            frame: bytes | Parts | None = self._deferred.result()
            return b"" if frame is None else frame  # with acks=0 nothing is sent, and the connection stays open
        except (KafkaError, CloseConnectionError) as error:
            logger.info("a request of API %d cannot be answered: %s", self._api_key, error)
            return None


def wait_for(deferred: Deferred[T], drop: Callable[[T], object] | None = None) -> Steps[T]:
    """Wait for a Deferred that has no other waiter, and return its result.

    If the steps are abandoned, so is the Deferred; a result that has come is passed to ``drop``. Raises its error.
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
    """Wait for the frame of an answer, and return it; None with acks=0. Raises CloseConnectionError if it failed."""
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
    """Yield a list of the elements of each array of a message. Arrays in elements follow if there are at most FEW
    elements. An encoded answer has none."""
    for field in () if message.__class__ is bytes else message.FIELDS:
        value = getattr(message, field.name)
        if isinstance(value, list) and value:
            yield list(value)
            if len(value) <= FEW and isinstance(value[0], Struct):
                for element in value:
                    yield from elements_of(element)


def release_records(response: Any) -> None:
    """Release the files of a fetch response that is never sent."""
    for topic in response.responses:
        for partition in topic.partitions:
            records = partition.records
            release_slices(records if isinstance(records, list) else [records])
