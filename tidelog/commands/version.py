"""``tidelog version``: prints the versions of Tidelog, its dependencies and Python, and whether it is compiled."""

from __future__ import annotations

import argparse

HELP = "print the versions of Tidelog, its dependencies and Python"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each component."""
    import platform
    from importlib.metadata import version

    from tidelog.log.records.engine import IS_COMPILED

    for name in ("tidelog", "uvloop", "numpy"):
        print(f"{name} {version(name)}")
    print(f"compiled: {'yes' if IS_COMPILED else 'no'}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    return 0
