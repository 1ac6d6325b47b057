"""Traces: effects on files in the order in which a process caused them, with notes of the test's client between them.

Record: u32 size of the rest | u8 operation | u64 inode | i64 number | u32 size of text | text | data

    C create inode path     W write inode at number     T set size of inode to number   R rename   L link   U unlink
    M make directory        X remove directory          B sync number begins            S sync number of a file ended
    D sync number of a directory ended                  N note, JSON
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

_HEAD = Struct("<IBQqI")


class Step(NamedTuple):
    """One record. ``path`` and ``other`` are relative to the recorded directory, which is ""."""

    operation: str
    inode: int
    number: int
    path: str
    other: str
    data: bytes

    @property
    def note(self) -> dict[str, Any]:
        """Parse a note's contents."""
        found: dict[str, Any] = json.loads(self.path)
        return found


def read_trace(path: Path, root: Path) -> list[Step]:
    """Read all records of a trace; ``root`` is the recorded directory."""
    return list(_steps(path.read_bytes(), os.path.realpath(root)))


def _steps(content: bytes, root: str) -> Iterator[Step]:
    position = 0
    while position < len(content):
        size, operation, inode, number, text_size = _HEAD.unpack_from(content, position)
        begin, end = position + _HEAD.size, position + 4 + size
        text = content[begin : begin + text_size].decode()
        letter = chr(operation)
        names = [text] if letter == "N" else [name.removeprefix(root).lstrip("/") for name in text.split("\n")]
        yield Step(letter, inode, number, names[0], names[-1], content[begin + text_size : end])
        position = end


def append_note(path: Path, note: dict[str, Any]) -> None:
    """Append a note to a trace, in one write, because the recorded process may append at the same time."""
    text = json.dumps(note).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, _HEAD.pack(_HEAD.size - 4 + len(text), ord("N"), 0, 0, len(text)) + text)
    finally:
        os.close(descriptor)
