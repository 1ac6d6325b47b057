"""Exit codes of all commands.

0 success; 1 the command failed, or found something wrong; 2 the command line or the configuration is wrong; 130
interrupted; 141 the reader of standard output closed it early, as ``head`` does; 143 ``consume`` was ended by SIGTERM.

A signal that stops ``serve``, ``cluster start`` or ``pipeline export --follow`` ends it with 0. ``check`` ends with 2
also if it cannot read something, or if a broker uses the directory.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
#: 128 + SIGINT, + SIGPIPE and + SIGTERM, as a shell reports programs that these signals end.
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141
EXIT_TERMINATED = 143
