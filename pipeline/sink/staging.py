"""The staging directories in which the sink's tasks leave record batches until the driver publishes them.

    <stagingPath>/<writer's name>/<batch id, 20 digits>/[<run>/]<partition>-<attempt>-<random>.batches

One file per task attempt: magic 2 batches one after the other, for all topic-partitions of its rows. A file is written
under ``.part`` and renamed, so a file named ``.batches`` is complete. Its contents are described by the commit
message (:class:`StagedFile`), which only a successful attempt sends. Files of other attempts, of killed workers and of
killed drivers are never read. They are removed with their directory once their batch id, or a later one, is
published. A batch write without ``txnAppId`` whose driver is killed leaves its directory, because no later one has its
random name: the user removes it (docs/spark.md). Nothing is synced: if a crash of a machine cuts a file short, its size
or the CRC of its batches fails the batch. A restarted stream stages the batch again; a batch write fails.

Each batch write has a run of its own (``begin_run``), even with the ``txnAppId`` and ``txnVersion`` of another one. Its
directory is created by the driver, never by a task. When a run fails, the driver renames its directory, then removes
it. For a failed write Spark passes ``abort`` only the messages of attempts that had reported; the files of all others
are removed with the directory. An attempt that is writing then fails when it renames its file, and one that begins
later finds no directory. So no file remains, and the driver need not wait for tasks.

A stream's driver hears of a batch only when its tasks are done, so each task creates the directory if it is
missing. A failed batch is repeated under the same batch id, and files that are left of it are removed when that id is
published.

The random part separates an attempt of a killed driver that still runs from the same attempt started again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.pipeline.errors import PipelineError
from tidelog.protocol.record.record_batch import Buffer

logger = logging.getLogger(__name__)

_DIGITS = 20
_COMPLETE, _PART = ".batches", ".part"
_REMOVED = ".removed"
_MAX_NAME_BYTES = 255
#: Tries at creating or removing a directory: another run may remove its parent, or a task may add a last file.
_TRIES = 10


class StagingError(PipelineError):
    """A staged file cannot be written, cannot be read by the driver, or is damaged."""


@dataclass(frozen=True, slots=True)
class BatchAddress:
    """One staged batch: its topic-partition, position and size in bytes within its file, and number of records."""

    topic: str
    partition: int
    position: int
    size: int
    records: int


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The identity of a task attempt: ``writer`` names the query, the batch write or the job.

    ``batch_id`` is Spark's in a stream; in a batch write it is ``txnVersion``, or 0 without. In a job
    (``tidelog.pipeline.jobs.writing``) it is the number of the last row. ``run`` is the batch write's run, else empty.
    """

    writer: str
    batch_id: int
    partition: int
    attempt: int
    run: str = ""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The staged batches of one task attempt; ``path`` is None when it had no rows."""

    task: TaskIdentity
    path: Path | None
    batches: tuple[BatchAddress, ...]

    def read(self, batch: BatchAddress) -> bytearray:
        """Read the bytes of one batch. Raises StagingError when the file cannot be read or is too short."""
        assert self.path is not None
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(batch.position)
                data = bytearray(batch.size)
                size = file.readinto(data)
        except OSError as error:
            raise StagingError(
                f"staged file {self.path}: {error.strerror}; stagingPath must be shared by driver and executors"
            ) from error
        if size != batch.size:
            raise StagingError(f"staged file {self.path}: {size} bytes at {batch.position}, expected {batch.size}")
        return data


def directory_of(staging: Path, writer: str, batch_id: int) -> Path:
    """Return the directory of one batch, which has its staged files or runs."""
    return _home_of(staging, writer) / f"{batch_id:0{_DIGITS}d}"


def _home_of(staging: Path, writer: str) -> Path:
    """Return a writer's directory. A name that is too long for a directory is cut, with a hash in place of the rest."""
    name = os.fsencode(writer)
    if len(name) > _MAX_NAME_BYTES:
        digest = hashlib.sha256(name).hexdigest()
        writer = f"{name[: _MAX_NAME_BYTES - len(digest) - 1].decode(errors='ignore')}-{digest}"
    return staging / writer


def begin_run(staging: Path, writer: str, batch_id: int) -> str:
    """Create a directory for one batch write and return the run's name. Raises StagingError."""
    run = secrets.token_hex(8)
    directory = directory_of(staging, writer, batch_id) / run
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # another run that ended removed the empty parent
                directory.mkdir(parents=True)
                return run
    except OSError as error:
        raise StagingError(f"cannot stage below {staging}: {error}") from error
    raise StagingError(f"cannot stage below {staging}: {directory.parent} is being removed")


