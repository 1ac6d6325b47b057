"""Faults that a laboratory (a broker for tests) applies to requests, and the number of requests of each API.

    error     the request is not handled, but answered with an error code in all of its parts
    delay     the request is handled later; the connection's next request waits for it
    drop      the connection closes: before the request is handled, or afterwards, in place of the answer

A request meets a fault if the fault is applied to it. A fault lets ``after`` matching requests pass, is met by the next
``times`` of them, and then has no effect any more. If several faults match, the one set first applies. A request that
has to wait until its log is open is then handled a second time, and meets no second fault. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred, NotReadyError
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.requests.dispatch import Dispatcher, own_frame
from tidelog.broker.requests.route import Answer, elements_of, release_records
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.requests.registry import HandlerEntry

_RECORD_APIS = (ApiKey.FETCH, ApiKey.SHARE_FETCH)
_TOPIC_NAME_FIELDS = ("name", "topic", "topic_name")


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault of an API, for requests that name ``topic``, or for all if it is None. ``error`` and ``drops`` end a
    request; ``delay_ms`` may be combined with either."""

    api_key: ApiKey
    times: int = 1
    after: int = 0
    topic: str | None = None
    error: type[KafkaError] | None = None
    delay_ms: float = 0.0
    drops: bool = False
    is_handled: bool = False
    """With ``drops``: the request is handled before the connection closes."""
    met: int = 0
    """Number of requests that met the fault."""


class Faults:
    """The faults that are set, and counts of all requests. Loop thread only."""

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._last_number = 0
        self._waits: dict[int, Deferred[None]] = {}
        self.requests: Counter[int] = Counter()
        """Number of requests by API key, including those that met a fault."""

    def add(self, fault: Fault) -> int:
        """Set a fault. Returns the number that identifies it."""
        self._last_number += 1
        self._faults[self._last_number] = fault
        return self._last_number

    def count_met(self, number: int) -> int:
        """Return how many requests met a fault. Raises ValueError for one that was cleared."""
        if number not in self._faults:
            raise ValueError(f"fault {number} was cleared")
        return self._faults[number].met

    def clear(self) -> None:
        """Remove all faults, and let delayed requests go on."""
        self._faults.clear()
        waits, self._waits = self._waits, {}
        for wait in waits.values():
            wait.complete(None)

    def take(self, api_key: int, topics: Callable[[], set[str]]) -> Fault | None:
        """Count a request, and return the fault that it meets, or None."""
        self.requests[api_key] += 1
        for fault in self._faults.values():
            if fault.api_key != api_key or fault.met >= fault.times:
                continue
            if fault.topic is not None and fault.topic not in topics():
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.met += 1
            return fault
        return None

    def hold(self, timers: TimerQueue, delay_ms: float) -> Deferred[None]:
        """Return a Deferred that settles after a delay, or when the faults are cleared."""
        wait: Deferred[None] = Deferred()
        self._last_number += 1
        number = self._last_number
        self._waits[number] = wait
        timers.schedule(delay_ms, lambda: self._end_wait(number))
        return wait

    def _end_wait(self, number: int) -> None:
        wait = self._waits.pop(number, None)
        if wait is not None:
            wait.complete(None)


class FaultyHandler:
    """The handler of one API with the laboratory's faults. The dispatcher uses it in place of the handler's module."""

    def __init__(self, faults: Faults, api_key: int, module: Any) -> None:
        self._faults = faults
        self._api_key = api_key
        self._module = module
        self._postponed: list[Any] = []
        self.Request: type[Any] = module.Request

    def handle(self, broker: Broker, context: RequestContext, request: Any) -> Any:
        """Handle a request, or apply its fault. Raises what the handler raises, the fault's error, and
        CloseConnectionError."""
        fault = None if self._was_postponed(request) else self._take(broker, request)
        if fault is None:
            return self._proceed(broker, context, request)
        if fault.delay_ms > 0 or (fault.drops and fault.is_handled):
            return self._meet(fault, broker, context, request)
        raise self._error_of(fault)

    def error_response(self, request: Any, error: KafkaError) -> Any:
        """Return the handler's own error response."""
        return self._module.error_response(request, error)

    def _take(self, broker: Broker, request: Any) -> Fault | None:
        return self._faults.take(self._api_key, lambda: topics_of(request, broker.metadata.topic_names))

    def _was_postponed(self, request: Any) -> bool:
        """Return whether this request was handled before, and is handled again because its log is now open."""
        for index, each in enumerate(self._postponed):
            if each is request:
                del self._postponed[index]
                return True
        return False

    def _proceed(self, broker: Broker, context: RequestContext, request: Any) -> Any:
        try:
            return self._module.handle(broker, context, request)
        except NotReadyError:
            self._postponed.append(request)
            raise

    def _meet(self, fault: Fault, broker: Broker, context: RequestContext, request: Any) -> Steps[Any]:
        """Wait as the fault says, then handle the request or end it. Raises KafkaError, CloseConnectionError."""
        if fault.delay_ms > 0:
            yield from wait_for(self._faults.hold(broker.timers, fault.delay_ms))
        if fault.error is not None or (fault.drops and not fault.is_handled):
            raise self._error_of(fault)
        response = yield from self._handle_and_wait(broker, context, request)
        if fault.drops:
            if self._api_key in _RECORD_APIS and response.__class__ is not bytes:
                release_records(response)
            raise self._error_of(fault)
        return response

    def _handle_and_wait(self, broker: Broker, context: RequestContext, request: Any) -> Steps[Any]:
        """Handle a request and wait for its response. Raises KafkaError, CloseConnectionError."""
        while True:
            try:
                response = self._module.handle(broker, context, request)
                if response.__class__ is GeneratorType:
                    response = yield from response
            except NotReadyError as error:
                yield from wait_for(error.ready)
                continue
            return (yield from wait_for(response)) if isinstance(response, Deferred) else response

    def _error_of(self, fault: Fault) -> Exception:
        if fault.error is not None:
            return fault.error("this error was injected by the laboratory")
        return CloseConnectionError("the laboratory drops this connection")


class LaboratoryDispatcher(Dispatcher):
    """A dispatcher whose requests meet the laboratory's faults. Loop thread only."""

    __slots__ = ("_faults",)

    def __init__(self, broker: Broker, faults: Faults) -> None:
        super().__init__(broker)
        self._faults = faults

    def dispatch(self, context: RequestContext, frame: memoryview) -> Answer:
        """Answer a request from a frame in memory of its own: during a delay others use the receive buffer."""
        return super().dispatch(context, own_frame(frame))

    def _handler(self, api_key: int, entry: HandlerEntry) -> Any:
        return FaultyHandler(self._faults, api_key, super()._handler(api_key, entry))


def topics_of(request: Any, names_by_id: dict[bytes, str]) -> set[str]:
    """Return the topics that a request names, by name or by id."""
    found = set()
    for elements in elements_of(request):
        for element in elements:
            if isinstance(element, str):
                found.add(element)
                continue
            names = [getattr(element, field, None) for field in _TOPIC_NAME_FIELDS]
            found.update(name for name in names if isinstance(name, str) and name)
            if (name := names_by_id.get(getattr(element, "topic_id", b""))) is not None:
                found.add(name)
    return found
