"""The manifest of an exported table, which lists its files and the exported offsets of each topic; and the commit of an
export.

    TABLE/_tidelog/manifest-00000007.json     version 7; each version is a file of its own, never changed
    TABLE/_tidelog/commit.lock                held while a version is added
    TABLE/data/*.parquet                      the rows;  TABLE/dead-letter/*.parquet  the dead letters
    TABLE/_tidelog/staging/<run>/             files that a run has written and not committed

A version has the whole state: each topic's id, the exported offsets and the largest record time of each partition, and
all files. A commit is compare-and-set: version n + 1 is created by linking a finished file under its name, which fails
if the name exists; and under the lock the newest version must still be n. The name of a file in ``data`` is a function
of (topic, topic id, partition, first offset). A version names the run that staged its new files: they are moved from
staging into the table after the commit, and the next run finishes that if this one was killed.

A reader of ``data`` that knows nothing of manifests sees each row at most once. No two files ever have the same row, no
file is removed, and one that grows is replaced by a rename (``tidelog.pipeline.export.parquet``). Names of a
partition's files sort in the order of their offsets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from tidelog.log.system.file_system import OpenFile, OsFileSystem
from tidelog.pipeline.export.store import LOCAL, TableStore
from tidelog.pipeline.files.storage import require_mounted
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError
from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.types import uuid_to_str

FORMAT = "tidelog-export 1"
DIRECTORY = "_tidelog"
DATA = "data"
DEAD_LETTER = "dead-letter"
STAGING = "staging"
APPEND, UPSERT = "append", "upsert"
#: Number of versions that are kept; the newest one has the whole state.
VERSIONS_KEPT = 100
_NAME = re.compile(r"manifest-([0-9]{8})\.json")
_NO_ID = "-"
_State = TypeVar("_State", "TableFile", "PartitionState", "TopicState", "EarlierRange", "Manifest")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of ``size`` bytes in ``data`` or ``dead-letter``.

    Its rows come from the offsets from ``start`` to below ``end``, which take ``log_bytes`` bytes in the log."""

    name: str
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    rows: int
    size: int
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Contents of a table for one partition: its records from offset ``start`` to below ``end``.

    ``complete_timestamp`` is the largest record time in ms, -1 without records. ``lost``: ranges (start, end) whose
    records were gone before they could be exported. ``leader_epoch``: epoch of offset ``end - 1``, -1 if not known.
    """

    start: int
    end: int
    complete_timestamp: int = -1
    lost: tuple[tuple[int, int], ...] = ()
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in a table: the topic id (as text, "-" when unknown), and the state of each partition."""

    topic_id: str
    partitions: Mapping[int, PartitionState]


class EarlierRange(NamedTuple):
    """Offsets from ``start`` to below ``end`` that the table has of a deleted topic with the name of a newer one."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a table's state; version 0 is the empty table.

    ``run``: the id of the part of an export (``jobs.exporting.commits``) that made the version and staged new files.
    ``mode``: the rows are all records (``append``), or the latest of each key (``upsert``). ``values``: the schema of
    the value columns as text (``tidelog.pipeline.values.columns``), empty without. ``earlier``: ranges of topics that
    were deleted and created again since.
    """

    version: int = 0
    run: str = ""
    created_ms: int = 0
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    files: tuple[TableFile, ...] = ()
    dead_letters: tuple[TableFile, ...] = ()
    mode: str = APPEND
    values: str = ""
    earlier: tuple[EarlierRange, ...] = ()

    def to_json(self) -> str:
        """Write the version as JSON, in its form on disk."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, path: str) -> Manifest:
        """Parse a version; ``path`` is for errors. Raises JobError."""
        try:
            raw = _mapping(decode_json(text), "the file")
            if raw.pop("format") != FORMAT:
                raise ValueError("another format")
            topics = {name: _topic_state(state, name) for name, state in _mapping(raw.pop("topics"), "topics").items()}
            files = tuple(_table_file(entry, "files") for entry in _array(raw.pop("files"), "files"))
            letters = tuple(_table_file(one, "dead_letters") for one in _array(raw.pop("dead_letters"), "dead_letters"))
            raw.pop("removed", None)  # a key of former releases, which merged small files
            earlier = tuple(_earlier_range(entry) for entry in _array(raw.pop("earlier", []), "earlier"))
            return _require_types(cls(topics=topics, files=files, dead_letters=letters, earlier=earlier, **raw))
        except KeyError as error:
            raise JobError(f"{path} is not a manifest of a Tidelog export: {error} is missing") from error
        except (ValueError, TypeError) as error:
            raise JobError(f"{path} is not a manifest of a Tidelog export: {error}") from error

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return the exported offsets: the end of each exported partition by topic and number."""
        return {name: {p: s.end for p, s in topic.partitions.items()} for name, topic in self.topics.items()}


