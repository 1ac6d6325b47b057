"""The base class of the soak's parties: each acts as a client in a thread of its own, and checks the broker's data at
the end."""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MAX_FAULTS = 20
"""Faults of one party that are printed; of further ones only the number."""


@dataclass
class World:
    """The broker's port and data directory, a scratch directory, the seed and the signal to stop, for all parties."""

    port: int
    data_directory: Path
    scratch: Path
    seed: int
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"


class Party:
    """One or a few clients. ``counts`` has how often they did what, ``faults`` what went wrong, as lines of text.

    A party has a thread and is none: a method called ``_delete`` would replace one of ``threading.Thread``.
    """

    pause_s = 0.05
    """The pause between two turns."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.world = world
        self.chance = random.Random(f"{world.seed} {name}")
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        """Work until the end; an exception that escapes is a fault."""
        try:
            self.work()
        except Exception:  # noqa: BLE001 - reported by the soak
            self.faults.append(traceback.format_exc())

    def work(self) -> None:
        """Call ``turn`` again and again until the soak is stopped, then ``finish``."""
        while not self.world.stopped.wait(self.pause_s):
            self.turn()
        self.finish()

    def turn(self) -> None:
        """Do one piece of work."""

    def finish(self) -> None:
        """Complete the operations that are under way."""

    def check(self) -> None:
        """Compare what the broker holds with what it acknowledged. Faults go to ``faults``."""

    def run_check(self) -> None:
        """Check; an exception that escapes is a fault."""
        try:
            self.check()
        except Exception:  # noqa: BLE001 - reported by the soak
            self.faults.append(traceback.format_exc())

    def stack(self) -> str:
        """Return the thread's call stack as text, for a fault."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-6:])

    def fault_lines(self) -> list[str]:
        """Return the first faults, and a line with the number of the others."""
        more = len(self.faults) - MAX_FAULTS
        return [f"{self.name}: {fault}" for fault in self.faults[:MAX_FAULTS]] + (
            [f"{self.name}: and {more} more"] if more > 0 else []
        )
