"""Files that only their owner can read: configurations of brokers that this process starts, keys of certificates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_KEY_ESCAPES = {sign: f"\\{sign}" for sign in " =:#!"}


def write_properties(path: Path, texts: Mapping[str, str]) -> None:
    """Write a properties file that only its owner can read. Raises what ``format_properties`` raises, OSError."""
    write_privately(path, format_properties(texts))


def format_properties(texts: Mapping[str, str]) -> str:
    """Format keys and values as a properties file in ASCII, which Java's Properties reads as they were given.

    Raises UnicodeEncodeError for half of a surrogate pair.
    """
    return "".join(f"{_escape_key(key)}={_escape(text)}\n" for key, text in texts.items())


def _escape_key(text: str) -> str:
    return "".join(_KEY_ESCAPES.get(sign) or _escape_sign(sign) for sign in text)


def _escape(text: str) -> str:
    """Escape a value. A leading space needs a backslash, because readers skip spaces after the ``=``."""
    escaped = "".join(map(_escape_sign, text))
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escape_sign(sign: str) -> str:
    if " " <= sign <= "~":
        return _ESCAPES.get(sign, sign)
    return _ESCAPES.get(sign) or "".join(f"\\u{unit}" for unit in sign.encode("utf-16-be").hex(" ", 2).split())


def write_privately(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, in place of one that exists. Raises OSError.

    The old file may be readable by others, or open in another process: it is removed, and does not get the text.
    """
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
