"""A client of the soak: a thread that does one thing over and over until the soak ends, and then checks it."""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

KNOWN_LINES = 20
"""So many faults of one party are printed at most."""


@dataclass
class World:
    """The broker's address and directory, the seed, and the end: common to all parties."""

    port: int
    data_directory: Path
    scratch: Path
    seed: int
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"


class Party(threading.Thread):
    """One client. ``counts`` tells what it did, ``faults`` what went wrong, with topics and offsets."""

    pause_s = 0.05
    """The pause between two turns."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.world = world
        self.chance = random.Random(f"{world.seed} {name}")
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        """Work until the end; an exception that escapes is a fault."""
        try:
            self.work()
        except Exception:  # noqa: BLE001 - told by the soak
            self.faults.append(traceback.format_exc())

    def work(self) -> None:
        """Take turns until the soak is stopped, then do what is left."""
        while not self.world.stopped.wait(self.pause_s):
            self.turn()
        self.finish()

    def turn(self) -> None:
        """Do one piece of work."""

    def finish(self) -> None:
        """End the operations that are under way."""

    def check(self) -> None:
        """Compare what the broker holds with what it acknowledged. Faults go to ``faults``."""

    def checked(self) -> None:
        """Check; an exception that escapes is a fault."""
        try:
            self.check()
        except Exception:  # noqa: BLE001 - told by the soak
            self.faults.append(traceback.format_exc())

    def stack(self) -> str:
        """Return the thread's call stack as text, for a fault."""
        frame = sys._current_frames().get(self.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-6:])

    def told(self) -> list[str]:
        """Return the faults, shortened."""
        more = len(self.faults) - KNOWN_LINES
        return [f"{self.name}: {fault}" for fault in self.faults[:KNOWN_LINES]] + (
            [f"{self.name}: and {more} more"] if more > 0 else []
        )
