"""The ``tidelog`` command line: its entry point.

``tidelog/commands/table.py`` has the commands, ``tidelog/commands/frame`` their shared parts, and
docs/internals/command-line.md their rules. ``tidelog serve`` with valid options imports of these only two
modules of constants, because the others would stay in the broker's memory.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.commands.frame.completion_variable import COMPLETION_VARIABLE
from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED

if TYPE_CHECKING:
    from tidelog.commands.running.serve_process import ServeWords


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry point. Returns the exit code."""
    # NumPy's import starts a thread for each processor, and each spins for a tenth of a second: no command uses them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = dispatch(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, because an error at the interpreter's exit would be printed
    except KeyboardInterrupt:  # while the modules of the command were imported
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        if not is_output_closed():
            raise  # it is an error of another pipe or socket
    else:
        return code
    # The interpreter flushes once more when it exits: buffered output goes to /dev/null.
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
    """Run the command that the arguments name. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        words[0] = "version"
    if words[:1] == ["serve"] and COMPLETION_VARIABLE not in os.environ:
        from tidelog.commands.running.serve_process import read_words

        options = read_words(words[1:])
        if options is not None:
            return serve(options)
    from tidelog.commands.table import dispatch as call

    return call(words)


def serve(options: ServeWords) -> int:
    """Run a broker, and print an error in one line. Returns the exit code."""
    from tidelog.commands.running.serve_process import run
    from tidelog.protocol.errors import KafkaError

    try:
        return run(options)
    except BrokenPipeError:
        raise
    except (KafkaError, OSError) as error:
        print(f"tidelog serve: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
