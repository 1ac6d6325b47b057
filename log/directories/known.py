"""``known-log-directories``: paths of the log directories that a broker without a cluster served last, one in a line.

The file lies in the first directory. A directory that it names, and that has lost its ``meta.properties``, is an empty
mount point or a new disk: the broker must not take it for a new directory, as its logs would seem to be empty.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Container, Iterable

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


def note_known_directories(file_system: FileSystem, directories: Iterable[str], failed: Container[str] = ()) -> None:
    """Write the paths into the first directory, if they have changed. A single directory needs no file.

    A directory of ``failed`` stays in the list, but is not added: it may never have been used. If the file cannot be
    read or written, that is only logged.
    """
    paths = {directory: os.path.abspath(directory) for directory in directories}
    first = next(iter(paths.values()))
    try:
        known = read_known_directories(file_system, first)
        noted = dict.fromkeys(path for given, path in paths.items() if given not in failed or path in known)
        if known != noted.keys() and (known or len(noted) > 1):
            data = os.fsencode("".join(f"{path}\n" for path in noted))
            file_system.replace_file(os.path.join(first, KNOWN_DIRECTORIES_FILE), data)
    except LogStorageError as error:
        logger.warning("the list of log directories could not be written; the next start tries again: %s", error)
