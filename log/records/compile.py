"""Compile kernels ahead: ``python -m log.records.compile [MODULE ...]`` fills numba's cache and exits.

Run as a child of the serving process, so that five seconds of compilation hold another interpreter's lock; also by the
container build, so that the image ships the cache. Exit code 0 when every module was compiled or was in the cache.
"""

from __future__ import annotations

import importlib
import os
import sys

DEFAULT_MODULES = (
    "log.records.kernels",
    "log.records.kernel_image",
    "log.records.scan_image",
    "log.find.kernel_image",
    "cleaner.kernel_image",
)
#: Compilation gives way to the broker it works for.
NICENESS = 10


def main(modules: list[str]) -> int:
    """Import, and so compile and cache, each module."""
    os.nice(NICENESS)
    for module in modules or DEFAULT_MODULES:
        importlib.import_module(module)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
