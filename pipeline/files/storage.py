"""The choice between local files and objects of a store, made from the path alone.

Other modules build paths by joining names, and call these functions to list directories and to read small files.
``sources`` opens files that are read by position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidelog.log.system.file_system import OsFileSystem, ReadableFiles
from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.files.remote import RemoteFiles, is_remote, is_remote_directory, list_directory, remote_path

_LOCAL_FILES = OsFileSystem()
#: Threads that send requests to an object store: each waits most of the time.
REQUEST_THREADS = 16
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def resolve_path(given: str, what: str = "path") -> str:
    """Return the absolute path of a directory or a ``file:`` address, or the path of an object store's address.

    Executors have another working directory, so a relative path would mean another directory there. Raises OptionError,
    whose message begins with ``what``.
    """
    if "\0" in given:
        raise OptionError(f"{what} {given!r}: expected a path without a null character")
    if given.startswith("file:"):
        return "/" + given.removeprefix("file:").lstrip("/")
    return remote_path(given, what) if is_remote(given) else os.path.abspath(given)


def require_mounted(given: str, what: str) -> str:
    """Return the path of a local directory that the option or job ``what`` writes to. Raises OptionError for an object
    store's address."""
    path = resolve_path(given, what)
    if is_remote(path):
        raise OptionError(
            f"{what} {given}: expected a directory that is mounted where the driver and the executors run"
        )
    return path


def names_in(directory: str) -> list[str]:
    """List the names in a directory. Raises FileNotFoundError, another OSError, OptionError, RemoteError."""
    return list(list_directory(directory)) if is_remote(directory) else os.listdir(directory)


def is_directory(path: str) -> bool:
    """Return whether the path is a directory. Raises OptionError, RemoteError."""
    return is_remote_directory(path) if is_remote(path) else os.path.isdir(path)


def for_each(items: Sequence[_Item], path_of: Callable[[_Item], str], work: Callable[[_Item], _Found]) -> list[_Found]:
    """Return the results of ``work`` for each item, in order. For items in an object store, REQUEST_THREADS threads
    work at the same time. Raises the error of the first item that fails.
    """
    if len(items) < 2 or not is_remote(path_of(items[0])):
        return [work(item) for item in items]
    with ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="look") as threads:
        return list(threads.map(work, items))


def files_at(path: str) -> ReadableFiles:
    """Return a reader of the small file at ``path``, for the functions of ``tidelog.log.files.checkpoints``."""
    return RemoteFiles() if is_remote(path) else _LOCAL_FILES
