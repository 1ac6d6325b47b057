"""Origins of the sockets of the tests' process: the warning about an unclosed socket shows the code that created it.

The garbage collector finds a socket that was not closed later, maybe during a test of another module. Python's warning
shows only its two ports. Here it also shows the test that ran, the thread, and the stack frames that created the
socket. This works for sockets of Python's ``socket`` module, not for those of uvloop and of libraries in C.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

MAX_FRAMES = 30
"""Stack frames kept of a socket's creation: a client library has up to twenty between the test and its socket."""
SHOWN_FRAMES = 8
"""Innermost frames in a warning; one frame of the project follows, if the others have one."""
_ROOT = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = ("site-packages" + os.sep, f"python{sys.version_info[0]}.{sys.version_info[1]}" + os.sep)


class Origin(NamedTuple):
    """The stack frames that created a socket, innermost first, as file and line; the thread; the test that ran."""

    frames: tuple[tuple[str, int], ...]
    thread: str
    test: str


_origins: dict[int, Origin] = {}
"""The origin of the last socket with each descriptor. A socket that is warned of is open: its descriptor is its own."""


@cache
def note_socket_origins() -> None:
    """Make each new socket record its origin and show it in its ``repr``, until the process ends."""
    make, show = socket.socket.__init__, socket.socket.__repr__

    @wraps(make)
    def noting(self: socket.socket, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        _origins[self.fileno()] = _current_origin()

    @wraps(show)
    def showing(self: socket.socket) -> str:
        origin = _origins.get(self.fileno())
        return f"{show(self)} made {describe_origin(origin)}" if origin else show(self)

    socket.socket.__init__ = noting  # type: ignore[method-assign]
    socket.socket.__repr__ = showing  # type: ignore[method-assign, assignment]


def _current_origin() -> Origin:
    """Return the origin of the socket whose constructor calls this function."""
    frames: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < MAX_FRAMES:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return Origin(tuple(frames), threading.current_thread().name, os.environ.get("PYTEST_CURRENT_TEST", "no test"))


def describe_origin(origin: Origin) -> str:
    """Return an origin as text: the test, the thread, the innermost frames, and the next frame of the project."""
    shown = [f"{_short(file)}:{line}" for file, line in origin.frames[:SHOWN_FRAMES]]
    ours = [f"{_short(file)}:{line}" for file, line in origin.frames[SHOWN_FRAMES:] if _is_ours(file)]
    return f"in {origin.test}, thread {origin.thread}, at {' < '.join(shown + ours[:1])}"


def _is_ours(file: str) -> bool:
    """Return whether a file is the project's own, and not of a virtual environment inside the checkout."""
    return file.startswith(_ROOT) and not any(library in file for library in _LIBRARIES)


def _short(file: str) -> str:
    """Return a file's name without the folders that all files of its kind share."""
    for beginning in (*_LIBRARIES, _ROOT):
        file = file.rpartition(beginning)[2]
    return file
