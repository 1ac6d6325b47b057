"""Lazy: a service that is built when it is first needed, with the functions that build, begin, close and stop it.

    not built --get()--> built --close()--> no longer answers clients --stop()--> ended

``begin_if_wanted`` is called once at the broker's start; ``get`` by whatever needs the service later. Neither
``close`` nor ``stop`` builds anything. Loop thread only; ``made`` may be read by any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Begin(Enum):
    """Time in a broker's start at which a service is begun, if it is wanted."""

    BEFORE_CLIENTS = "before the listeners open"
    NEXT_TURN = "in the first turn after the listeners are open"
    LATER = "a second after the listeners are open"


def is_never_wanted() -> bool:
    """Return False: the service is not built before its first use."""
    return False


def do_nothing(_service: object) -> None:
    """Do nothing: the default for services that have nothing to begin or to close."""


async def stop_nothing(_service: object) -> None:
    """Stop nothing: the default for services without threads and sockets."""


class LateService(Protocol):
    """The part of ``Lazy`` that does not depend on its type; the server begins and ends all late services by it."""

    begins: Begin
    module: str | None

    @property
    def is_wanted(self) -> Callable[[], bool]: ...

    def begin_if_wanted(self) -> None: ...

    def close(self) -> None: ...

    async def stop(self) -> None: ...


class Lazy(Generic[T]):
    """One service of type T, built at most once."""

    __slots__ = ("_begin", "_build", "_close", "_stop", "begins", "is_wanted", "made", "module")

    def __init__(
        self,
        build: Callable[[], T],
        *,
        is_wanted: Callable[[], bool] = is_never_wanted,
        begins: Begin = Begin.BEFORE_CLIENTS,
        module: str | None = None,
        begin: Callable[[T], object] = do_nothing,
        close: Callable[[T], object] = do_nothing,
        stop: Callable[[T], Awaitable[object]] = stop_nothing,
    ) -> None:
        """``is_wanted`` is called at the broker's start; if it returns True, ``begin`` is called with the service.
        ``close`` answers waiting clients before the connections close; ``stop`` ends threads and sockets after that.
        ``module`` is imported by a thread before the service begins, as its import takes longer than a turn of the
        loop."""
        self._build = build
        self.is_wanted = is_wanted
        self.begins = begins
        self.module = module
        self._begin = begin
        self._close = close
        self._stop = stop
        self.made: T | None = None
        """The service, or None as long as it is not built."""

    def get(self) -> T:
        """Return the service, which is built now if it was not before. Raises what building it raises."""
        if self.made is None:
            self.made = self._build()
        return self.made

    def begin_if_wanted(self) -> None:
        """Build and begin the service if ``is_wanted`` returns True."""
        if self.is_wanted():
            self._begin(self.get())

    def close(self) -> None:
        """Answer waiting clients, if the service was built. An exception is logged, and the broker goes on stopping."""
        if self.made is not None:
            try:
                self._close(self.made)
            except Exception:
                logger.exception("%s failed to close; the broker goes on stopping", type(self.made).__name__)

    async def stop(self) -> None:
        """End threads and sockets, if the service was built. An exception is logged: logs must still be flushed."""
        if self.made is not None:
            try:
                await self._stop(self.made)
            except Exception:
                logger.exception("%s failed to stop; the broker goes on stopping", type(self.made).__name__)
