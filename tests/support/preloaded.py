"""Libraries in C that tests preload into brokers, to record or change what the brokers do to files."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from benchmarks.rivals.kafka_jars import BUILD, build_lock
from tests.support.requirements import require_tool

SETTINGS = ("FAILING_DISK", "POWER_ROOT", "POWER_TRACE")
"""Variables that these libraries read when they need them, not when the process begins. So a forked process may have
others than the process that forked it."""


@cache
def compiled(source: Path) -> Path:
    """Compile a library, once for each content of its source, and return its path."""
    gcc = require_tool("gcc", "apt-get install gcc libc6-dev")
    directory = BUILD / source.stem
    library, built_from = directory / f"{source.stem}.so", directory / source.name
    with build_lock(directory):
        if not built_from.exists() or built_from.read_text() != source.read_text():
            command = [gcc, "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(source), "-ldl", "-lpthread"]
            subprocess.run(command, check=True)
            built_from.write_text(source.read_text())
    return library


def is_compiled(library: str) -> bool:
    """Return whether a path is that of a library that `compiled` has returned."""
    return Path(library).is_relative_to(BUILD)
