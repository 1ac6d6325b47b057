"""Aborted transactions of a range of offsets, from the ``.txnindex`` files of a partition.

Readers follow the markers in the log (``markers.py``). They need these files only where damage may hide a marker, and
for a transaction whose marker is not in the log. An entry is a fact about offsets, which do not change: it stays true
when its file is renamed or deleted. So every file is read, also those of a swap under way and those to be deleted. A
reader that finds a segment before the cleaner's swap and its index after it would otherwise take aborted records for
committed ones.
"""

from __future__ import annotations

import os
import re

from tidelog.log.index.transaction_index import ENTRY
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.storage import names_in
from tidelog.pipeline.plan.rows import AbortedTransaction

_NAME = re.compile(r"([0-9]{20})\.txnindex(\.swap|\.cleaned|\.deleted)?")


def aborted_transactions(
    directory: str, start: int, end: int, count: ReadCount | None = None
) -> tuple[AbortedTransaction, ...]:
    """Collect the aborted transactions that touch offsets [``start``, ``end``), by producer and first offset.

    Raises FileNotFoundError when the directory is gone, PipelineError on a damaged index.
    """
    found: set[tuple[int, int, int]] = set()
    for name in sorted(name for name in names_in(directory) if _NAME.fullmatch(name)):
        for producer, first, last in _entries(os.path.join(directory, name), count):
            if last >= start and first < end:
                found.add((producer, first, last))
    return tuple(AbortedTransaction(*entry) for entry in sorted(found))


def _entries(path: str, count: ReadCount | None) -> list[tuple[int, int, int]]:
    try:
        with OpenSegment(path, count) as file:
            data = file.read_at(0, file.size // ENTRY.size * ENTRY.size)
    except FileNotFoundError:
        return []  # deleted or renamed since the directory was listed
    entries = []
    for version, producer, first, last, _ in ENTRY.iter_unpack(data):
        if version != 0:
            raise PipelineError(f"{path} has an entry of unknown version {version}: expected 0")
        entries.append((producer, first, last))
    return entries
