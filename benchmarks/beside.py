"""A thread that runs beside what a benchmark measures."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Beside(ABC):
    """A thread that begins and ends with a ``with`` statement."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self.run)
        self.is_ended = threading.Event()
        """Set when the statement ends; the thread must then return."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_ended.set()
        self._thread.join()

    @abstractmethod
    def run(self) -> None:
        """Do the thread's work."""
