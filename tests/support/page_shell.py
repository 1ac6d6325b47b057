"""A shell that runs the examples of documents in a directory of its own, with ``tidelog`` and Kafka's tools on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.broker_process import clean_environment

TIMEOUT_S = 120


class PageShell:
    """A shell for one page; ``changes`` maps the page's paths and addresses to those of the test."""

    def __init__(self, directory: Path, changes: dict[str, str], scripts: Path | None = None) -> None:
        self.directory = directory
        self.changes = changes
        path = [str(Path(sys.executable).parent), *([str(scripts)] if scripts else []), os.environ["PATH"]]
        self.environment = {**clean_environment(), "PATH": os.pathsep.join(path), "LC_ALL": "C.UTF-8"}

    def place(self, text: str) -> str:
        """Replace the page's paths and addresses in a text by those of the test."""
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text

    def run(self, command: str) -> str:
        """Run a command that must succeed; return its output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.place(command)],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command inside ``with``, and end it by SIGTERM; its standard output can be read line by line."""
        words = ["bash", "-euo", "pipefail", "-c", f"exec stdbuf -oL {self.place(command)}"]
        with (
            (self.directory / "errors.txt").open("a") as errors,
            subprocess.Popen(
                words, cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()

    def first_line(self, command: str) -> str:
        """Run a command that does not end by itself; return its first line, and end it."""
        with self.running(command) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
        assert line, (self.directory / "errors.txt").read_text()
        return line
