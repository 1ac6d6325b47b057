"""The ``tidelog`` command: one table of sub-commands, each a module imported only when it is asked for.

A command module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments) -> int`` (the exit code).
Exit codes: 0 done, 1 the thing asked for failed, 2 the command line or the configuration is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

COMMANDS = {
    "serve": "tidelog.commands.serve",
    "ping": "tidelog.commands.ping",
    "dump-log": "tidelog.commands.dump_log",
    "check": "tidelog.commands.check",
    "adopt": "tidelog.commands.adopt",
    "compaction": "tidelog.commands.compaction",
    "find": "tidelog.commands.find",
    "pipeline": "tidelog.commands.pipeline",
    "version": "tidelog.commands.version",
}
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"] and len(words) == 2 and words[1] in COMMANDS:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else EXIT_USAGE
    if words[0] == "--version":
        words[0] = "version"
    if words[0] not in COMMANDS:
        print(f"tidelog: no command {words[0]!r}; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    return run_command(words[0], words[1:])


def run_command(name: str, words: Sequence[str]) -> int:
    """Parse one command's arguments and run it. Returns the exit code."""
    import argparse

    module = load(name)
    parser = argparse.ArgumentParser(prog=f"tidelog {name}", description=module.HELP, allow_abbrev=False)
    module.add_arguments(parser)
    try:
        arguments = parser.parse_args(words)
    except SystemExit as exit_request:  # argparse's way to end after --help and after wrong arguments
        return int(exit_request.code or 0)
    code: int = module.run(arguments)
    return code


def load(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(COMMANDS[name])


def usage() -> str:
    """What ``tidelog --help`` prints."""
    lines = ["usage: tidelog COMMAND [OPTIONS]", "", "A Kafka broker in Python.", "", "commands:"]
    lines += [f"  {name:<10} {load(name).HELP}" for name in COMMANDS]
    lines += ["", "tidelog COMMAND --help tells a command's options."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
