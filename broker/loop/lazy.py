"""A service that is built when it is first wanted, with what wants it, how it begins and how it ends.

    not built --get()--> built --close()--> answers no more --stop()--> gone

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
    LATER = "when the broker has answered its first clients"


def is_never_wanted() -> bool:
    """Return False: the service waits for its first use."""
    return False


def do_nothing(_service: object) -> None:
    """Begin or end nothing."""


async def stop_nothing(_service: object) -> None:
    """Stop nothing."""


class LateService(Protocol):
    """A ``Lazy`` of any type, as the server that walks the table sees it."""

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
        """``is_wanted`` is asked at the broker's start, and ``begin`` called then; ``close`` ends what clients wait
        for, before the connections close; ``stop`` ends the rest after them. ``module`` is what a thread imports before
        the service begins: what the loop would import for longer than a turn."""
        self._build = build
        self.is_wanted = is_wanted
        self.begins = begins
        self.module = module
        self._begin = begin
        self._close = close
        self._stop = stop
        self.made: T | None = None
        """The service, None as long as it is not built."""

    def get(self) -> T:
        """Return the service, built now if need be. Raises what building it raises."""
        if self.made is None:
            self.made = self._build()
        return self.made

    def begin_if_wanted(self) -> None:
        """Build and begin the service if the broker's start wants it."""
        if self.is_wanted():
            self._begin(self.get())

    def close(self) -> None:
        """Answer what clients wait for, if the service was built. A defect is logged: the broker goes on to stop."""
        if self.made is not None:
            try:
                self._close(self.made)
            except Exception:
                logger.exception("%s is not closed, and the broker stops without that", type(self.made).__name__)

    async def stop(self) -> None:
        """End threads and sockets, if the service was built. A defect is logged: logs are still to be flushed."""
        if self.made is not None:
            try:
                await self._stop(self.made)
            except Exception:
                logger.exception("%s is not stopped, and the broker stops without that", type(self.made).__name__)
