"""``tidelog version``: prints the versions of Tidelog, uvloop, numpy and Python, and the use of compiled modules."""

from __future__ import annotations

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import json_option
from tidelog.commands.frame.output import print_json


@click.command(cls=Command)
@json_option
def command(*, as_json: bool) -> None:
    """Print the versions of Tidelog, uvloop, numpy and Python."""
    import platform
    from importlib.metadata import version

    from tidelog.log.records.engine import IS_COMPILED

    versions = {name: version(name) for name in ("tidelog", "uvloop", "numpy")}
    if as_json:
        print_json({**versions, "compiled": IS_COMPILED, "python": platform.python_version()})
        return
    for name, number in versions.items():
        print(f"{name} {number}")
    print(f"compiled: {'yes' if IS_COMPILED else 'no'}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
