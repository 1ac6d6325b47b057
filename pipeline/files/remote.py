"""Access to copies of logs in an object store by ``pyarrow.fs``: paths, listings, small files and errors.

    given       s3://bucket/prefix?endpoint_override=...      an address, as pyarrow takes it
    path        s3://bucket?endpoint_override=.../prefix      the query moved forward, so that names can be joined to it
    root, key   s3://bucket?endpoint_override=...             the file system, and its name for the object

This module only reads objects; ``export.store`` uses ``locate`` to write those of Delta tables. Credentials are never
part of a path, because plans, errors and Spark's web pages show paths. They come from the environment of the driver and
of every executor (``AWS_ACCESS_KEY_ID`` and so on).

A listing describes all files of a directory, so one request serves all look-ups of a plan. It is used again for
``LISTING_S`` seconds, or until a file that it names is not found. Any thread.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from tidelog.log.system.file_system import LogStorageError
from tidelog.pipeline.errors import OptionError, RemoteError
from tidelog.pipeline.files.tier.view import LISTING_S, TIER_ROOT

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Scheme of an address -> pyarrow's name for it.
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss", "hdfs": "hdfs"}
#: The same stores, when they hold the objects of a remote tier (``tier.tiered``).
SCHEMES |= {f"tiered+{name}": f"tiered+{kind}" for name, kind in SCHEMES.items() if kind != "hdfs"}
MAX_LISTINGS = 10_000
_SEPARATOR = "://"
_SECRET = re.compile(r"(?i)(key|secret|token|password)[^=&]*=")
_AWS_ERROR = re.compile(r"AWS Error (\w+)(?: \([^)]*\))? during (\w+) operation: (.*)", re.DOTALL)


class RemoteInfo(NamedTuple):
    """One name of a listing. ``mtime_ns`` is 0 for a directory."""

    is_directory: bool
    size: int
    mtime_ns: int


def is_remote(path: str) -> bool:
    """Return whether a path leads to an object store."""
    return _SEPARATOR in path


def remote_path(given: str, what: str = "path") -> str:
    """Return the path of an address. Raises OptionError for an address that is not valid; ``what`` begins the
    message."""
    scheme, _, rest = given.partition(_SEPARATOR)
    location, _, query = rest.partition("?")
    authority, _, prefix = location.partition("/")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}{_SEPARATOR}" for name in SCHEMES)
        raise OptionError(f"{what} {given}: expected a directory, or an address that begins with one of {known}")
    if not authority:
        raise OptionError(f"{what} {given}: expected {scheme}{_SEPARATOR}BUCKET/PREFIX")
    if ":" in authority.rpartition("@")[0] or _SECRET.search(query):
        hidden = f"{scheme}{_SEPARATOR}...@{authority.rpartition('@')[2]}/{prefix}"
        raise OptionError(
            f"{what} {hidden}: expected no credentials in it, because plans and errors show it; set them in the "
            "environment of driver and executors (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    encoded = f"?{quote(query, safe='=&%:')}" if query else ""
    key = unquote(prefix).strip("/")
    if scheme.startswith("tiered+"):  # the prefix becomes an option: paths below look like those of a data directory
        option = f"prefix={quote(unquote(prefix), safe='')}"
        return f"{SCHEMES[scheme]}{_SEPARATOR}{authority}{encoded + '&' if encoded else '?'}{option}/{TIER_ROOT}"
    return f"{SCHEMES[scheme]}{_SEPARATOR}{authority}{encoded}" + (f"/{key}" if key else "")


def locate(path: str) -> tuple[FileSystem, str]:
    """Find the file system of a path, and its name for the object. Raises OptionError, RemoteError."""
    scheme, _, rest = path.partition(_SEPARATOR)
    authority, _, key = rest.partition("/")
    file_system, base = _connect(f"{scheme}{_SEPARATOR}{authority}", os.getpid())
    return file_system, f"{base.rstrip('/')}/{key}"


@functools.lru_cache(maxsize=64)
def _connect(root: str, _process: int) -> tuple[FileSystem, str]:
    """Connect once per process: connections do not outlive a fork."""
    from pyarrow import ArrowInvalid, ArrowNotImplementedError
    from pyarrow.fs import FileSystem

    try:
        if root.startswith("tiered+"):
            from tidelog.pipeline.files.tier.tiered import connect_tier

            return connect_tier(root)
        file_system, base = FileSystem.from_uri(root)
    except (ArrowInvalid, ArrowNotImplementedError, NotImplementedError, ImportError) as error:
        raise OptionError(f"{root}: {_first_line(error)}") from error
    except OSError as error:
        raise RemoteError(f"{root}: {reason(error)}") from error
    return file_system, base


@contextmanager
def remote_errors(path: str, what: str) -> Iterator[None]:
    """Turn an OSError inside ``with`` into a RemoteError that ``path`` cannot be ``what`` (listed, read, opened).

    A FileNotFoundError is not changed.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RemoteError(f"{path} cannot be {what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Reduce an object store's error to one line."""
    found = _AWS_ERROR.search(str(error))
    if found is None:
        return _first_line(error)
    name, operation, text = found.groups()
    hint = ""
    if name in ("ACCESS_DENIED", "SIGNATURE_DOES_NOT_MATCH", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID"):
        hint = "; expected credentials that may list and read it (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, a role)"
    cause = text.partition(" (Request ID")[0].partition("\n")[0].rstrip(". ") or "it does not say why"
    return f"{name.lower().replace('_', ' ')} ({operation}): {cause}{hint}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- listings

_LISTINGS: OrderedDict[str, tuple[float, dict[str, RemoteInfo]]] = OrderedDict()


def list_directory(directory: str) -> dict[str, RemoteInfo]:
    """List the names in a directory. Raises FileNotFoundError when nothing lies there, OptionError, RemoteError."""
    known = _LISTINGS.get(directory)
    if known is not None and time.monotonic() - known[0] < LISTING_S:
        return known[1]
    from pyarrow.fs import FileSelector

    file_system, key = locate(directory)
    asked = time.monotonic()
    with remote_errors(directory, "listed"):
        found = {info.base_name: _info(info) for info in file_system.get_file_info(FileSelector(key))}
    if not found:  # an object store has no empty directories, so this one does not exist (or the bucket is empty)
        raise FileNotFoundError(directory)
    _LISTINGS[directory] = asked, found
    while len(_LISTINGS) > MAX_LISTINGS:
        _LISTINGS.popitem(last=False)
    return found


def forget_listing(directory: str) -> None:
    """Drop a directory's listing, because a file that it named is missing; the next look-up asks the store."""
    _LISTINGS.pop(directory, None)


def info_of(path: str) -> RemoteInfo | None:
    """Look a path up in the listing around it; None when it is missing. A bucket is a directory if it has objects.

    Raises OptionError, RemoteError.
    """
    directory, _, name = path.rpartition("/")
    if directory.endswith(":/"):  # the path is a bucket
        return RemoteInfo(is_directory=True, size=0, mtime_ns=0) if is_remote_directory(path) else None
    try:
        return list_directory(directory).get(name)
    except FileNotFoundError:
        return None


def is_remote_directory(path: str) -> bool:
    """Return whether anything lies below a path. Raises OptionError, RemoteError."""
    try:
        return bool(list_directory(path))
    except FileNotFoundError:
        return False


class RemoteFiles:
    """Small files of an object store, for the readers of ``tidelog.log.files.checkpoints``; one thread.

    ``exists`` fetches the whole file and keeps it for ``read_file``, which then sends no request. ``files_at`` makes an
    instance for each file.
    """

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def exists(self, path: str) -> bool:
        """Return whether the file is there, and read it then. Raises OptionError, RemoteError."""
        try:
            self._contents[path] = _content(path)
        except FileNotFoundError:
            return False
        return True

    def read_file(self, path: str) -> bytes:
        """Read all of a file. Raises OptionError, RemoteError; LogStorageError for a missing file, as a local file
        system."""
        known = self._contents.pop(path, None)
        try:
            return _content(path) if known is None else known
        except FileNotFoundError as error:
            raise LogStorageError("read", path, errno.ENOENT) from error


def _content(path: str) -> bytes:
    file_system, key = locate(path)
    with remote_errors(path, "read"), file_system.open_input_file(key) as file:
        data: bytes = file.read()
    return data


def _info(info: Any) -> RemoteInfo:
    from pyarrow.fs import FileType

    is_directory = info.type == FileType.Directory
    return RemoteInfo(is_directory, info.size or 0, 0 if is_directory else info.mtime_ns or 0)
