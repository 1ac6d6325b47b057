"""The manifest of an exported table: which files it has, up to which offsets, of which topics. The commit of an export.

    TABLE/_tidelog/manifest-00000007.json     version 7; each version is a file of its own, never changed
    TABLE/_tidelog/commit.lock                held while a version is added
    TABLE/data/*.parquet                      the rows;  TABLE/dead-letter/*.parquet  bytes that are no records
    TABLE/_tidelog/staging/<run>/             what a run has written and not committed

A version holds the whole state: per topic its id, per partition where the exported offsets begin and end, how far it is
complete, and all files. Committing is compare-and-set: version n + 1 is made by linking a finished file under its name,
which fails when the name exists; and under the lock the newest version must still be the one the run began with. A
file's name is a function of (topic id, partition, first offset). A version names the run that staged its files: they
are moved from staging into the table after the commit, and the next run finishes that if this one was killed.

A reader of ``data`` that knows nothing of manifests sees each row at most once: no two files ever hold the same row,
no file goes, and one that grows is replaced by a rename (``tidelog.pipeline.export.parquet``). Files of a partition
come in the order of their offsets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tidelog.log.system.file_system import OpenFile, OsFileSystem
from tidelog.pipeline.export.store import LOCAL, TableStore
from tidelog.pipeline.files.storage import mounted
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError
from tidelog.protocol.types import uuid_to_str

FORMAT = "tidelog-export 1"
DIRECTORY = "_tidelog"
DATA = "data"
DEAD_LETTER = "dead-letter"
STAGING = "staging"
APPEND, UPSERT = "append", "upsert"
#: Versions kept; the newest holds all that older ones say.
VERSIONS_KEPT = 100
_NAME = re.compile(r"manifest-(\d{8})\.json")
_NO_ID = "-"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of ``size`` bytes in ``data`` or ``dead-letter``.

    It holds the rows of offsets from ``start`` to below ``end``, made of ``log_bytes`` of the log."""

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
    """Contents of a table for one partition: offsets from ``start`` to below ``end``.

    ``complete_offset`` is ``end``: every committed record below it is in the table. ``complete_timestamp`` is the
    largest record time (ms) among them, -1 without records. ``lost`` are (start, end) that were gone before they
    could be exported. ``leader_epoch``: that of the offset before ``end``, -1 where it is not known.
    """

    start: int
    end: int
    complete_timestamp: int = -1
    lost: tuple[tuple[int, int], ...] = ()
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as exported: the id its offsets belong to (as text, "-" when unknown), and its partitions."""

    topic_id: str
    partitions: Mapping[int, PartitionState]


class EarlierRange(NamedTuple):
    """Offsets from ``start`` to below ``end`` that the table has of a partition of an earlier topic of the name."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version; version 0 is the table that has nothing yet. ``mode``: the table's rows are all records
    (``append``), or the latest of each key (``upsert``). ``values``: the pinned schema of its value columns
    (``tidelog.pipeline.values.columns``), empty without. ``earlier``: rows of topics that were created again since."""

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
        """Write the version as it lies on disk."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Read a version. Raises JobError."""
        try:
            raw = json.loads(text)
            if raw.pop("format") != FORMAT:
                raise ValueError("another format")
            topics = {name: _topic_state(state) for name, state in raw.pop("topics").items()}
            files = tuple(TableFile(**entry) for entry in raw.pop("files"))
            letters = tuple(TableFile(**entry) for entry in raw.pop("dead_letters"))
            raw.pop("removed", None)  # in tables of former releases, which merged small files
            earlier = tuple(EarlierRange(*entry) for entry in raw.pop("earlier", ()))
            return cls(topics=topics, files=files, dead_letters=letters, earlier=earlier, **raw)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JobError(f"{path} is no manifest of a Tidelog export: {error}") from error

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return the offset vector: the end of each exported partition."""
        return {name: {p: s.end for p, s in topic.partitions.items()} for name, topic in self.topics.items()}


def _topic_state(raw: Mapping[str, Any]) -> TopicState:
    partitions = {}
    for number, state in raw["partitions"].items():
        lost = tuple((int(start), int(end)) for start, end in state.pop("lost"))
        partitions[int(number)] = PartitionState(lost=lost, **state)
    return TopicState(raw["topic_id"], partitions)


def id_text(topic_id: bytes | None) -> str:
    """Write a topic id as manifests and file names hold it."""
    return _NO_ID if topic_id is None else uuid_to_str(topic_id)


class ExportTable:
    """A directory that exports write into. One thread; other processes may do the same at the same time."""

    def __init__(self, path: str, finish: Callable[[str, str], bool] | None = None) -> None:
        """``finish`` gets the name and the staging directory of each run that has ended, and says whether that may be
        removed."""
        self.path = os.path.abspath(mounted(path, "table"))
        self._finish = finish
        self._file_system = OsFileSystem()
        self._own = os.path.join(self.path, DIRECTORY)

    def directory(self, *names: str) -> str:
        """Return a path below the table."""
        return os.path.join(self.path, *names)

    def names_in(self, folder: str) -> set[str]:
        """List the names in ``data`` or ``dead-letter``; none where the folder is missing."""
        try:
            return set(os.listdir(self.directory(folder)))
        except FileNotFoundError:
            return set()

    def open(self) -> Manifest:
        """Make the directories where they are missing and read the newest version; finish what a killed run left.

        Raises BadRequestError when the directory holds something else, JobError.
        """
        if os.path.isdir(self.path) and os.listdir(self.path) and not os.path.isdir(self._own):
            raise BadRequestError(f"{self.path} is not empty and no exported table: expected an empty or new directory")
        try:
            for names in ((DIRECTORY, STAGING), (DATA,), (DEAD_LETTER,)):
                self._make_durable(self.directory(*names))
        except OSError as error:
            raise BadRequestError(f"table {self.path} cannot be made: {error.strerror}") from error
        with self.locked():
            manifest = self.read()
            self._settle(manifest)
        return manifest

    def _make_durable(self, path: str) -> None:
        """Make a directory whose name survives a power loss, and its missing parents. Raises OSError and
        KafkaStorageError."""
        if not os.path.isdir(path):
            self._make_durable(os.path.dirname(path))
            os.makedirs(path, exist_ok=True)
            self._file_system.sync_directory(os.path.dirname(path))

    def read(self) -> Manifest:
        """Read the newest version. Raises JobError."""
        versions = self._versions()
        if not versions:
            return Manifest()
        path = self._path_of(versions[-1])
        with open(path, encoding="utf-8") as file:
            return Manifest.from_json(file.read(), path)

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self._own)
        except FileNotFoundError:
            raise BadRequestError(f"{self.path} is no exported table: {DIRECTORY} is missing") from None
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def _path_of(self, version: int) -> str:
        return os.path.join(self._own, f"manifest-{version:08d}.json")

    def locked(self) -> AbstractContextManager[None]:
        """Hold the table's lock: no other run commits or clears away meanwhile."""
        return _Lock(os.path.join(self._own, "commit.lock"))

    # ---- staging

    def begin_run(self, run: str) -> StagingRun:
        """Make a staging directory for this run. It is removed by the next one when its owner has died."""
        path = self.directory(DIRECTORY, STAGING, run)
        with self.locked():  # without the lock another run could remove it before it is owned
            os.makedirs(os.path.join(path, DATA))
            os.makedirs(os.path.join(path, DEAD_LETTER))
            lock = self._file_system.lock_file(os.path.join(path, "owner.lock"))
        if lock is None:
            raise JobError(f"{path} is locked by another run")
        return StagingRun(run, path, lock)

    # ---- commit

    def commit(self, manifest: Manifest, staged: StagingRun) -> None:
        """Make ``manifest`` the newest version, then bring its staged files into the table.

        Raises ConflictError when a version of that number exists: another run was faster, nothing was changed.
        """
        with self.locked():
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
            self._settle(manifest)

    def _conflict(self, manifest: Manifest) -> ConflictError:
        return ConflictError(
            f"another export committed version {manifest.version} to {self.path} meanwhile: nothing of this run was "
            "kept; run it again to go on from there"
        )

    def _settle(self, manifest: Manifest) -> None:
        """Move the newest version's files into the table, and remove the staging of dead runs. Repeatable."""
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
            return  # its owner lives
        lock.close()
        if self._finish is None or self._finish(run, path):
            self._file_system.remove_directory(path)


class _Lock:
    """The table's lock as a context: waits for its holder."""

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
    """One run's staging directory, owned as long as its lock is held. ``store`` has it; ``suffix`` goes to the end of
    its files' names."""

    run: str
    path: str
    _lock: OpenFile | None = None
    store: TableStore = LOCAL
    suffix: str = ""

    def close(self) -> None:
        """Release the directory: the next run (or the commit itself) removes it."""
        if self._lock is not None:
            self._lock.close()
