"""A counter of function calls in C, on the interpreter's profiler: one in Python took a quarter of a test's time."""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

from benchmarks.rivals.kafka_jars import BUILD, build_lock
from tests.support.requirements import require_tool

SOURCE = Path(__file__).with_name("call_counter.c")


@cache
def call_counter() -> ctypes.PyDLL:
    """Load the counter, compiled once for each content of its source and each Python.

    ``count()`` begins to count the calls of this thread, ``rest()`` stops counting, ``counted()`` returns the number.
    ``milliseconds(n)`` is a clock that goes on by one millisecond with each n calls.
    """
    gcc = require_tool("gcc", "apt-get install gcc libc6-dev")
    directory = BUILD / "call_counter"
    headers = sysconfig.get_path("include")
    library, built_from = directory / "call_counter.so", directory / "built_from"
    recipe = f"{headers}\n{SOURCE.read_text()}"
    with build_lock(directory):
        if not built_from.exists() or built_from.read_text() != recipe:
            command = [gcc, "-shared", "-fPIC", "-O2", "-Wall", f"-I{headers}", "-o", str(library), str(SOURCE)]
            subprocess.run(command, check=True)
            built_from.write_text(recipe)
    found = ctypes.PyDLL(str(library))
    found.counted.restype = ctypes.c_long
    found.milliseconds.argtypes, found.milliseconds.restype = [ctypes.c_long], ctypes.c_double
    found.count.restype = found.rest.restype = None
    return found
