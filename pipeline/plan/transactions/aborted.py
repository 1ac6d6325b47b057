"""Aborted transactions of a range of offsets, from the ``.txnindex`` files of a partition.

Readers follow the markers in the log (``markers.py``). They need these files only where damage may hide a marker, and
for a transaction whose marker is not in the log. An entry is a fact about offsets, which do not change: it stays true
when its file is renamed or deleted. So every file is read, also those of a swap under way and those to be deleted. A
reader that finds a segment before the cleaner's swap and its index after it would otherwise take aborted records for
committed ones. For the same reason the directory is listed and read again until no file was renamed meanwhile.
"""

from __future__ import annotations

import os
import re
import time

from tidelog.log.index.transaction_index import ENTRY
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.storage import names_in
from tidelog.pipeline.plan.rows import AbortedTransaction

_NAME = re.compile(r"([0-9]{20})\.txnindex(\.swap|\.cleaned|\.deleted)?")

#: How often the files are read at most, and the pause before the next time. Together about one second, which is far
#: longer than the renames of a swap or a deletion take.
ATTEMPTS = 50
_PAUSE_S = 0.02


def aborted_transactions(
    directory: str, start: int, end: int, count: ReadCount | None = None
) -> tuple[AbortedTransaction, ...]:
    """Collect the aborted transactions that touch offsets [``start``, ``end``), by producer and first offset.

    Raises FileNotFoundError when the directory is gone, or its index files are renamed again and again; PipelineError
    on a damaged or unreadable index.
    """
    found: set[tuple[int, int, int]] = set()
    names = _index_names(directory)
    for _ in range(ATTEMPTS):
        contents = [_entries(os.path.join(directory, name), count) for name in names]
        for producer, first, last in (entry for entries in contents if entries is not None for entry in entries):
            if last >= start and first < end:
                found.add((producer, first, last))
        before, names = names, _index_names(directory)
        if names == before and None not in contents:
            return tuple(AbortedTransaction(*entry) for entry in sorted(found))
        time.sleep(_PAUSE_S)
    raise FileNotFoundError(f"{directory}: its .txnindex files were renamed or deleted faster than they could be read")


def _index_names(directory: str) -> list[str]:
    return sorted(name for name in names_in(directory) if _NAME.fullmatch(name))


def _entries(path: str, count: ReadCount | None) -> list[tuple[int, int, int]] | None:
    """Read the entries of a file; None when it was renamed or deleted since it was listed. Raises PipelineError."""
    try:
        with OpenSegment(path, count) as file:
            data = file.read_at(0, file.size // ENTRY.size * ENTRY.size)
    except FileNotFoundError:
        return None
    entries = []
    for version, producer, first, last, _ in ENTRY.iter_unpack(data):
        if version != 0:
            raise PipelineError(f"{path} has an entry of unknown version {version}: expected 0")
        entries.append((producer, first, last))
    return entries
