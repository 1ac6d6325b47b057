"""A response that comes later: plain, loop-thread only, without an asyncio future.

A handler that cannot answer at once (a long-polling fetch, an append that waits for its fsync, a join that waits for
a rebalance) returns a :class:`Deferred`. Invariants: it is settled once, by ``complete`` or ``fail``; callbacks run
then, in the order they were added, in the caller's turn; ``abandon`` tells the owner that no client waits any more (the
connection closed), so that parked state is dropped instead of waiting for its clock; ``hurry`` asks the owner to answer
now with what there is, because the client has sent something else that waits for this answer.

No waiter is forgotten. A Deferred fails with a KafkaError or a CloseConnectionError and with nothing else, which is all
that waiters look for: any other exception, of a thread or of a ``then``, is logged whole and becomes
UnknownServerError. A callback that raises is logged, its ``refuse`` is told, and the callbacks after it run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from tidelog.broker.errors import CloseConnectionError
from tidelog.protocol.errors import KafkaError, UnknownServerError

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
        """True when no client waits any more; completing is then harmless and useless."""
        return self._abandoned

    def complete(self, value: T) -> None:
        """Settle with a value. A second settling is our mistake."""
        assert not self.done, "deferred settled twice"
        self._value = value
        self._run_callbacks()

    def fail(self, error: BaseException) -> None:
        """Settle with an exception, which the dispatcher turns into an error response; see the module for others than
        KafkaErrors."""
        assert not self.done, "deferred settled twice"
        self._error = _answerable(error)
        self._run_callbacks()

    def result(self) -> T:
        """Return the value. Raises what ``fail`` was given; must be done."""
        assert self.done, "deferred not settled"
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def on_done(self, callback: Callable[[Deferred[T]], None], refuse: Refuse | None = None) -> None:
        """Call ``callback(self)`` when settled, at once if it already is. An error of a later call is given to
        ``refuse``, so that no client waits without end for what the callback would have done."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [(callback, refuse)]
        else:
            self._callbacks.append((callback, refuse))

    def refuse(self, error: Exception) -> None:
        """Fail after an error in settling; callbacks that were not called yet are called."""
        if self.done:
            self._run_callbacks()
        elif not self._abandoned:
            self.fail(error)

    def then(self, build: Callable[[T], U]) -> Deferred[U]:
        """Return a Deferred of ``build(value)``; it fails as this one does, or with what ``build`` raises.

        Abandoning it abandons this one.
        """
        return self._follow(lambda: build(self.result()))

    def otherwise(self, recover: Callable[[KafkaError], T]) -> Deferred[T]:
        """Return a Deferred of the same value; where this one fails, of what ``recover(error)`` returns or raises."""

        def value() -> T:
            try:
                return self.result()
            except KafkaError as error:
                return recover(error)

        return self._follow(value)

    def pass_to(self, following: Deferred[T]) -> None:
        """Settle ``following`` as this one is."""
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
        """Set what the owner does when no client waits any more; at most one, the last given stands."""
        self._on_abandon = callback

    def on_hurry(self, callback: Callable[[], None]) -> None:
        """Set how the owner answers early; without it the answer cannot be hurried."""
        self._on_hurry = callback

    def hurry(self) -> None:
        """Ask for an answer now. Whether there is one is the owner's to decide."""
        if self._on_hurry is not None and not (self.done or self._abandoned):
            self._on_hurry()

    def abandon(self) -> None:
        """Say that no client waits any more: callbacks are dropped, the owner is told."""
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
                logger.exception("a part of the broker failed when it was given a result that it waited for")
                _tell(refuse, error)


class Acknowledgement(Deferred[T]):
    """An answer whose request is carried out: it waits for other replicas or for the disk alone. The connection's next
    produce request may be carried out meanwhile."""

    __slots__ = ()


def _tell(refuse: Refuse | None, error: Exception) -> None:
    try:
        if refuse is not None:
            refuse(error)
    except Exception:
        logger.exception("a part of the broker failed when it was told of that error")


def _answerable(error: BaseException) -> BaseException:
    """Return the error that waiters look for: see the module."""
    if isinstance(error, KafkaError | CloseConnectionError):
        return error
    logger.error("a request is answered UNKNOWN_SERVER_ERROR for a fault of the broker", exc_info=error)
    return UnknownServerError()


def completed(value: T) -> Deferred[T]:
    """Return a Deferred that has this value."""
    deferred: Deferred[T] = Deferred()
    deferred.complete(value)
    return deferred


def failed(error: KafkaError) -> Deferred[Any]:
    """Return a Deferred that has this error."""
    deferred: Deferred[Any] = Deferred()
    deferred.fail(error)
    return deferred


def begin_after(under_way: Deferred[Any], begin: Callable[[], Deferred[T]]) -> Deferred[T]:
    """Return the result of ``begin``, which is called once ``under_way`` is settled, well or badly."""
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
    """Return a Deferred of ``value`` once all are settled; it fails with the first error among them."""
    waits = list(waited_for)

    def check() -> T:
        for wait in waits:
            wait.result()
        return value

    settled = when_all_done(waits, lambda: None)
    return (settled if isinstance(settled, Deferred) else completed(None)).then(lambda _: check())


def error_of(outcome: Deferred[Any] | KafkaError) -> KafkaError | None:
    """Return the error with which something was refused, or with which it ended; None when it is done and well."""
    if isinstance(outcome, KafkaError):
        return outcome
    try:
        outcome.result()
    except KafkaError as error:
        return error
    return None


def when_all_done(waited_for: Iterable[Deferred[Any]], build: Callable[[], T]) -> T | Deferred[T]:
    """Call ``build`` once all are settled, well or badly: at once if they are, else its result is deferred.

    Abandoning the result does not abandon what it waits for.
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
    return all_done.then(lambda _: build())
