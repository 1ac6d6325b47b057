"""A JVM that stays until the process of the tests ends, and takes requests on its standard input."""

from __future__ import annotations

import atexit
import subprocess
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

_lasting: weakref.WeakSet[LastingJvm] = weakref.WeakSet()


class LastingJvm:
    """A JVM that is started when it is first needed. ``make_command`` returns its command line.

    ``log_path`` is the file for its standard error; None for that of this process. ``lock`` must be held for a request
    and its response.
    """

    def __init__(self, make_command: Callable[[], list[str]], log_path: Path | None = None) -> None:
        self._make_command = make_command
        self._log_path = log_path
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)
        _lasting.add(self)

    def kill(self) -> None:
        """Kill the JVM; the next request starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def has_leftovers(self) -> bool:
        """Return whether tests have left something in the JVM that would disturb later ones."""
        return False

    def running(self) -> subprocess.Popen[bytes]:
        """Return the JVM; the first time, or after a kill, compile its program if needed, and start it."""
        if self._process is None:
            if self._log_path is not None:
                self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with nullcontext() if self._log_path is None else self._log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    self._make_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
                )
        return self._process


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Kill the JVMs in which the tests of a module have left something, after the last of them."""
    if _lasting and (nextitem is None or nextitem.path != item.path):
        for jvm in _lasting:
            if jvm.has_leftovers():
                jvm.kill()
