"""Old releases of clients, each installed in its own directory below ``build/clients`` and run as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from benchmarks.rivals.kafka_jars import JAVA_INSTALL
from tests.support.java_tools import ToolServer, tool_server
from tests.support.jvm import SMALL_HEAP, TOOL_SERVER, WITHOUT_ARCHIVE, compile_java, compile_together
from tests.support.kafka_jars import KAFKA_4, broker_classpath, client_classpath
from tests.support.lasting_program import LastingProgram
from tests.support.requirements import require_tool
from tests.support.seen import Seen
from tests.support.toolchains import PROGRAMS, RUN_TIMEOUT_S, Record, installed

NULL = "-"


def ask_kafka_python(version: str, question: dict[str, Any]) -> dict[str, Any]:
    """Ask ``old_kafka_python.py``, which runs with a release of kafka-python, and return its answer."""
    answer = _kafka_python(version).ask(question)
    assert "error" not in answer, answer["error"]
    return answer


@cache
def _kafka_python(version: str) -> LastingProgram:
    """Return the program with a release, installed if it was not; it ends when this process does."""
    directory = installed(
        f"kafka-python-{version}",
        lambda target: [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)),
            f"kafka-python=={version}",
            "xxhash",  # for LZ4 in message sets v0, whose frame has a checksum of its own
        ],
    )
    program = [sys.executable, "-W", "ignore", str(PROGRAMS / "old_kafka_python.py")]
    return LastingProgram(program, RUN_TIMEOUT_S, {**os.environ, "PYTHONPATH": str(directory)})


def _word(value: bytes | None) -> str:
    return NULL if value is None else "=" + b64encode(value).decode()


def _value(word: str) -> bytes | None:
    return None if word == NULL else b64decode(word[1:])


def java_line(partition: int, seen: Seen) -> str:
    """Format a record as the Java programs read it: partition, key, value, then name and value of each header."""
    headers = [word for name, value in seen.headers for word in (_word(name.encode()), _word(value))]
    return " ".join([str(partition), _word(seen.key), _word(seen.value), *headers])


def _java_record(line: str) -> Record:
    partition, offset, timestamp, key, value, *headers = line.split(" ")
    names = [(_value(word) or b"").decode() for word in headers[::2]]
    values = [_value(word) or b"" for word in headers[1::2]]
    seen = Seen(_value(key), _value(value), tuple(zip(names, values, strict=True)))
    return Record(int(partition), int(offset), int(timestamp), seen)


def _java_programs(version: str) -> list[str]:
    """List the programs that compile with a release: the consumer exists since 0.9, transactions since 0.11.

    The admin client's program needs 0.11, and a call that 4.0 removed.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    since = {
        "Produce.java": True,
        "Consume.java": (major, minor) >= (0, 9),
        "Transact.java": (major, minor) >= (0, 11),
        "Manage.java": (0, 11) <= (major, minor) < (4, 0),
    }
    return [program for program, compiles in since.items() if compiles]


def run_java(version: str, program: str, options: dict[str, Any], lines: Iterable[str] = ()) -> list[Record]:
    """Run ``java/<program>.java`` with a release of kafka-clients, in the JVM of that release; return the records that
    it printed, by partition and offset.
    """
    words = [f"{name}={value}" for name, value in options.items()]
    stdin = "".join(f"{line}\n" for line in lines)
    done = client_server(version).run(program, words, stdin, RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [_java_record(line) for line in done.stdout.splitlines()]
    return sorted(found, key=lambda record: (record.partition, record.offset))


@cache
def client_server(version: str) -> ToolServer:
    """Return the JVM for the programs that use a release of kafka-clients."""
    return ToolServer(lambda: _server_command(version))


def run_compiler(command: list[str], _directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command of javac in the JVM of the tools: 0.3 s of CPU time for each release in place of 1.2.

    The command ``javac`` itself takes options of its JVM, and replaces ``directory/*`` with the jars in it.
    """
    words = [word for word in command[1:] if not word.startswith("-J")]
    words = [":".join(glob(f"{word}.jar")) if word.endswith("/*") else word for word in words]
    return tool_server(KAFKA_4).run("javac", words, None, timeout_s)


def _server_command(version: str) -> list[str]:
    """Compile the programs and their server; return the command of a JVM for them."""
    java = require_tool("java", JAVA_INSTALL)
    classpath = client_classpath(version)
    sources = [PROGRAMS / "java" / source for source in _java_programs(version)]
    programs = compile_together(version, sources, classpath, run_compiler)
    server = compile_java(TOOL_SERVER, KAFKA_4, broker_classpath(KAFKA_4))
    return [java, *SMALL_HEAP, *WITHOUT_ARCHIVE, "-cp", f"{server}:{programs}:{classpath}", TOOL_SERVER.stem]
