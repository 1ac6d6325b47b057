"""The two C programs of the benchmarks, compiled on first use and after each change of their source."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.histogram import Histogram
from benchmarks.rivals.kafka_jars import BUILD, build_lock, find_tool

SOURCES = Path(__file__).resolve().parent / "loadgen"
FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
GCC_INSTALL = "apt-get install gcc libc6-dev"
RUN_TIMEOUT_S = 1800


class LoadError(RuntimeError):
    """The load client ended with an error: for example the broker answered an error or closed the connection."""


def compile_executable(name: str) -> Path:
    """Compile the executable of ``loadgen/<name>.c``. Several processes may call it at once.

    Raises MissingToolError without a C compiler, and CalledProcessError or TimeoutExpired if the compiler fails.
    """
    texts = [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    directory = BUILD / "loadgen"
    program = directory / f"{name}-{digest}"
    if program.exists():
        return program
    compiler = find_tool("gcc", GCC_INSTALL)
    with build_lock(directory):
        if not program.exists():
            unfinished = directory / f"{program.name}.{os.getpid()}"
            command = [compiler, *FLAGS, "-o", str(unfinished), str(SOURCES / f"{name}.c")]
            subprocess.run(command, check=True, timeout=120)
            unfinished.rename(program)
    return program


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Results of one run of the load client. Fields that a mode does not have are 0 or empty."""

    seconds: float
    requests: int
    records: int
    payload_bytes: int
    """Bytes of record values: the number of records times the option ``value_bytes`` (1,000 by default)."""
    client_cpu_s: float
    intended: int
    completed: int
    latency: Histogram
    end_to_end: Histogram


def run_load(mode: str, host: str, port: int, **options: str | float) -> LoadResult:
    """Run the load client to its end. ``options`` are its command-line options, with ``_`` for ``-``.

    Raises LoadError, subprocess.TimeoutExpired after RUN_TIMEOUT_S, and as ``compile_executable``.
    """
    command = [str(compile_executable("loadgen")), mode, "--host", host, "--port", str(port)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise LoadError(done.stderr.strip() or f"loadgen ended with {done.returncode}")
    return parse_load_result(json.loads(done.stdout))


def parse_load_result(found: dict[str, Any]) -> LoadResult:
    """Parse the JSON object that the load client prints."""
    return LoadResult(
        seconds=found["seconds"],
        requests=found.get("requests", 0),
        records=found.get("records", found.get("consumed_records", 0)),
        payload_bytes=found.get("payload_bytes", 0),
        client_cpu_s=found["client_user_s"] + found["client_system_s"],
        intended=found.get("intended", 0),
        completed=found.get("completed", 0),
        latency=Histogram.from_pairs((bucket, count) for bucket, count in found["latency"]),
        end_to_end=Histogram.from_pairs((bucket, count) for bucket, count in found.get("end_to_end", [])),
    )