_KINDS = {"int": int, "str": str}
"""Annotations of fields -> the types that their values have in JSON."""


def _require_types(found: _State) -> _State:
    """Return a part of a state; raise ValueError if a number or text in it has another type than its field."""
    for name, annotation in type(found).__annotations__.items():
        value, kind = getattr(found, name), _KINDS.get(str(getattr(annotation, "__forward_arg__", annotation)))
        if kind is not None and not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}")
    return found


def _mapping(raw: Any, name: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{name} is {raw!r}")
    return raw


def _array(raw: Any, name: str) -> list[Any]:
    if not isinstance(raw, list):
        raise ValueError(f"{name} is {raw!r}")
    return raw


def _table_file(raw: Any, name: str) -> TableFile:
    return _require_types(TableFile(**_mapping(raw, name)))


def _earlier_range(raw: Any) -> EarlierRange:
    return _require_types(EarlierRange(*_array(raw, "earlier")))


def _topic_state(raw: Any, topic: str) -> TopicState:
    partitions = {}
    for number, state in _mapping(_mapping(raw, topic)["partitions"], topic).items():
        known = _mapping(state, f"{topic}-{number}")
        lost = tuple((int(start), int(end)) for start, end in _array(known.pop("lost"), "lost"))
        partitions[int(number)] = _require_types(PartitionState(lost=lost, **known))
    return _require_types(TopicState(raw["topic_id"], partitions))


def id_text(topic_id: bytes | None) -> str:
    """Write a topic id as text for manifests and file names."""
    return _NO_ID if topic_id is None else uuid_to_str(topic_id)


class ExportTable:
    """A directory that exports write to. One thread; other processes may export to it at the same time."""

    def __init__(self, path: str, finish: Callable[[str, str], bool] | None = None) -> None:
        """``finish`` is called with name and staging directory of each run that has ended. It returns whether the
        directory can be removed."""
        self.path = os.path.abspath(require_mounted(path, "table"))
        self._finish = finish
        self._file_system = OsFileSystem()
        self._own = os.path.join(self.path, DIRECTORY)

    def directory(self, *names: str) -> str:
        """Return a path below the table."""
        return os.path.join(self.path, *names)

    def names_in(self, folder: str) -> set[str]:
        """List the names in ``data`` or ``dead-letter``; empty if the folder is missing."""
        try:
            return set(os.listdir(self.directory(folder)))
        except FileNotFoundError:
            return set()

    def open(self) -> Manifest:
        """Create missing directories, read the newest version, and finish the commit of a killed run.

        Raises BadRequestError when the directory holds something else or cannot be created, JobError, OSError,
        KafkaStorageError.
        """
        if os.path.isdir(self.path) and os.listdir(self.path) and not os.path.isdir(self._own):
            raise BadRequestError(f"{self.path} is not empty and no exported table: expected an empty or new directory")
        try:
            for names in ((DIRECTORY, STAGING), (DATA,), (DEAD_LETTER,)):
                self._make_durable(self.directory(*names))
        except OSError as error:
            raise BadRequestError(f"table {self.path} cannot be created: {error.strerror}") from error
        with self.hold_lock():
            manifest = self.read()
            self._finish_commit(manifest)
        return manifest

    def _make_durable(self, path: str) -> None:
        """Create a directory and its missing parents durably, so that a power loss cannot remove them. Raises OSError
        and KafkaStorageError.
        """
        if not os.path.isdir(path):
            self._make_durable(os.path.dirname(path))
            os.makedirs(path, exist_ok=True)
            self._file_system.sync_directory(os.path.dirname(path))

    def read(self) -> Manifest:
        """Read the newest version. Raises JobError, OSError."""
        versions = self._versions()
        if not versions:
            return Manifest()
        path = self._path_of(versions[-1])
        with open(path, "rb") as file:
            return Manifest.from_json(file.read(), path)

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self._own)
        except FileNotFoundError:
            raise BadRequestError(f"{self.path} is not an exported table: {DIRECTORY} is missing") from None
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def _path_of(self, version: int) -> str:
        return os.path.join(self._own, f"manifest-{version:08d}.json")

    def hold_lock(self) -> AbstractContextManager[None]:
        """Return a context that holds the table's lock: no other run commits or removes staging meanwhile."""
        return _Lock(os.path.join(self._own, "commit.lock"))

    # ---- staging

    def begin_run(self, run: str) -> StagingRun:
        """Create a staging directory for this run. If the run dies, the next run removes it.

        Raises JobError if another run has locked it, OSError, KafkaStorageError.
        """
        path = self.directory(DIRECTORY, STAGING, run)
        with self.hold_lock():  # without the lock another run could remove it before it is owned
            os.makedirs(os.path.join(path, DATA))
            os.makedirs(os.path.join(path, DEAD_LETTER))
            lock = self._file_system.lock_file(os.path.join(path, "owner.lock"))
        if lock is None:
            raise JobError(f"{path} is locked by another run")
        return StagingRun(run, path, lock)

    # ---- commit

    def commit(self, manifest: Manifest, staged: StagingRun) -> None:
        """Commit ``manifest`` as the newest version, then move its staged files into the table.

        Raises ConflictError when that version exists because another run was faster; nothing is changed then. Raises
        JobError, OSError, KafkaStorageError.
        """
        with self.hold_lock():
            if self.read().version != manifest.version - 1:
                raise self._conflict(manifest)
            temporary = os.path.join(staged.path, "manifest.json")
            self._file_system.replace_file(temporary, manifest.to_json().encode())
            # A version is never durable before the names of its files.
            for path in (os.path.join(staged.path, DATA), os.path.join(staged.path, DEAD_LETTER)):
                self._file_system.sync_directory(path)
            self._file_system.sync_directory(os.path.dirname(staged.path))
            try:
                os.link(temporary, self._path_of(manifest.version))
            except FileExistsError:
                raise self._conflict(manifest) from None
            self._file_system.sync_directory(self._own)
            staged.close()
            self._finish_commit(manifest)

    def _conflict(self, manifest: Manifest) -> ConflictError:
        return ConflictError(
            f"another export committed version {manifest.version} to {self.path} meanwhile: this run kept what it had "
            "committed before; run it again to go on from there"
        )

    def _finish_commit(self, manifest: Manifest) -> None:
        """Move the newest version's files into the table; remove old versions and the staging directories of dead runs.

        It may be repeated.
        """
        staging = self.directory(DIRECTORY, STAGING)
        for folder, files in ((DATA, manifest.files), (DEAD_LETTER, manifest.dead_letters)):
            staged = os.path.join(staging, manifest.run, folder)
            names = {file.name for file in files}
            for name in sorted(os.listdir(staged) if manifest.run and os.path.isdir(staged) else ()):
                if name in names:
                    os.replace(os.path.join(staged, name), self.directory(folder, name))
            self._file_system.sync_directory(self.directory(folder))
        for run in os.listdir(staging):
            self._remove_dead(run, os.path.join(staging, run))
        for version in self._versions()[:-VERSIONS_KEPT]:
            os.unlink(self._path_of(version))

    def _remove_dead(self, run: str, path: str) -> None:
        lock = self._file_system.lock_file(os.path.join(path, "owner.lock"))
        if lock is None:
            return  # its owner is alive
        lock.close()
        if self._finish is None or self._finish(run, path):
            self._file_system.remove_directory(path)


class _Lock:
    """The table's lock as a context manager, which waits until the lock is free."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> None:
        import fcntl

        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


@dataclass(slots=True)
class StagingRun:
    """One run's staging directory, owned as long as its lock is held.

    ``store`` has its files; ``suffix`` follows the offsets in their names.
    """

    run: str
    path: str
    _lock: OpenFile | None = None
    store: TableStore = LOCAL
    suffix: str = ""

    def close(self) -> None:
        """Release the directory: the next run (or the commit itself) removes it."""
        if self._lock is not None:
            self._lock.close()
