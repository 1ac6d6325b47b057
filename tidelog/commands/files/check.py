"""``tidelog check DIR``: verify the logs on disk in a partition directory, or in all partition directories of a log
directory.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.commands.frame.commands import Command
from tidelog.commands.frame.options import json_option
from tidelog.commands.frame.output import print_json

if TYPE_CHECKING:
    from tidelog.log.check import Finding
    from tidelog.log.system.file_system import FileSystem

LOCK_FILE = ".lock"


@click.command(cls=Command)
@click.argument("directories_given", metavar="DIR...", nargs=-1, required=True)
@click.option("--quiet", is_flag=True, help="print findings only")
@json_option
def command(*, directories_given: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Verify the logs of a stopped broker.

    Checks the checksums, offsets, indices and snapshots of a partition directory, or of all in a log directory. The
    exit code is 1 when something is wrong, 2 when something cannot be read or a broker runs.
    """
    from tidelog.log.check import check_directory
    from tidelog.log.system.file_system import OsFileSystem
    from tidelog.protocol.errors import KafkaStorageError

    file_system = OsFileSystem()
    wrong = 0
    locks = []
    try:
        for path in lock_files(directories_given):
            lock = file_system.lock_file(path, shared=True)
            if lock is None:
                print(f"tidelog check: a broker runs on {os.path.dirname(path)}: stop it first", file=sys.stderr)
                return 2
            locks.append(lock)
        directories = partition_directories(file_system, directories_given)
        found = ((directory, check_directory(file_system, directory)) for directory in directories)
        wrong = print_document(found) if as_json else print_lines(found, quiet=quiet)
        if not directories and not (quiet or as_json):
            print("no partitions")
    except KafkaStorageError as error:
        print(f"tidelog check: {error}", file=sys.stderr)
        return 2
    finally:
        for lock in locks:
            lock.close()
    return 1 if wrong else 0


def print_lines(found: Iterable[tuple[str, list[Finding]]], *, quiet: bool) -> int:
    """Print a line for each finding, and for each partition without any. Returns the number of findings."""
    wrong = 0
    for directory, findings in found:
        wrong += len(findings)
        for finding in findings:
            print(finding)
        if not findings and not quiet:
            print(f"{directory}: in order")
    return wrong


def print_document(found: Iterable[tuple[str, list[Finding]]]) -> int:
    """Print the findings of each partition as JSON. Returns their number."""
    listed = list(found)
    print_json(
        [
            {"directory": directory, "findings": [finding._asdict() for finding in findings]}
            for directory, findings in listed
        ]
    )
    return sum(len(findings) for _, findings in listed)


def lock_files(paths: Sequence[str]) -> list[str]:
    """Find the lock files that a running broker would hold: the one in each log directory, and for a partition
    directory the one in the log directory above it.
    """
    directories = [os.path.abspath(directory) for path in paths for directory in (path, os.path.join(path, os.pardir))]
    return [
        lock
        for lock in sorted({os.path.join(directory, LOCK_FILE) for directory in directories})
        if os.path.isfile(lock)
    ]


def partition_directories(file_system: FileSystem, paths: Sequence[str]) -> list[str]:
    """List the partition directories below each log directory, and each other path itself. Raises KafkaStorageError."""
    found = []
    for path in paths:
        names = file_system.list_names(path) if os.path.isdir(path) else []
        inside = [os.path.join(path, name) for name in names]
        below = [entry for entry in inside if os.path.isdir(entry) and _is_partition(file_system, entry)]
        is_log_directory = below or os.path.exists(os.path.join(path, "meta.properties"))
        found += below if is_log_directory and not _has_segments(names) else [path]
    return found


def _is_partition(file_system: FileSystem, path: str) -> bool:
    """Return whether a directory has segments, or has a partition's name and is not empty.

    False for deleted, stray and future ones, and for one without a partition's name that cannot be listed, such as
    ``lost+found``. Raises KafkaStorageError.
    """
    from tidelog.log.files.topic_partition import TopicPartition
    from tidelog.protocol.errors import KafkaStorageError

    name = os.path.basename(path)
    if name.endswith(("-delete", "-stray", "-future")):
        return False
    try:
        TopicPartition.parse(name)
    except ValueError:
        with contextlib.suppress(KafkaStorageError):
            return _has_segments(file_system.list_names(path))
        return False
    return bool(file_system.list_names(path))


def _has_segments(names: Iterable[str]) -> bool:
    from tidelog.log.files.segment_names import base_offset_of

    return any(name.endswith(".log") and base_offset_of(name) is not None for name in names)
