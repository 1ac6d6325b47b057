"""The storage of a table's files: a mounted file system, or an object store.

Spark may run two attempts of one task at the same time: speculatively, or because it considers a live executor lost. So
no attempt writes rows to a name that another one may have finished. A mounted file has a temporary name until it is
complete. An object cannot be renamed, so its name has a random part for each attempt. Only the dead letters of a range
have one name in all attempts, which write the same.

For an Iceberg table, addresses and credentials of a store are pyiceberg's own properties, which are sent to the workers
with their plans. A Delta table's address names the store, and credentials come from each process's environment.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.export.early_sync import EarlySync, FileSync, NoSync
from tidelog.pipeline.files.remote import locate

_PART = ".part-"
Properties = tuple[tuple[str, str], ...]


def properties_of(properties: Mapping[str, Any]) -> Properties:
    """Return properties of a file system as a sorted tuple, so that equal properties give equal values."""
    return tuple(sorted((name, str(value)) for name, value in properties.items()))


class TableStore(Protocol):
    """Files of a table, by path. Methods may raise OSError.

    ``put`` on a mounted file system raises KafkaStorageError. An object store's methods may raise OptionError and
    RemoteError.
    """

    def part_of(self, path: str) -> str:
        """Return the path at which this attempt writes a file until it is complete."""

    def put_in_place(self, part: str, path: str) -> None:
        """Give a complete file its name; it replaces the file of another attempt."""

    def attempt_suffix(self) -> str:
        """Return a suffix that makes the names of this attempt's files unique."""

    def open_output(self, path: str) -> Any:
        """Return a ``pyarrow.NativeFile`` that writes a new file."""

    def begin_sync(self, path: str) -> FileSync:
        """Return the syncs of a file that is being written."""

    def open_input(self, path: str) -> Any:
        """Return a path or ``pyarrow.NativeFile`` from which ``pyarrow.parquet`` reads the file."""

    def finish(self, path: str) -> None:
        """Sync a closed file."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def size_of(self, path: str) -> int:
        """Return the number of bytes of a file."""

    def names_in(self, folder: str) -> list[str]:
        """List the names in a folder, none where it is missing."""

    def put(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it."""

    def read(self, path: str) -> bytes:
        """Read a small file."""


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A mounted file system."""

    def part_of(self, path: str) -> str:
        """Return a random name in the same folder, which ``names_in`` leaves out."""
        return os.path.join(os.path.dirname(path), f"{_PART}{secrets.token_hex(8)}")

    def put_in_place(self, part: str, path: str) -> None:
        """Rename a complete file."""
        os.replace(part, path)

    def attempt_suffix(self) -> str:
        """Return no suffix: only complete files get their names."""
        return ""

    def open_output(self, path: str) -> Any:
        """Return a ``pyarrow.NativeFile`` that writes a new file."""
        import pyarrow as pa

        return pa.OSFile(path, "wb")

    def begin_sync(self, path: str) -> FileSync:
        """Return the syncs of a file that is being written."""
        return EarlySync(path)

    def open_input(self, path: str) -> Any:
        """Return the path, which ``pyarrow.parquet`` opens."""
        return path

    def finish(self, path: str) -> None:
        """Sync a closed file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def size_of(self, path: str) -> int:
        """Return the number of bytes of a file."""
        return os.path.getsize(path)

    def names_in(self, folder: str) -> list[str]:
        """List the names in a folder, none where it is missing."""
        try:
            return sorted(name for name in os.listdir(folder) if not name.startswith(_PART))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a small file durably."""
        OsFileSystem().replace_file(path, data)

    def read(self, path: str) -> bytes:
        """Read a small file. Raises FileNotFoundError."""
        with open(path, "rb") as file:
            return file.read()


class ObjectStore:
    """Base of object stores, which are file systems of pyarrow; a subclass says which one."""

    __slots__ = ()

    def part_of(self, path: str) -> str:
        """Return the path: an object exists only once it is closed."""
        return path

    def put_in_place(self, part: str, path: str) -> None:
        """Do nothing: the object has its name already."""

    def attempt_suffix(self) -> str:
        """Return a random part of a name."""
        return f"-{secrets.token_hex(4)}"

    def open_output(self, path: str) -> Any:
        """Return a ``pyarrow.NativeFile`` whose object exists once it is closed."""
        file_system, key = self._locate(path)
        return file_system.open_output_stream(key)

    def begin_sync(self, path: str) -> FileSync:
        """Return no syncs: an object is durable once it is closed."""
        return NoSync()

    def open_input(self, path: str) -> Any:
        """Return a ``pyarrow.NativeFile`` of the object."""
        file_system, key = self._locate(path)
        return file_system.open_input_file(key)

    def finish(self, path: str) -> None:
        """Do nothing: an object is durable once it is closed."""

    def remove(self, path: str) -> None:
        """Remove an object. Raises FileNotFoundError if it is not there."""
        file_system, key = self._locate(path)
        file_system.delete_file(key)

    def size_of(self, path: str) -> int:
        """Return the number of bytes of an object. Raises FileNotFoundError."""
        file_system, key = self._locate(path)
        size: int | None = file_system.get_file_info(key).size
        if size is None:
            raise FileNotFoundError(path)
        return size

    def names_in(self, folder: str) -> list[str]:
        """List the names directly below an address."""
        from pyarrow.fs import FileSelector

        file_system, key = self._locate(folder)
        found = file_system.get_file_info(FileSelector(key, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def put(self, path: str, data: bytes) -> None:
        """Write a small object."""
        with self.open_output(path) as stream:
            stream.write(data)

    def read(self, path: str) -> bytes:
        """Read a small object. Raises FileNotFoundError."""
        with self.open_input(path) as file:
            data: bytes = file.read()
        return data

    def move(self, path: str, target: str) -> None:
        """Rename an object by copying it. One that is missing was moved before."""
        file_system, key = self._locate(path)
        with contextlib.suppress(FileNotFoundError):
            file_system.copy_file(key, self._locate(target)[1])
            file_system.delete_file(key)

    def _locate(self, path: str) -> tuple[Any, str]:
        """Find the file system of an address, and its name for the object."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CatalogStore(ObjectStore):
    """An object store that pyiceberg finds by an address and its properties (``s3.endpoint`` and so on)."""

    properties: Properties = field(repr=False)

    def _locate(self, path: str) -> tuple[Any, str]:
        scheme, netloc, key = _parse(path)
        return _file_system(self.properties, scheme, netloc), key


@dataclass(frozen=True, slots=True)
class AddressStore(ObjectStore):
    """An object store that is named in the paths themselves, as for copies of logs (``files.remote``)."""

    def _locate(self, path: str) -> tuple[Any, str]:
        return locate(path)


def _parse(path: str) -> tuple[str, str, str]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO.parse_location(path)


@lru_cache(maxsize=8)
def _file_system(properties: Properties, scheme: str, netloc: str) -> Any:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)


LOCAL = LocalStore()
