"""``known-log-directories``: paths of the log directories with which a lone broker served last, one in a line.

The file lies in the first directory. A directory that it names, and that has lost its ``meta.properties``, is an empty
mount point or a new disk: the broker must not take it for a new directory, as its logs would seem to be empty.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable

from tidelog.log.system.file_system import FileSystem, LogStorageError

logger = logging.getLogger(__name__)

KNOWN_DIRECTORIES_FILE = "known-log-directories"


def read_known_directories(file_system: FileSystem, first: str) -> set[str]:
    """Return the paths that the first directory names; none if it has no such file. Raises LogStorageError."""
    try:
        data = file_system.read_file(os.path.join(first, KNOWN_DIRECTORIES_FILE))
    except LogStorageError as error:
        if error.os_errno != errno.ENOENT:
            raise
        return set()
    return {line for line in os.fsdecode(data).splitlines() if line}


def note_known_directories(file_system: FileSystem, directories: Iterable[str]) -> None:
    """Write the paths into the first directory, if they have changed. A single directory needs no file.

    A failure is logged: the next start tries again.
    """
    paths = list(dict.fromkeys(map(os.path.abspath, directories)))
    try:
        known = read_known_directories(file_system, paths[0])
        if known != set(paths) and (known or len(paths) > 1):
            data = os.fsencode("".join(f"{path}\n" for path in paths))
            file_system.replace_file(os.path.join(paths[0], KNOWN_DIRECTORIES_FILE), data)
    except LogStorageError as error:
        logger.warning("the list of log directories is written at the next start: %s", error)
