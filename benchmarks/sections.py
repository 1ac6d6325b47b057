"""Benchmarks that print a table of their own, run as child processes so that a failed one does not stop the others.

Each is also a program: ``python -m benchmarks.<name>``. Sections run after the rows, once the rows' brokers have
stopped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.rows import KAFKA

SECTION_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Section:
    """A program among the benchmarks: its title, and the arguments that it gets without a rival and in a smoke run."""

    title: str
    alone: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


SECTIONS = {
    "recovery": Section("Recovery: scanning a log after a kill", alone=("--no-kafka",), quick=("--mb", "20")),
    "validation": Section("Validation: one batch, plain Python and compiled"),
    "fsync": Section("Group fsync: flush.messages=1", alone=("--no-kafka",), quick=("--seconds", "1")),
    "cold_read": Section(
        "A cold catch-up read beside a steady load", alone=("--no-kafka",), quick=("--mb", "100", "--seconds", "1")
    ),
}
"""Sections by the name of their module."""


def command(name: str, rival: str, *, quick: bool) -> list[str]:
    """Return the command of a section."""
    section = SECTIONS[name]
    words = [sys.executable, "-m", f"benchmarks.{name}"]
    return [*words, *(section.quick if quick else ()), *(() if rival == KAFKA else section.alone)]


def run_sections(
    names: Sequence[str], rival: str, *, quick: bool, report: Callable[[str], None] = print
) -> list[tuple[str, str]]:
    """Run sections one by one; return the title and the text of each, for a failed one its last lines."""
    found = []
    for name in names:
        text = run_section(command(name, rival, quick=quick))
        report(f"\n## {SECTIONS[name].title}\n\n{text}")
        found.append((SECTIONS[name].title, text))
    return found


def run_section(words: Sequence[str]) -> str:
    """Run a section; return its output, or the reason of its failure."""
    shown = " ".join(words[1:])
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECTION_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`{shown}` was not done after {SECTION_TIMEOUT_S:.0f} s"
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        return f"`{shown}` failed with {done.returncode}:\n\n{last}"
    return f"`{shown}`\n\n{done.stdout.strip()}"
