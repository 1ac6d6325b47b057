"""The one place that knows whether a path is a directory of this machine or one of an object store.

Everything else joins names to paths and asks here: what lies there, small files as a whole, and files by position.
"""

from __future__ import annotations

import os

from log.file_system import OsFileSystem, ReadableFiles
from pipeline.errors import OptionError
from pipeline.remote import RemoteFiles, is_remote, is_remote_directory, listing, remote_path

_LOCAL_FILES = OsFileSystem()


def place_of(given: str) -> str:
    """The path of a directory, a ``file:`` address or an object store's; absolute, because executors work elsewhere.

    Raises OptionError.
    """
    if given.startswith("file:"):
        return "/" + given.removeprefix("file:").lstrip("/")
    return remote_path(given) if is_remote(given) else os.path.abspath(given)


def mounted(given: str, what: str) -> str:
    """The path of a directory that ``what`` writes to. Raises OptionError for an object store's address."""
    path = place_of(given)
    if is_remote(path):
        raise OptionError(
            f"{what} {given}: expected a directory that is mounted where the driver and the executors run"
        )
    return path


def names_in(directory: str) -> list[str]:
    """The names in a directory. Raises FileNotFoundError, another OSError, RemoteError."""
    return list(listing(directory)) if is_remote(directory) else os.listdir(directory)


def is_directory(path: str) -> bool:
    """Whether there is a directory. Raises RemoteError."""
    return is_remote_directory(path) if is_remote(path) else os.path.isdir(path)


def files_at(path: str) -> ReadableFiles:
    """Reads small files below ``path``, for the functions of ``log.checkpoints``."""
    return RemoteFiles() if is_remote(path) else _LOCAL_FILES
