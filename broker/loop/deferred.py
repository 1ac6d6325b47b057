"""Deferred: a response that comes later. Simpler than an asyncio future, and for the loop's thread alone.

A handler that cannot answer at once (a long-polling fetch, an append that waits for its fsync, a join that waits for
a rebalance) returns a :class:`Deferred`. Its owner is the part that completes it. Invariants: it is settled once, by
``complete`` or ``fail``; callbacks run then, in the order they were added, in the caller's turn; ``abandon`` tells the
owner that no client waits any more (the connection closed), so that the waiting request is dropped before its timeout;
``hurry`` asks the owner to answer now with what there is, because the client's next request waits for this answer.

Every waiter gets an answer. A Deferred fails only with a KafkaError or a CloseConnectionError, which all waiters
handle. Any other exception, from a thread or from a function given to ``map``, is logged with its traceback and becomes
UnknownServerError. If a callback raises, the error is logged and given to the callback's ``refuse``, and the callbacks
after it still run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from tidelog.broker.errors import CloseConnectionError
from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaError, UnknownServerError

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

Refuse = Callable[[Exception], None]

_PENDING = object()


class Deferred(Generic[T]):
    """A value or an exception that is not known yet. Loop thread only."""

    __slots__ = ("_abandoned", "_callbacks", "_error", "_on_abandon", "_on_hurry", "_value")

    def __init__(self) -> None:
        self._value: object = _PENDING
        self._error: BaseException | None = None
        self._callbacks: list[tuple[Callable[[Deferred[T]], None], Refuse | None]] | None = None
        self._on_abandon: Callable[[], None] | None = None
        self._on_hurry: Callable[[], None] | None = None
        self._abandoned = False

    @property
    def done(self) -> bool:
        """True once completed or failed."""
        return self._value is not _PENDING or self._error is not None

    @property
    def has_value(self) -> bool:
        """True once completed."""
        return self._value is not _PENDING

    @property
    def abandoned(self) -> bool:
        """True when no client waits any more. It may still be completed, but its callbacks are gone."""
        return self._abandoned

    def complete(self, value: T) -> None:
        """Settle with a value. A second call, or one after ``fail``, is a defect of the broker (AssertionError)."""
        assert not self.done, "deferred settled twice"
        self._value = value
        self._run_callbacks()

    def fail(self, error: BaseException) -> None:
        """Settle with an exception, which the dispatcher turns into an error response. Any but a KafkaError or a
        CloseConnectionError becomes UnknownServerError."""
        assert not self.done, "deferred settled twice"
        self._error = _convert_error(error)
        self._run_callbacks()

    def result(self) -> T:
        """Return the value, or raise the error with which this failed. Call it only once ``done`` is true."""
        assert self.done, "deferred not settled"
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def on_done(self, callback: Callable[[Deferred[T]], None], refuse: Refuse | None = None) -> None:
        """Call ``callback(self)`` when this is settled; at once if it already is. If a later call raises, ``refuse``
        gets the error, so that no client waits without end for what the callback would have done."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [(callback, refuse)]
        else:
            self._callbacks.append((callback, refuse))

    def refuse(self, error: Exception) -> None:
        """Fail with an error that occurred when this was to be settled. If it is settled, run its remaining
        callbacks."""
        if self.done:
            self._run_callbacks()
        elif not self._abandoned:
            self.fail(error)

    def map(self, build: Callable[[T], U]) -> Deferred[U]:
        """Return a Deferred of ``build(value)``; it fails as this one does, or with what ``build`` raises.

        Abandoning the returned one abandons this one.
        """
        return self._follow(lambda: build(self.result()))

    def recover(self, handle: Callable[[KafkaError], T]) -> Deferred[T]:
        """Return a Deferred of the same value. If this one fails with a KafkaError, the returned one settles with what
        ``handle(error)`` returns or raises."""

        def value() -> T:
            try:
                return self.result()
            except KafkaError as error:
                return handle(error)

        return self._follow(value)

    def pass_to(self, following: Deferred[T]) -> None:
        """Settle ``following`` with this one's value or error, once there is one."""
        self._pass(following, self.result)

    def _pass(self, following: Deferred[U], value: Callable[[], U]) -> None:
        """Settle ``following`` with ``value()`` once this one is settled."""

        def settle(_: Deferred[T]) -> None:
            if following.abandoned:
                return
            try:
                found = value()
            except Exception as error:  # noqa: BLE001 - logged by fail
                following.fail(error)
            else:
                following.complete(found)

        self.on_done(settle, following.refuse)

    def _follow(self, value: Callable[[], U]) -> Deferred[U]:
        following: Deferred[U] = Deferred()
        self._pass(following, value)
        if not following.done:
            following.on_abandon(self.abandon)
        return following

    def on_abandon(self, callback: Callable[[], None]) -> None:
        """Set the owner's callback for the moment when no client waits any more. It replaces an earlier one."""
        self._on_abandon = callback

    def on_hurry(self, callback: Callable[[], None]) -> None:
        """Set the owner's callback that answers early. Without one ``hurry`` does nothing."""
        self._on_hurry = callback

    def hurry(self) -> None:
        """Ask the owner to answer now. The owner may let the client wait longer all the same."""
        if self._on_hurry is not None and not (self.done or self._abandoned):
            self._on_hurry()

    def abandon(self) -> None:
        """Note that no client waits any more: drop the callbacks, and call the one set by ``on_abandon``."""
        if self.done or self._abandoned:
            return
        self._abandoned = True
        self._callbacks = None
        if self._on_abandon is not None:
            self._on_abandon()

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        self._on_abandon = self._on_hurry = None
        for callback, refuse in callbacks or ():
            try:
                callback(self)
            except Exception as error:
                logger.exception("a defect of the broker: a callback that waited for a result failed")
                _report(refuse, error)


