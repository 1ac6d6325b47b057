"""Checks of the small files of a partition directory, and the log's start and end according to the checkpoints.

    leader-epoch-checkpoint             readable, ascending, within the log; its first offset is the log's first one, so
                                        it shows that segments are missing at the log's start
    recovery-point-offset-checkpoint,   at or below the log's end: they show that segments are missing there
    replication-offset-checkpoint
    .snapshot                           readable, its checksum holds
    partition.metadata                  readable
    anything else                       index files without their segment, and files that no broker writes

A missing snapshot, epoch file or checkpoint is not a finding: the broker rebuilds them, and a copy may lack them. One
thread.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tidelog.log.files.checkpoints import (
    LEADER_EPOCH_FILE,
    LOG_START_OFFSET_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    EpochEntry,
    read_if_there,
    read_leader_epochs,
    read_offset_checkpoint,
    read_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.producer.snapshot import decode_snapshot
from tidelog.pipeline.files.storage import files_at, names_in
from tidelog.protocol.errors import KafkaStorageError

_SEGMENT_FILE = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)(\.(swap|cleaned|deleted))?")
_INDEX_SUFFIXES = ("index", "timeindex", "txnindex")
#: Files of a partition directory besides those of segments; both are written as ``.tmp`` and then renamed.
_KNOWN = {LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, f"{LEADER_EPOCH_FILE}.tmp", f"{PARTITION_METADATA_FILE}.tmp"}
#: Directories of Tidelog's own indices.
_FOLDERS = {"keys", "tags"}


class FileFinding(NamedTuple):
    """A damaged or unknown file, and its fault in one line."""

    path: str
    message: str


class LogEnds(NamedTuple):
    """Start and end of a log according to checkpoints, each -1 if it is not known.

    The log should begin at or below ``start``, and end at or above ``end``, which is from ``end_file``.
    """

    start: int
    end: int
    end_file: str


def check_small_files(directory: str, bases: Collection[int], next_offset: int) -> Iterator[FileFinding]:
    """Yield findings about the files of a directory. ``bases``: base offsets of its segments when they were listed;
    segments made since then count, too. ``next_offset``: the log's end.
    """
    try:
        names = sorted(names_in(directory))
    except FileNotFoundError:
        return
    matched = (_SEGMENT_FILE.fullmatch(name) for name in names)
    bases = {*bases, *(int(one[1]) for one in matched if one is not None and one[2] == "log")}
    for name in names:
        path = os.path.join(directory, name)
        message = _fault_of(path, name, bases)
        if message is not None:
            yield FileFinding(path, message)
    path = os.path.join(directory, LEADER_EPOCH_FILE)
    try:
        yield from _epoch_faults(path, read_leader_epochs(files_at(path), path), next_offset)
    except KafkaStorageError as error:
        yield FileFinding(path, str(error))


def _fault_of(path: str, name: str, bases: Collection[int]) -> str | None:
    matched = _SEGMENT_FILE.fullmatch(name)
    if matched is None:
        is_known = name in _KNOWN or name in _FOLDERS
        return _metadata_fault(path) if name == PARTITION_METADATA_FILE else None if is_known else "a foreign file"
    base, suffix, ending = int(matched[1]), matched[2], matched[4]
    if suffix in _INDEX_SUFFIXES and ending is None and base not in bases:
        return "an index without its segment"
    return _snapshot_fault(path) if suffix == "snapshot" and ending is None else None


def _metadata_fault(path: str) -> str | None:
    directory = os.path.dirname(path)
    try:
        read_partition_metadata(files_at(directory), directory)
    except KafkaStorageError as error:
        return str(error)
    return None


def _snapshot_fault(path: str) -> str | None:
    try:
        data = read_if_there(files_at(path), path)
        if data is not None:  # otherwise it was deleted since it was listed
            decode_snapshot(data, path)
    except KafkaStorageError as error:
        return str(error)
    return None


def _epoch_faults(path: str, entries: list[EpochEntry], next_offset: int) -> Iterator[FileFinding]:
    for before, after in itertools.pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            yield FileFinding(path, f"epoch {after.epoch} from offset {after.start_offset} does not follow {before}")
    if entries and entries[-1].start_offset > next_offset:
        yield FileFinding(path, f"epoch {entries[-1].epoch} begins at {entries[-1].start_offset}, the log ends before")


def known_ends(directory: str, partition: TopicPartition) -> tuple[LogEnds, list[FileFinding]]:
    """Read a log's ends from the checkpoints; also returns findings about checkpoints that cannot be read.

    Retention raises the first epoch's offset before it deletes segments. The checkpoint of start offsets may be older:
    Apache Kafka writes it once a minute. So the larger of both is the start, and without epochs the start is not known.
    """
    findings: list[FileFinding] = []
    offsets = {}
    for name in (LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE):
        path = os.path.join(os.path.dirname(directory), name)
        try:
            offsets[name] = read_offset_checkpoint(files_at(path), path).get(partition, -1)
        except KafkaStorageError as error:
            offsets[name] = -1
            findings.append(FileFinding(path, str(error)))
    newest = max((RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE), key=lambda name: offsets[name])
    first = _first_epoch_offset(directory)
    start = -1 if first is None else max(first, offsets[LOG_START_OFFSET_FILE])
    return LogEnds(start, offsets[newest], os.path.join(os.path.dirname(directory), newest)), findings


def _first_epoch_offset(directory: str) -> int | None:
    path = os.path.join(directory, LEADER_EPOCH_FILE)
    try:
        entries = read_leader_epochs(files_at(path), path)
    except KafkaStorageError:
        return None
    return entries[0].start_offset if entries else None
