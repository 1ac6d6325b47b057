"""Stamps that tell whether a file or directory has changed: inode, size and modification time.

File systems keep times to a tick of some milliseconds, so a directory that changes twice within one tick may show one
time for both changes. What was read between them would then count as the later state, and never be read again. Hence
the directory's stamp counts only when its modification time is at least ``SETTLED_S`` seconds ago: until then the
directory is read again each time.
Files that are replaced as a whole (another inode) or only grow (another size) need not wait.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from tidelog.pipeline.files.remote import info_of, is_remote

#: Far above any tick, and above what the clocks of a file server and of this machine usually differ by.
SETTLED_S = 2.0


class Stamp(NamedTuple):
    """Values of ``stat`` that are equal while nothing has changed. Take them before reading."""

    inode: int
    size: int
    mtime_ns: int


def stamp_of(path: str) -> Stamp | None:
    """Take the stamp of a file that is replaced as a whole or only grows; None if it is missing or unreadable.

    Raises OptionError or RemoteError when an object store cannot be listed.
    """
    if is_remote(path):
        info = info_of(path)
        return None if info is None or info.is_directory else Stamp(0, info.size, info.mtime_ns)
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def settled_stamp_of(path: str) -> Stamp | None:
    """Take the stamp of a local directory; None also if it changed less than ``SETTLED_S`` seconds ago.

    A directory of an object store has none. Raises OptionError or RemoteError when the store cannot be listed.
    """
    stamp = stamp_of(path)
    if stamp is None or time.time_ns() - stamp.mtime_ns < SETTLED_S * 1e9:
        return None
    return stamp
