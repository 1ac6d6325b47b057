"""Lines of the log: one for each message, whatever text of a client it holds.

Clients choose names of groups and reasons for leaving them, with line breaks if they like. Written as they are, these
could look like other lines, such as those of the audit log.
"""

from __future__ import annotations

import logging

LINE_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """Formatter that escapes control characters in messages. Tracebacks after a message keep their lines."""

    def __init__(self) -> None:
        super().__init__(LINE_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return escape(super().formatMessage(record))


def escape(text: str) -> str:
    """Return ``text`` without characters that would end or hide the line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
