"""Compile kernels ahead: ``python -m tidelog.log.records.compile [MODULE ...]`` leaves their code in the cache and
exits.

Run as a child of the serving process, so that five seconds of compilation hold another interpreter's lock; also by the
container build, without a MODULE, so that the image ships the code of all kernels that a broker runs. Exit code 0 when
every module was compiled or was in the cache; without numba there is nothing to do.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys

from tidelog.log.records.array_kernels import KernelGroup
from tidelog.log.records.kernel_loader import IMAGE_MACHINE, ROOT

#: Where groups of kernels are declared, in modules named ``*_group.py``.
PACKAGES = ("tidelog/log",)
#: Compilation gives way to the broker it works for.
NICENESS = 10


def groups() -> list[KernelGroup]:
    """Every group of kernels that a broker loads, found by the name of the module that declares it."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*_group.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    found = [vars(importlib.import_module(name)).values() for name in names]
    return [value for values in found for value in values if isinstance(value, KernelGroup)]


def broker_modules() -> list[str]:
    """The modules whose import compiles all that a broker loads: images of machine code, or numba where none can be."""
    if platform.machine() == IMAGE_MACHINE:
        return [group.module for group in groups()]
    return [group.fallback for group in groups()]


def main(modules: list[str]) -> int:
    """Import, and so compile and cache, each module."""
    if importlib.util.find_spec("numba") is None:
        print("numba is not installed: there is nothing to compile", file=sys.stderr)
        return 0
    os.nice(NICENESS)
    for module in modules or broker_modules():
        importlib.import_module(module)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
