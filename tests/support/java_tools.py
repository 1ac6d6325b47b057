"""Java programs in a JVM that stays: one of Kafka's command-line tools then takes 0.1 s of CPU time in place of 0.6.

``tests/support/java/ToolServer.java`` calls the main methods of Kafka's tools and of the tests' own programs, one after
the other. In each process of the tests there is one JVM for each version of Kafka, and one for each old release of its
clients. Tools that need options of their JVM share another one. It is killed when that process ends.

Some tools leave clients open, as their own JVM would end: ``kafka-transactions`` does. Eight such clients, whose broker
has gone, take a tenth of a processor. So a JVM that has some is killed when the tests of their module have ended.
"""

from __future__ import annotations

import select
import struct
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.jvm import SMALL_HEAP, TOOL_SERVER, java_program
from tests.support.kafka_jars import KAFKA_4
from tests.support.lasting_jvm import LastingJvm

CLIENT_THREADS = ("kafka-admin-client", "kafka-producer", "kafka-coordinator", "consumer_background")
"""How the names of threads of Kafka's clients begin."""
_INT = struct.Struct(">i")
_MAX_NAME = 15
"""Linux keeps so many characters of a thread's name."""


class ToolServer(LastingJvm):
    """A JVM that runs programs, one after the other."""

    def has_leftovers(self) -> bool:
        """Return whether tools have left clients, by the names of their threads; False on systems other than Linux."""
        beginnings = tuple(name[:_MAX_NAME] for name in CLIENT_THREADS)
        return any(name.startswith(beginnings) for name in self._thread_names())

    def _thread_names(self) -> list[str]:
        if self._process is None:
            return []
        names = []
        for thread in Path(f"/proc/{self._process.pid}/task").glob("*/comm"):
            with suppress(OSError):  # it has just ended
                names.append(thread.read_text().rstrip("\n"))
        return names

    def run(
        self, tool: str, arguments: list[str], stdin: str | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end, and return its exit code and output. Any thread.

        ``timeout_s`` begins when the request is sent; it includes the start of the JVM, but not the compilation of the
        server. Raises subprocess.TimeoutExpired; EOFError or BrokenPipeError if the JVM has ended.
        """
        texts = [text.encode() for text in (tool, stdin or "", *arguments)]
        request = _INT.pack(len(texts)) + b"".join(_INT.pack(len(text)) + text for text in texts)
        with self.lock:
            try:
                process = self.running()
                code, output, errors = self._answer(process, request, time.monotonic() + timeout_s)
            except TimeoutError:
                self.kill()
                raise subprocess.TimeoutExpired([tool, *arguments], timeout_s) from None
            except BaseException:
                self.kill()
                raise
        return subprocess.CompletedProcess([tool, *arguments], code, output, errors)

    def _answer(self, process: subprocess.Popen[bytes], request: bytes, deadline: float) -> tuple[int, str, str]:
        """Send a request; return exit code, standard output and standard error. Raises TimeoutError, EOFError,
        BrokenPipeError."""
        assert process.stdin is not None
        process.stdin.write(request)
        code = self._int(process, deadline)
        output, errors = (self._read(process, self._int(process, deadline), deadline).decode() for _ in range(2))
        return code, output, errors

    def _int(self, process: subprocess.Popen[bytes], deadline: float) -> int:
        number: int = _INT.unpack(self._read(process, _INT.size, deadline))[0]
        return number

    def _read(self, process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert process.stdout is not None
        data = b""
        while len(data) < size:
            if not select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError
            received = process.stdout.read(size - len(data))
            if not received:
                raise EOFError("the JVM of the tools ended")
            data += received
        return data


def tool_server(version: str, options: tuple[str, ...] = ()) -> ToolServer:
    """Return the server for the tools of a version that need these options of their JVM."""
    return _tool_server(version, options)


@cache
def _tool_server(version: str, options: tuple[str, ...]) -> ToolServer:
    """Build the server for a version and options."""
    return ToolServer(lambda: java_program(TOOL_SERVER, version, log_level="WARN", heap=(*SMALL_HEAP, *options)))


def run_program(
    source: Path, arguments: list[str], *, version: str = KAFKA_4, stdin: str | None = None, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run one of `tests.support.jvm.PROGRAMS` to its end, in the JVM of the tools. Static fields keep their values."""
    return tool_server(version).run(source.stem, arguments, stdin, timeout_s)
