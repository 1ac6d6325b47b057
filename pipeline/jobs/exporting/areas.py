"""The areas in which runs write new files of an Iceberg or Delta table, and in which a later run finds the files of a
killed run.

    mounted            TABLE/_tidelog/staging/<run>/, owned by a lock; its file ``version`` has the version of the
                       table's state (``export.manifest``) with which the run began; its files are linked into the
                       table's folders
    object store       an empty object TABLE/_tidelog/runs/<version>-<run>, and the run's id in each file's name
                       (a Delta table's dead letters are moved once the run has committed)

A run here is one part of an export (``exporting.commits``). On a mounted file system, too, file names have the first
characters of the run's id. A restore or rollback of the table leaves files behind; a later run may write other records
of the same offsets, and needs other names.

A catalog may finish a commit after its run has ended, and a store has no locks. So a run that has not committed counts
as dead once the table has a newer state than the one with which the run began. Its commit is only valid for the older
state, and can no longer succeed. For a Delta table on a mounted file system, a free lock is enough.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager
from typing import Protocol

from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, DIRECTORY, ExportTable, StagingRun
from tidelog.pipeline.export.store import LOCAL, CatalogStore, ObjectStore, Properties
from tidelog.pipeline.job_errors import BadRequestError

RUNS = "runs"
VERSION = "version"
_RUN = re.compile(r"([0-9]{8,})-([0-9a-f]{32})")
Finish = Callable[[str, str, int | None], bool]
"""A function that gets the name of a run that may have ended, its staging directory, and the version it began with,
None if not known. It returns whether the run is finished, so that its staging can be removed."""


class TableArea(Protocol):
    """Area of a table in which runs of exports write files. ``has_locks``: locks show whether a run has ended."""

    @property
    def has_locks(self) -> bool:
        """Return whether each run for which ``finish`` is called has ended."""

    def open(self) -> None:
        """Finish or remove the files of killed runs. Raises PipelineError, OSError, KafkaStorageError."""

    def begin_run(self, run: str, version: int) -> StagingRun:
        """Create the staging of a run that begins with a version of the table's state. Raises PipelineError, OSError,
        KafkaStorageError."""

    def hold_lock(self) -> AbstractContextManager[None]:
        """Keep other runs on this file system from committing."""

    def names_of(self, run: str, staging: str, folder: str) -> list[str]:
        """List the names of a run's files in a folder; empty if the run was killed before it wrote any."""

    def bring_in(self, staging: str, folder: str, names: Iterable[str]) -> list[str]:
        """Move or link files into a folder of the table, and return their addresses."""

    def remove_orphans(self, run: str, staging: str, known: Callable[[], Set[str]]) -> None:
        """Remove a run's files from the table, except those with names in ``known``."""

    def remove_letters(self, run: str) -> None:
        """Remove the dead letters that a run wrote and did not commit."""


class MountedArea:
    """A table on a mounted file system."""

    has_locks = True

    def __init__(self, location: str, finish: Finish, letters: str = DEAD_LETTER) -> None:
        """``letters``: the folder of dead letters. Raises BadRequestError if the table cannot be created."""
        self._table = ExportTable(location, lambda run, staging: finish(run, staging, _version_in(staging)))
        self._letters = letters
        try:
            for folder in (DIRECTORY, letters):
                os.makedirs(self._table.directory(folder), exist_ok=True)
        except OSError as error:
            raise BadRequestError(f"table {self._table.path} cannot be created: {error.strerror}") from error

    def open(self) -> None:
        """Finish or remove the files of killed runs. Raises PipelineError, OSError, KafkaStorageError."""
        self._table.open()

    def begin_run(self, run: str, version: int) -> StagingRun:
        """Create a staging directory. Raises the errors of ``ExportTable.begin_run``."""
        staged = name_own_files(self._table.begin_run(run))
        with open(os.path.join(staged.path, VERSION), "w", encoding="utf-8") as file:
            file.write(str(version))
        return staged

    def hold_lock(self) -> AbstractContextManager[None]:
        """Keep other runs on this file system from committing."""
        return self._table.hold_lock()

    def names_of(self, run: str, staging: str, folder: str) -> list[str]:
        """List the names in a folder of a run's staging directory."""
        return LOCAL.names_in(os.path.join(staging, folder))

    def bring_in(self, staging: str, folder: str, names: Iterable[str]) -> list[str]:
        """Link files into a folder of the table. A link that exists is this run's own and stays."""
        paths = []
        for name in names:
            path = self._table.directory(self._letters if folder == DEAD_LETTER else folder, name)
            if not os.path.exists(path):
                os.link(os.path.join(staging, folder, name), path)
            paths.append(f"file://{path}")
        return paths

    def remove_orphans(self, run: str, staging: str, known: Callable[[], Set[str]]) -> None:
        """Remove a run's links, except those with names in ``known``."""
        names = [name for name in self.names_of(run, staging, DATA) if self._is_brought_in(staging, name)]
        stay = known() if names else set()
        for name in names:
            if name not in stay:
                os.unlink(self._table.directory(DATA, name))

    def remove_letters(self, run: str) -> None:
        """Do nothing: dead letters are removed with the staging directory."""

    def _is_brought_in(self, staging: str, name: str) -> bool:
        path = self._table.directory(DATA, name)
        return os.path.exists(path) and os.path.samefile(os.path.join(staging, DATA, name), path)


