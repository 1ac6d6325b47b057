"""The ``tidelog`` command line: a table of sub-commands, each a module that is imported when it is asked for.

A command module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments) -> int`` (the exit code).
Exit codes: 0 done, 1 the thing asked for failed, 2 the command line or the configuration is wrong, 141 the reader of
standard output closed it early, as ``head`` does.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

COMMANDS = {
    "serve": "tidelog.commands.serve",
    "format": "tidelog.commands.format",
    "ping": "tidelog.commands.ping",
    "dump-log": "tidelog.commands.dump_log",
    "check": "tidelog.commands.check",
    "adopt": "tidelog.commands.adopt",
    "metadata": "tidelog.commands.metadata",
    "compaction": "tidelog.commands.compaction",
    "find": "tidelog.commands.find",
    "pipeline": "tidelog.commands.pipeline",
    "version": "tidelog.commands.version",
}
EXIT_USAGE = 2
#: 128 + SIGPIPE, as a shell reports other programs whose output was closed.
EXIT_OUTPUT_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point. Returns the exit code."""
    try:
        code = dispatch(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, because an error at the interpreter's exit would be printed
    except BrokenPipeError:
        if not is_output_closed():
            raise  # another pipe or socket broke
    else:
        return code
    # The interpreter flushes once more when it exits: what is left goes to /dev/null.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return EXIT_OUTPUT_CLOSED


def is_output_closed() -> bool:
    """Return whether the reader of standard output has closed it."""
    try:
        output = sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation, ValueError):
        return False
    poll = select.poll()
    poll.register(output, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def dispatch(argv: Sequence[str] | None) -> int:
    """Find the command that the arguments name and run it. Returns the exit code."""
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
    """Import the module of a command."""
    return import_module(COMMANDS[name])


def usage() -> str:
    """Build the text that ``tidelog --help`` prints."""
    lines = ["usage: tidelog COMMAND [OPTIONS]", "", "A Kafka broker in Python.", "", "commands:"]
    lines += [f"  {name:<10} {load(name).HELP}" for name in COMMANDS]
    lines += ["", "tidelog COMMAND --help lists a command's options."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
