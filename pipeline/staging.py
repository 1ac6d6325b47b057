"""Where the sink's tasks leave ready-made record batches until the driver publishes them.

    <stagingPath>/<writer's name>/<batch id, 20 digits>/<partition>-<attempt>-<random>.batches

One file per task attempt: magic 2 batches one behind the other, for whatever topic-partitions its rows had. A file is
written under ``.part``, synced, renamed and its directory synced, so a name that ends in ``.batches`` is whole. What
lies in it is told by the commit message (:class:`StagedAttempt`), which only the attempt that Spark counts delivers:
files of other attempts, of killed workers and of killed drivers are never looked at, and go with their directory
once their batch id, or a later one, is published.

The random part keeps an attempt of a killed driver, still running somewhere, apart from the same attempt made again.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PipelineError
from protocol.record_batch import Buffer

logger = logging.getLogger(__name__)

_DIGITS = 20
_WHOLE, _PART = ".batches", ".part"


class StagingError(PipelineError):
    """A staged file cannot be written, is not there for the driver, or is damaged."""


@dataclass(frozen=True, slots=True)
class BatchAddress:
    """One staged batch: its topic-partition, where in the file it lies (bytes), how many records it has."""

    topic: str
    partition: int
    position: int
    size: int
    records: int


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Who stages: ``writer`` names the query or the batch write, ``batch_id`` its batch, the rest the task attempt."""

    writer: str
    batch_id: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What one task attempt staged; ``path`` is None where it had no rows."""

    task: TaskIdentity
    path: Path | None
    batches: tuple[BatchAddress, ...]

    def read(self, batch: BatchAddress) -> bytearray:
        """The bytes of one batch. Raises StagingError when they are not there."""
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
    """Where the attempts of one batch lie."""
    return staging / writer / f"{batch_id:0{_DIGITS}d}"


class StagingFile:
    """The file of one task attempt being written. Use as a context: leaving it without ``finish`` removes the file."""

    def __init__(self, staging: Path, task: TaskIdentity) -> None:
        self._staging = staging
        self._task = task
        self._path: Path | None = None
        self._descriptor = -1
        self._size = 0
        self._batches: list[BatchAddress] = []

    def __enter__(self) -> StagingFile:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._part().unlink(missing_ok=True)

    def append(self, topic: str, partition: int, batch: Buffer, records: int) -> None:
        """Add a batch. Raises StagingError."""
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
        """Sync and name the file. Raises StagingError."""
        if self._path is None:
            return StagedFile(self._task, None, ())
        try:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._part().rename(self._path)
            _sync_directory(self._path.parent)
        except OSError as error:
            raise StagingError(f"cannot stage {self._path}: {error}") from error
        return StagedFile(self._task, self._path, tuple(self._batches))

    def _open(self) -> None:
        task = self._task
        directory = directory_of(self._staging, task.writer, task.batch_id)
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{task.partition:05d}-{task.attempt}-{secrets.token_hex(6)}{_WHOLE}"
        self._descriptor = os.open(self._part(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def _part(self) -> Path:
        assert self._path is not None
        return self._path.with_suffix(_PART)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_files(files: Iterable[StagedFile]) -> None:
    """Remove the files of attempts that will not be published."""
    for file in files:
        if file.path is not None:
            file.path.unlink(missing_ok=True)


def remove_published(staging: Path, writer: str, batch_id: int) -> None:
    """Remove every attempt of ``batch_id`` and of the batches before it, and the writer's directory once it is empty.

    What cannot be removed is logged: the data is published, so this is no reason to fail.
    """
    home = staging / writer
    for directory in _batch_directories(home):
        if int(directory.name) <= batch_id:
            shutil.rmtree(directory, onerror=_log_unremovable)
    if home.is_dir() and not any(home.iterdir()):
        home.rmdir()


def _batch_directories(home: Path) -> Iterator[Path]:
    if home.is_dir():
        yield from (path for path in sorted(home.iterdir()) if path.name.isdecimal() and path.is_dir())


def _log_unremovable(_function: object, path: str, error: object) -> None:
    logger.warning("published staging %s stays: %s", path, error)


def in_order(files: Sequence[StagedFile]) -> list[StagedFile]:
    """By task: the order in which one partition's batches are published, the same however often it is done."""
    return sorted((file for file in files if file.path is not None), key=lambda file: file.task.partition)