def name_own_files(staged: StagingRun) -> StagingRun:
    """Set a suffix for the run's files that no other run has; it is short because topic names may be long."""
    staged.suffix = f"-r{staged.run[:8]}"
    return staged


def _version_in(staging: str) -> int | None:
    """Read the version with which a run began, None if it was killed before it wrote a file."""
    try:
        with open(os.path.join(staging, VERSION), encoding="utf-8") as file:
            return int(file.read() or "0")
    except FileNotFoundError:
        return None


class StoreArea:
    """A table in an object store."""

    has_locks = False

    def __init__(self, location: str, store: ObjectStore, finish: Finish, letters: str = DEAD_LETTER) -> None:
        """``letters``: the folder of committed dead letters."""
        self._location = location.rstrip("/")
        self._store = store
        self._finish = finish
        self._letters = letters
        self._begun = set[str]()

    def open(self) -> None:
        """Finish or remove the files of killed runs, and those of runs that were begun here. Raises PipelineError,
        OSError.

        A run that was begun here may have files without its object in ``runs``: another export took the run for dead
        and removed the object, before the run wrote these files.
        """
        for name in sorted({*self._store.names_in(self._path_of(DIRECTORY, RUNS)), *self._begun}):
            found = _RUN.fullmatch(name)  # other files are not of exports
            if found is not None and self._finish(found[2], self._location, int(found[1])):
                self._begun.discard(name)
                self._remove(self._path_of(DIRECTORY, RUNS, name))

    def begin_run(self, run: str, version: int) -> StagingRun:
        """Write the object that records a run. Raises PipelineError, OSError."""
        name = f"{version:08d}-{run}"
        self._begun.add(name)
        self._store.put(self._path_of(DIRECTORY, RUNS, name), b"")
        return StagingRun(run, self._location, store=self._store, suffix=f"-{run}")

    def hold_lock(self) -> AbstractContextManager[None]:
        """Return a context that locks nothing: the catalog, or Delta's log, accepts only one of two commits."""
        return contextlib.nullcontext()

    def names_of(self, run: str, staging: str, folder: str) -> list[str]:
        """List the names that have the run's id."""
        return [name for name in self._store.names_in(self._path_of(folder)) if f"-{run}" in name]

    def bring_in(self, staging: str, folder: str, names: Iterable[str]) -> list[str]:
        """Return the addresses of files. Data files were written there at once; dead letters may have to be moved."""
        target = self._letters if folder == DEAD_LETTER else folder
        paths = [(self._path_of(folder, name), self._path_of(target, name)) for name in names]
        for written, path in paths:
            if written != path:
                self._store.move(written, path)
        return [path for _, path in paths]

    def remove_orphans(self, run: str, staging: str, known: Callable[[], Set[str]]) -> None:
        """Remove a run's objects, except those with names in ``known``."""
        names = self.names_of(run, staging, DATA)
        stay = known() if names else set()
        for name in names:
            if name not in stay:
                self._remove(self._path_of(DATA, name))

    def remove_letters(self, run: str) -> None:
        """Remove the run's dead letters."""
        for name in self.names_of(run, "", DEAD_LETTER):
            self._remove(self._path_of(DEAD_LETTER, name))

    def _path_of(self, *names: str) -> str:
        return "/".join((self._location, *names))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another run was faster
            self._store.remove(path)


def area_of(location: str, properties: Properties, finish: Finish) -> TableArea:
    """Return the area of a table at an address. ``properties``: pyiceberg's own, of the table's file system."""
    if location.startswith(("file:", "/")):
        return MountedArea(location, finish)
    return StoreArea(location, CatalogStore(properties), finish)
