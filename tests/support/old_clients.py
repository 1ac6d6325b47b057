"""Old clients, each installed beside the others below ``build/clients`` and run as programs of their own.

A program gets a JSON object as its one argument and base64 values line by line on standard input; it prints the base64
values it read, line by line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.rivals.kafka_jars import BUILD, JAVA_INSTALL, build_lock, client_classpath
from tests.support.kafka_jars import or_skip
from tests.support.requirements import require_tool

PROGRAMS = Path(__file__).resolve().parents[1] / "clients"
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 90


def installed(name: str, install: Callable[[Path], list[str]], files: Iterable[Path] = ()) -> Path:
    """A directory below ``build/clients`` that ``install``'s command filled, once for each content of ``files``.

    The command runs in the directory, where copies of the files lie. Raises AssertionError where it fails.
    """
    directory = BUILD / "clients" / name
    sources = {path.name: path.read_bytes() for path in files}
    recipe = repr(sorted(sources.items()))
    with build_lock(directory):
        marker = directory / "complete"
        if marker.exists() and marker.read_text() == recipe:
            return directory
        for file_name, text in sources.items():
            (directory / file_name).write_bytes(text)
        command = install(directory)
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-3000:]}"
        marker.write_text(recipe)
    return directory


def run_program(
    command: list[str],
    options: dict[str, str | int],
    values: Iterable[bytes] = (),
    environment: dict[str, str] | None = None,
) -> list[bytes]:
    """Run a client program to its end; the values it printed."""
    lines = b"".join(b64encode(value) + b"\n" for value in values)
    done = subprocess.run(
        [*command, json.dumps(options)],
        input=lines,
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return [b64decode(line) for line in done.stdout.splitlines()]


def run_kafka_python(version: str, options: dict[str, str | int], values: Iterable[bytes] = ()) -> list[bytes]:
    """``old_kafka_python.py`` with a release of kafka-python."""
    directory = installed(
        f"kafka-python-{version}",
        lambda target: [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)),
            f"kafka-python=={version}",
            "xxhash",  # for LZ4 in message sets v0, whose frame has a checksum of its own
        ],
    )
    program = [sys.executable, "-W", "ignore", str(PROGRAMS / "old_kafka_python.py")]
    return run_program(program, options, values, {"PYTHONPATH": str(directory)})


def run_java_client(version: str, program: str, words: Iterable[str], values: Iterable[bytes] = ()) -> list[bytes]:
    """``java/<program>.java`` with a release of kafka-clients."""
    compiler = require_tool("javac", JAVA_INSTALL)
    classpath = or_skip(lambda: client_classpath(version))
    directory = installed(
        f"java-{version}-{program}",
        lambda target: [compiler, "-nowarn", "-cp", classpath, "-d", str(target), f"{program}.java"],
        [PROGRAMS / "java" / f"{program}.java"],
    )
    java = require_tool("java", JAVA_INSTALL)
    return run_program([java, "-Xmx256M", "-cp", f"{directory}:{classpath}", program, *words], {}, values)
