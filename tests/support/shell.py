"""The ``tidelog`` command line in this process, against a broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.cli import main

WAIT_S = 60.0


class Shell:
    """Runs ``tidelog`` commands in this process, by ``main``, against a broker."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def text(self, *words: str) -> str:
        """Return the standard output of a command that succeeds."""
        code = main([*words, "--bootstrap", self.bootstrap])
        captured = self._capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    def json(self, *words: str) -> Any:
        """Return the answer of a command that succeeds, as JSON."""
        return json.loads(self.text(*words, "--json"))

    def until(self, expected: Any, *words: str, of: Callable[[Any], Any] = lambda answer: answer) -> None:
        """Wait until the JSON answer of a command is as expected: Apache Kafka's brokers learn of changes later."""
        deadline = time.monotonic() + WAIT_S
        while (found := of(self.json(*words))) != expected and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found == expected

    def failure(self, *words: str, code: int = 1) -> str:
        """Return the only line that a failing command prints to standard error."""
        ended = main([*words, "--bootstrap", self.bootstrap])
        lines = self._capsys.readouterr().err.splitlines()
        assert (ended, len(lines)) == (code, 1), lines
        assert lines[0].startswith(f"tidelog {words[0]}")
        return lines[0]