def end_run(staging: Path, writer: str, batch_id: int, run: str) -> None:
    """End a batch write that failed: remove the run's directory, so that tasks can add no files. A failure is
    logged."""
    directory = directory_of(staging, writer, batch_id)
    _remove_directory(directory / run)
    _remove_empty(directory)
    _remove_empty(_home_of(staging, writer))


class StagingFile:
    """The file that a task attempt is writing. It is a context manager, which removes a file that ``finish`` did not
    complete."""

    def __init__(self, staging: Path, task: TaskIdentity) -> None:
        self._staging = staging
        self._task = task
        self._path: Path | None = None
        self._descriptor = -1
        self._is_complete = False
        self._size = 0
        self._batches: list[BatchAddress] = []

    def __enter__(self) -> StagingFile:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._path is not None and not self._is_complete:
            self._part().unlink(missing_ok=True)

    def append(self, topic: str, partition: int, batch: Buffer, records: int) -> None:
        """Append a batch. Raises StagingError."""
        try:
            if self._descriptor < 0:
                self._open()
            view = memoryview(batch)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise StagingError(f"cannot stage below {self._staging}: {error}") from error
        self._batches.append(BatchAddress(topic, partition, self._size, len(batch), records))
        self._size += len(batch)

    def finish(self) -> StagedFile:
        """Close the file and give it its final name. Raises StagingError."""
        if self._path is None:
            return StagedFile(self._task, None, ())
        try:
            os.close(self._descriptor)
            self._descriptor = -1
            self._part().rename(self._path)
            self._is_complete = True
        except FileNotFoundError as error:
            raise StagingError(f"cannot stage {self._path}: the write was aborted meanwhile") from error
        except OSError as error:
            raise StagingError(f"cannot stage {self._path}: {error}") from error
        return StagedFile(self._task, self._path, tuple(self._batches))

    def _open(self) -> None:
        task = self._task
        directory = directory_of(self._staging, task.writer, task.batch_id) / task.run
        if not task.run:
            directory.mkdir(parents=True, exist_ok=True)
        elif not directory.is_dir():
            raise StagingError(
                f"staging directory {directory} of this write does not exist: "
                "the write was aborted, or stagingPath is not shared by driver and executors"
            )
        self._path = directory / f"{task.partition:05d}-{task.attempt}-{secrets.token_hex(6)}{_COMPLETE}"
        self._descriptor = os.open(self._part(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def _part(self) -> Path:
        assert self._path is not None
        return self._path.with_suffix(_PART)


def remove_files(files: Iterable[StagedFile]) -> None:
    """Remove the files of attempts that will not be published."""
    for file in files:
        if file.path is not None:
            file.path.unlink(missing_ok=True)


def remove_published(staging: Path, writer: str, batch_id: int) -> None:
    """Remove every attempt of ``batch_id`` and of the batches before it, and the writer's directory once it is empty.

    A directory that cannot be listed or removed is logged: the data is published, so the write has succeeded.
    """
    home = _home_of(staging, writer)
    for directory in _batch_directories(home):
        if int(directory.name.partition(".")[0]) <= batch_id:
            _remove_directory(directory)
    _remove_empty(home)


def _batch_directories(home: Path) -> list[Path]:
    """List the directories of a writer's batches; none if the writer's directory does not exist or cannot be
    listed."""
    try:
        paths = sorted(home.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("staging directory %s cannot be listed and stays: %s", home, error)
        return []
    return [path for path in paths if path.name.partition(".")[0].isdecimal() and path.is_dir()]


def _remove_directory(directory: Path) -> None:
    """Rename a directory, so that no file can be created in it under the old path, then remove it."""
    gone = directory.with_name(f"{directory.name.partition('.')[0]}.{secrets.token_hex(6)}{_REMOVED}")
    try:
        directory.rename(gone)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("staging directory %s cannot be renamed and stays: %s", directory, error)
        return
    for _ in range(_TRIES):  # a file that a task was creating under the old path may still appear
        shutil.rmtree(gone, ignore_errors=True)
        if not gone.exists():
            return
    logger.warning("staging directory %s cannot be removed and stays", gone)


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # it does not exist, or another run uses it
        directory.rmdir()


def sort_by_task(files: Sequence[StagedFile]) -> list[StagedFile]:
    """Sort the files by Spark partition: the order in which batches are published, the same in every attempt."""
    return sorted((file for file in files if file.path is not None), key=lambda file: file.task.partition)
