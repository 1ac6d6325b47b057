"""The network between nodes: each message has a delay of its own, may be lost, and does not arrive on a cut way.

A way is a direction between two nodes. Messages of one connection keep their order, because a connection has one
request in flight; messages of different connections may overtake each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.simulation.clock import Act, Clock, Process

Reply = Callable[[Any], None]
"""Sends the answer to a request."""


class Network:
    """The ways between all nodes, by their ids."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.cuts: set[tuple[int, int]] = set()
        """Ways (from, to) on which nothing arrives."""
        self.held: dict[tuple[int, int], list[Act]] = {}
        """Ways on which messages wait, with the messages: a test lets them arrive."""
        self.loss = 0.0
        self.slow_ms = 2.0
        """The mean delay."""
        self._clock = clock
        self._random = chance

    def send(self, source: int, target: int, arrive: Act) -> None:
        """Send a message: ``arrive`` is called after a delay, unless the message is lost or the way is cut."""
        if self._random.random() < self.loss:
            return
        delay_ms = 0.1 + self._random.expovariate(1 / self.slow_ms)
        if (source, target) in self.held:
            self.held[source, target].append(arrive)
            return
        self._clock.after(delay_ms, lambda: None if (source, target) in self.cuts else arrive())

    def ask(
        self,
        asker: Process,
        way: tuple[int, int],
        serve: Callable[[Reply], object],
        take: Callable[[Any], object],
        timeout_ms: float,
    ) -> None:
        """Send a request: ``serve`` is called at the target with the function that sends the response.

        ``take`` gets the response in the asker's process, or None after ``timeout_ms``.
        """
        source, target = way
        is_open = True

        def finish(answer: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                asker.run(lambda: take(answer))

        def reply(answer: Any) -> None:
            self.send(target, source, lambda: finish(answer))

        self.send(source, target, lambda: serve(reply))
        self._clock.after(timeout_ms, lambda: finish(None))
