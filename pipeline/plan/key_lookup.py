"""Offsets of one key from the key index that the broker keeps beside a log (``index.keys=true``), read only.

    keys/index-checkpoint       the index files, and the offset below which all records are in them
    keys/<offset>.keys          slot of the hash -> newest entry -> the one before it ...

The broker may write to the index meanwhile. Only entries that the checkpoint covers are used; they are found by
following the chain from its newest entry. Offsets from the checkpoint's ``next_offset`` on are not looked up: the
caller reads those records from the log. An index with a chain that contradicts itself (pages were lost when a machine
failed) is not used. An offset from the index is only a candidate: its record may have another key of the same hash, or
was removed by a cleaner. So the reader compares keys.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidelog.log.find.hashing import key_hash, key_seed
from tidelog.log.find.index_checkpoint import CHECKPOINT_FILE, KEYS_DIRECTORY, FileState, read_checkpoint
from tidelog.log.find.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT
from tidelog.log.find.key_index import MADE_FOR, SUFFIX
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.storage import files_at
from tidelog.pipeline.plan.selection import PartitionDirectory


@dataclass(frozen=True, slots=True)
class KeyCandidates:
    """Offsets of records that may have a key, ascending. Only offsets below ``indexed_to`` were looked up."""

    offsets: tuple[int, ...]
    indexed_to: int


class _DamagedError(Exception):
    """The index contradicts itself."""


def find_key(
    directory: PartitionDirectory, key: bytes, start: int, end: int, count: ReadCount | None = None
) -> KeyCandidates | None:
    """Find candidates with offsets in [``start``, ``end``); None when there is no index that can be used.

    Raises PipelineError when it cannot be read.
    """
    keys = os.path.join(directory.path, KEYS_DIRECTORY)
    path = os.path.join(keys, CHECKPOINT_FILE)
    checkpoint = read_checkpoint(files_at(path), path)
    if checkpoint is None or checkpoint.made_for != MADE_FOR:
        return None
    hashed = key_hash(key_seed(directory.topic), key)
    offsets: set[int] = set()
    try:
        for state in map(FileState._make, checkpoint.files):
            name = f"{state.base_offset:020d}{SUFFIX}"
            with OpenSegment(os.path.join(keys, name), count) as file:
                offsets.update(_chain(file, hashed, state, checkpoint.next_offset))
    except (FileNotFoundError, _DamagedError):
        return None
    return KeyCandidates(
        tuple(sorted(offset for offset in offsets if start <= offset < end)), min(checkpoint.next_offset, end)
    )


def _chain(file: OpenSegment, hashed: int, state: FileState, next_offset: int) -> list[int]:
    """Collect the offsets of a hash among the entries that the checkpoint covers. Raises _DamagedError."""
    header = file.read_at(0, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise _DamagedError
    slots, next_entry = HEADER.unpack(header)[4:]
    if next_entry < state.next_entry:
        raise _DamagedError  # the broker has begun to rebuild the index since its checkpoint was read
    if slots < 1 or file.size < HEADER_BYTES + SLOT.size * slots + ENTRY_BYTES * state.next_entry:
        raise _DamagedError
    slot = hashed % slots
    number = int(SLOT.unpack(file.read_at(HEADER_BYTES + SLOT.size * slot, SLOT.size))[0])
    limit, above = (1 << 31), 1 << 62
    found: list[int] = []
    while number:
        data = file.read_at(HEADER_BYTES + SLOT.size * slots + ENTRY_BYTES * number, ENTRY_BYTES)
        if not 0 < number < limit or len(data) < ENTRY_BYTES:
            raise _DamagedError
        stored, offset, _, previous = ENTRY.unpack(data)
        is_covered = number < state.next_entry
        if stored % slots != slot or offset >= above or (offset < next_offset) != is_covered:
            raise _DamagedError
        if is_covered and stored == hashed:
            found.append(offset)
        limit, above, number = number, offset, previous
    return found
