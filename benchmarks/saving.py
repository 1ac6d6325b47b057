"""The output of a benchmark, line by line, and with ``--save`` as a section of RESULTS.md as well."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.machine import commit, describe
from benchmarks.report import put_section

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def add_save(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--save``."""
    parser.add_argument("--save", action="store_true", help="put a section into benchmarks/RESULTS.md")


def command_of(module: str, options: Sequence[str] | None = None) -> str:
    """Return the command that repeats a benchmark with ``options`` (default: this process's), without --save."""
    given = sys.argv[1:] if options is None else options
    return shlex.join(["python", "-m", f"benchmarks.{module}", *(one for one in given if one != "--save")])


class Page:
    """The printed lines of one run of the benchmark ``module``; with ``save`` a run without an error is saved at its
    end."""

    def __init__(self, title: str, module: str, *, save: bool) -> None:
        self._title = title
        self._command = command_of(module)
        self._save = save
        self._load = os.getloadavg()[0]
        self._lines: list[str] = []

    def print_line(self, text: str = "") -> None:
        """Print and keep a line."""
        print(text, flush=True)
        self._lines.append(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._save:
            now = datetime.datetime.now(datetime.UTC)
            about = f"`{self._command}`. Commit {commit()}. {describe()}. Load average before: {self._load:.1f}."
            body = "\n".join([about, "", *self._lines])
            put_section(RESULTS, f"{self._title}, {now:%Y-%m-%d %H:%M} UTC", body)
