"""The floor of the benchmarks: a C program that only receives, checks the CRC-32C, writes, and sends files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.native import compile_executable
from benchmarks.rivals.process import BrokerProcess, free_port


class Floor(BrokerProcess):
    """A process of ``loadgen/floor.c``: no broker can do the same work with less CPU time."""

    name = "floor"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, free_port())

    def command(self) -> list[str]:
        """Return the command line with port and data file. Raises as `compile_executable`."""
        return [str(compile_executable("floor")), str(self.port), str(self.directory / "records")]

    def wait_until_ready(self, deadline: float) -> None:
        """Ask ApiVersions until the process answers."""
        self.answer_or_fail(deadline, 0.001)

    def clean_exit_codes(self) -> tuple[int, ...]:
        """Return the exit code of a process that SIGTERM ends: the program handles no signal."""
        return (-15,)
