"""``tidelog version``: prints the versions of Tidelog, its dependencies and Python."""

from __future__ import annotations

import argparse

HELP = "print the versions of Tidelog, its dependencies and Python"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(arguments: argparse.Namespace) -> int:
    """Print one line per component."""
    import platform
    from importlib.metadata import version

    for name in ("tidelog", "uvloop", "numpy"):
        print(f"{name} {version(name)}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    return 0
