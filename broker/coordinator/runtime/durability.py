"""Answers of the coordinators that wait for the disk, where an internal topic's ``flush.messages`` asks for it.

A coordinator appends, replays and answers in one turn of the loop; with ``flush.messages`` the append is only written
then. What was decided stands, but none may be told before it is safe: not the one who asked, nor those whose waiting
JoinGroup or SyncGroup the decision completed. So handlers of coordinators are wrapped in ``durably``: an answer that is
ready while appends are unsynced waits for those syncs, all of them. A sync that fails takes the partition's directory
offline; the client hears NOT_COORDINATOR. Without ``flush.messages`` nothing is ever unsynced. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.protocol.errors import KafkaError, NotCoordinatorError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.requests.context import RequestContext

Request = TypeVar("Request")
Settled = Callable[[KafkaError | None], None]


class SyncGate:
    """The syncs that coordinators' appends wait for now."""

    __slots__ = ("_unsynced",)

    def __init__(self) -> None:
        self._unsynced: list[Deferred[None]] = []

    def __bool__(self) -> bool:
        """Return whether an answer would have to wait."""
        return bool(self._unsynced)

    def add(self, sync: Deferred[None]) -> None:
        """An append waits for this sync."""
        if not sync.done:
            self._unsynced.append(sync)
            sync.on_done(self._unsynced.remove)

    def after(self, settled: Settled) -> None:
        """Call back once what is unsynced now is synced, with None or the error of one; at once if nothing is."""
        waiting = len(self._unsynced)
        failed: list[KafkaError] = []
        if not waiting:
            settled(None)
            return

        def synced(sync: Deferred[None]) -> None:
            nonlocal waiting
            waiting -= 1
            try:
                sync.result()
            except KafkaError as error:
                failed.append(error)
            if not waiting:
                settled(failed[0] if failed else None)

        for sync in list(self._unsynced):
            sync.on_done(synced)

    def guard(self, response: Any, drop: Callable[[Any], object] = lambda _response: None) -> Any:
        """Return the same answer where there is no wait now or later, else ``hold`` of it."""
        if self._unsynced or (isinstance(response, Deferred) and not response.done):
            return self.hold(response, drop)
        return response

    def hold(
        self,
        response: Any,
        drop: Callable[[Any], object] = lambda _response: None,
        refusal: Callable[[], KafkaError] = NotCoordinatorError,
    ) -> Deferred[Any]:
        """Hold the answer, a response or a Deferred of one, until it is safe; ``refusal()`` where that fails.

        A response that is not given is handed to ``drop``.
        """
        held: Deferred[Any] = Deferred()
        if isinstance(response, Deferred):
            waiting = response
            held.on_abandon(waiting.abandon)
        else:
            waiting = Deferred()
            waiting.complete(response)

        def settle(done: Deferred[Any], error: KafkaError | None) -> None:
            try:
                value = done.result()
            except KafkaError as failure:
                if not held.abandoned:
                    held.fail(failure)
                return
            if error is None and not held.abandoned:
                held.complete(value)
                return
            drop(value)
            if not held.abandoned:
                held.fail(refusal())

        waiting.on_done(lambda done: self.after(lambda error: settle(done, error)))
        return held


def durably(
    handle: Callable[[Broker, RequestContext, Request], Any],
) -> Callable[[Broker, RequestContext, Request], Any]:
    """Have the answers of a coordinator's handler wait for the disk, where it is to be waited for."""

    @wraps(handle)
    def handle_durably(broker: Broker, context: RequestContext, request: Request) -> Any:
        return guarded(broker, handle(broker, context, request))

    @wraps(handle)
    def handle_durably_in_steps(broker: Broker, context: RequestContext, request: Request) -> Steps[Any]:
        return guarded(broker, (yield from handle(broker, context, request)))

    return handle_durably_in_steps if isgeneratorfunction(handle) else handle_durably


def guarded(broker: Broker, response: Any) -> Any:
    """A handler's response, not given before it is safe."""
    coordinators = broker.services.coordinators.made
    return response if coordinators is None else coordinators.gate.guard(response)