class Acknowledgement(Deferred[T]):
    """A produce response whose records are in the log: it waits only for other replicas or for a sync. The
    connection's next produce request may be handled meanwhile."""

    __slots__ = ()


class NotReadyError(CoordinatorLoadInProgressError):
    """A log that a request needs is being opened: handle the request again once ``ready`` is settled.

    A handler raises it before it has done anything of the request. If it concerns only some partitions of a request,
    the client retries these.
    """

    def __init__(self, ready: Deferred[None]) -> None:
        super().__init__()
        self.ready = ready


def _report(refuse: Refuse | None, error: Exception) -> None:
    try:
        if refuse is not None:
            refuse(error)
    except Exception:
        logger.exception("a defect of the broker: the error of a callback could not be reported to its client")


def _convert_error(error: BaseException) -> BaseException:
    """Return an error that waiters handle: this one, or UnknownServerError after this one was logged."""
    if isinstance(error, KafkaError | CloseConnectionError):
        return error
    logger.error("a request is answered UNKNOWN_SERVER_ERROR because of a defect of the broker", exc_info=error)
    return UnknownServerError()


def deferred_value(value: T) -> Deferred[T]:
    """Return a Deferred that has this value."""
    deferred: Deferred[T] = Deferred()
    deferred.complete(value)
    return deferred


def deferred_error(error: KafkaError) -> Deferred[Any]:
    """Return a Deferred that has this error."""
    deferred: Deferred[Any] = Deferred()
    deferred.fail(error)
    return deferred


def begin_after(under_way: Deferred[Any], begin: Callable[[], Deferred[T]]) -> Deferred[T]:
    """Call ``begin`` once ``under_way`` has completed or failed, and return a Deferred of its result."""
    result: Deferred[T] = Deferred()

    def go(_: Deferred[Any]) -> None:
        try:
            begun = begin()
        except KafkaError as error:
            result.fail(error)
        else:
            begun.pass_to(result)

    under_way.on_done(go, result.refuse)
    return result


def when_all(waited_for: Iterable[Deferred[Any]], value: T) -> Deferred[T]:
    """Return a Deferred that settles once all of ``waited_for`` are settled: with ``value``, or with the first error
    among them."""
    waits = list(waited_for)

    def check() -> T:
        for wait in waits:
            wait.result()
        return value

    settled = when_all_done(waits, lambda: None)
    return (settled if isinstance(settled, Deferred) else deferred_value(None)).map(lambda _: check())


def error_of(outcome: Deferred[Any] | KafkaError) -> KafkaError | None:
    """Return the error of an outcome: a KafkaError itself, or the one that a settled Deferred failed with; None if
    neither. Raises CloseConnectionError if the Deferred failed with that."""
    if isinstance(outcome, KafkaError):
        return outcome
    try:
        outcome.result()
    except KafkaError as error:
        return error
    return None


def when_all_done(waited_for: Iterable[Deferred[Any]], build: Callable[[], T]) -> T | Deferred[T]:
    """Call ``build`` once all have completed or failed. Returns its result if they have by now, else a Deferred of it.

    Abandoning that Deferred does not abandon those it waits for.
    """
    open_ones = [deferred for deferred in waited_for if not deferred.done]
    if not open_ones:
        return build()
    all_done: Deferred[None] = Deferred()
    outstanding = len(open_ones)

    def settle(_: Deferred[Any]) -> None:
        nonlocal outstanding
        outstanding -= 1
        if not outstanding and not (all_done.done or all_done.abandoned):
            all_done.complete(None)

    for deferred in open_ones:
        deferred.on_done(settle, all_done.refuse)
    return all_done.map(lambda _: build())
