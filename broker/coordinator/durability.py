"""Answers of the coordinators that wait for the disk, where an internal topic's ``flush.messages`` asks for it.

A coordinator appends, replays and answers in one turn of the loop; with ``flush.messages`` the append is only written
then. What was decided stands, but nobody may be told before it is safe: not the one who asked, nor those whose waiting
JoinGroup or SyncGroup the decision completed. So handlers of coordinators are wrapped in ``durably``: an answer that is
ready while appends are unsynced waits for those syncs, all of them. A sync that fails takes the partition's directory
offline; the client hears NOT_COORDINATOR. Without ``flush.messages`` nothing is ever unsynced. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from broker.deferred import Deferred
from protocol.errors import KafkaError, NotCoordinatorError

if TYPE_CHECKING:
    from broker.broker import Broker, RequestContext

Request = TypeVar("Request")
Settled = Callable[[KafkaError | None], None]


class SyncGate:
    """The syncs that coordinators' appends wait for now."""

    __slots__ = ("_unsynced",)

    def __init__(self) -> None:
        self._unsynced: list[Deferred[None]] = []

    def __bool__(self) -> bool:
        """Whether an answer would have to wait."""
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

    def hold(self, response: Any) -> Deferred[Any]:
        """The same answer, a response or a Deferred of one, not before it is safe."""
        held: Deferred[Any] = Deferred()
        if isinstance(response, Deferred):
            waiting = response
            held.on_abandon(waiting.abandon)
        else:
            waiting = Deferred()
            waiting.complete(response)
        waiting.on_done(lambda done: self.after(lambda error: _settle(held, done, error)))
        return held


def _settle(held: Deferred[Any], done: Deferred[Any], error: KafkaError | None) -> None:
    if held.abandoned:
        return
    if error is not None:
        held.fail(NotCoordinatorError())
        return
    try:
        held.complete(done.result())
    except KafkaError as failure:
        held.fail(failure)


def durably(
    handle: Callable[[Broker, RequestContext, Request], Any],
) -> Callable[[Broker, RequestContext, Request], Any]:
    """Have the answers of a coordinator's handler wait for the disk, where it is to be waited for."""

    @wraps(handle)
    def handle_durably(broker: Broker, context: RequestContext, request: Request) -> Any:
        response = handle(broker, context, request)
        coordinators = broker.coordinators
        if coordinators is None:
            return response
        gate: SyncGate = coordinators.gate
        if gate or (isinstance(response, Deferred) and not response.done):
            return gate.hold(response)
        return response

    return handle_durably
