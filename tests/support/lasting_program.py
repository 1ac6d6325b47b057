"""Programs that stay between questions: a start of Node or Python takes 0.2 s of CPU time.

A question is a line of JSON on standard input, its answer a line on standard output. A program ends with its input.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


class LastingProgram:
    """A program that is started with its first question, and stays until one fails. Any thread may ask.

    ``timeout_s`` is the time for one answer; ``environment`` is that of this process if None.
    """

    def __init__(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the program
        atexit.register(self._end)

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question. If the program ends, the test fails and shows what it wrote since then to
        standard error.

        Raises subprocess.TimeoutExpired.
        """
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env=self._environment,
                )
            errors_before = os.fstat(self._errors.fileno()).st_size
            line = self._exchange(self._process, json.dumps(question).encode() + b"\n")
            if not line:
                self._end()
                errors = os.pread(self._errors.fileno(), 1 << 20, errors_before)
                raise AssertionError(errors.decode(errors="replace")[-3000:])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes) -> bytes:
        """Write a line and return the program's next line; empty if it has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # its standard error says why it has ended
            process.stdin.write(line)
            process.stdin.flush()
        if not select.select([process.stdout], [], [], self._timeout_s)[0]:
            process.kill()
            self._end()
            raise subprocess.TimeoutExpired(self._command, self._timeout_s)
        return process.stdout.readline()

    def _end(self) -> None:
        """Let the program end, which it does with its input."""
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None
