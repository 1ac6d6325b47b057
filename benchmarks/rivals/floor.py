"""The C program that is the floor of benchmarks: it only receives, checks the CRC-32C, writes, and sends files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.native import compiled
from benchmarks.rivals.process import BrokerProcess, free_port


class Floor(BrokerProcess):
    """A process of ``loadgen/floor.c``. No broker can do the same work with less."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, free_port())

    def command(self) -> list[str]:
        """Return the command line with port and data file."""
        return [str(compiled("floor")), str(self.port), str(self.directory / "records")]

    def wait_until_ready(self, deadline: float) -> None:
        """Ask until it answers."""
        self.answer_or_fail(deadline, 0.001)

    def clean_exit_codes(self) -> tuple[int, ...]:
        """Return the exit code: it handles no signal, SIGTERM ends it."""
        return (-15,)
