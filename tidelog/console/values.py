"""Keys, values and header values of records as text for people: text, JSON or hexadecimal, cut to a limit.

    auto   JSON if it is an object or array, else text if it is UTF-8 without control characters, else hexadecimal
    text   UTF-8, with U+FFFD in place of other bytes
    json   JSON, indented on the page of one record; text if it is not JSON
    hex    16 bytes in a line, with their positions and characters
    schema decoded by the schema that the value names, if this broker is its registry; ``auto`` does the same

A limit counts the bytes of the HTML: ``<`` takes four of them, ``"`` five, a non-ASCII character up to four.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tidelog.protocol.foreign_text import decode_json

AUTO, TEXT, JSON, HEX, SCHEMA = "auto", "text", "json", "hex", "schema"
FORMATS = (AUTO, TEXT, JSON, HEX, SCHEMA)
HEX_COLUMNS = 16
MAX_JSON_BYTES = 64 * 1024
"""A larger value is not parsed, because only a part of it could be shown."""
_ESCAPED = {"&": 5, "<": 4, ">": 4, '"': 5, "'": 5}


class ShownText(NamedTuple):
    """The text of some bytes; ``text`` is None for null."""

    text: str | None
    format: str
    size: int
    is_cut: bool


def check_format(name: str) -> str:
    """Return the format's name. Raises ValueError."""
    if name not in FORMATS:
        raise ValueError(f"format is {name[:20]!r}: expected {', '.join(FORMATS)}")
    return name


def show(content: bytes | None, wanted: str, limit: int, *, indent: int | None = 2) -> ShownText:
    """Format bytes; ``limit`` is in bytes of HTML. With ``indent`` None JSON is in one line."""
    if content is None:
        return ShownText(None, TEXT, 0, False)
    format_used, text = _format(content, AUTO if wanted == SCHEMA else wanted, limit, indent)
    cut = clip(text, limit)
    return ShownText(
        cut, format_used, len(content), len(cut) < len(text) or _is_formatted_in_part(content, format_used, limit)
    )


def show_decoded(value: Any, name: str, size: int, limit: int, *, indent: int | None = 2) -> ShownText:
    """Format a value that was decoded by its schema: ``name`` of the schema, ``size`` of the value in bytes."""
    text, is_whole = _encode_beginning(value, indent, limit)
    cut = clip(text, limit)
    return ShownText(cut, name, size, not is_whole or len(cut) < len(text))


def _encode_beginning(value: Any, indent: int | None, limit: int) -> tuple[str, bool]:
    """Return the beginning of a value as JSON, and whether it is complete.

    It ends at ``limit``, because a few bytes may decode to many long field names, or where the value is nested deeper
    than Python's recursion limit.
    """
    parts, length = list[str](), 0
    try:
        for part in json.JSONEncoder(indent=indent, ensure_ascii=False).iterencode(value):
            parts.append(part)
            length += len(part)
            if length > limit:
                return "".join(parts), False
    except RecursionError:
        return "".join(parts), False
    return "".join(parts), True


def clip(text: str, limit: int) -> str:
    """Return the longest beginning of a text that takes up to ``limit`` bytes as HTML."""
    used = 0
    for position, character in enumerate(text):
        used += _ESCAPED.get(character) or (1 if character < "\x80" else len(character.encode("utf-8", "replace")))
        if used > limit:
            return text[:position]
    return text


def dump(content: bytes) -> str:
    """Format bytes in hexadecimal, with their positions and characters."""
    lines = []
    for position in range(0, len(content), HEX_COLUMNS):
        row = content[position : position + HEX_COLUMNS]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{position:08x}  {row.hex(' '):<{3 * HEX_COLUMNS}} {characters}")
    return "\n".join(lines)


def _format(content: bytes, wanted: str, limit: int, indent: int | None) -> tuple[str, str]:
    if wanted == HEX:
        return HEX, dump(content[:limit])
    if wanted in (AUTO, JSON):
        text = _as_json(content, indent, only_structures=wanted == AUTO)
        if text is not None:
            return JSON, text
    if wanted == AUTO and not _is_text(content[: limit + 1]):
        return HEX, dump(content[:limit])
    return TEXT, content[: 4 * (limit + 1)].decode("utf-8", "replace")


def _is_formatted_in_part(content: bytes, format_used: str, limit: int) -> bool:
    return format_used != JSON and len(content) > (limit if format_used == HEX else 4 * (limit + 1))


def _as_json(content: bytes, indent: int | None, *, only_structures: bool) -> str | None:
    """Format JSON again; None if the bytes are not JSON, or too large."""
    if len(content) > MAX_JSON_BYTES or (only_structures and content[:1] not in (b"{", b"[")):
        return None
    try:
        return json.dumps(decode_json(content), indent=indent, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _is_text(content: bytes) -> bool:
    """Return whether bytes are UTF-8 without control characters; the last character may be incomplete."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.end != len(content):
            return False
        text = content[: error.start].decode()
    return all(character.isprintable() or character in "\t\r\n" for character in text)
