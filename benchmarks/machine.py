"""Description of the machine and commit that a benchmark runs on, and a warm-up of its page cache."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import tidelog
from tidelog.log.records.engine import IS_COMPILED

ROOT = Path(__file__).resolve().parents[1]
CHUNK_BYTES = 1 << 20


def describe() -> str:
    """Describe processor, cores, memory, kernel and Python in one line, with a warning if Tidelog is not compiled."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    model = models[0] if models else platform.machine()
    software = f"Linux {platform.release()}, Python {platform.python_version()}"
    warning = "" if IS_COMPILED else f"; **Tidelog uncompiled** ({Path(tidelog.__file__).parent})"
    return f"{os.cpu_count()} x {model}, {memory_gb:.0f} GB, {software}{warning}"


def require_compiled() -> None:
    """End the process if Tidelog is not compiled: the figures of a program that measures in its own process would
    mislead.
    """
    if not IS_COMPILED:
        package = Path(tidelog.__file__).parent
        sys.exit(f"{package} is not compiled: run make extensions, or measure a wheel as benchmarks/README.md says")


def commit() -> str:
    """Name the commit of this checkout, with a mark if tracked source files differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "*.c", "*.h", "pyproject.toml")
    return f"{head} with changes" if changed else head or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def prewarm_page_cache(directory: Path, size: int) -> None:
    """Write ``size`` bytes to a file and delete it.

    A virtual machine's first use of a page costs up to ten times a later one. It would be measured as time of the first
    contender.
    """
    path = directory / "prewarm"
    block = os.urandom(CHUNK_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // CHUNK_BYTES):
            file.write(block)
    path.unlink()
