"""The check of a batch's largest timestamp in its header against the timestamps of its records.

Time indices and readers that select by time trust the header, and no checksum shows that its writer was wrong. A
batch with log append time is not checked: the header has the timestamp of all its records.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.reference import IntegerArray

_LOG_APPEND = 0x08

#: A function that records a finding: kind, byte position, offset, message.
Find = Callable[[str, int, int, str], None]


def check_batch_times(find: Find, rows: IntegerArray, timestamps: IntegerArray, position: int) -> None:
    """Compare the largest times of batch rows with ``timestamps``, those of their records, one batch after another.

    ``position``: byte of the file from which the rows' positions count.
    """
    largest = _largest_times(rows, timestamps)
    by_producer = rows[:, at.ATTRIBUTES] & _LOG_APPEND == 0
    for number in np.flatnonzero(by_producer & (rows[:, at.MAX_TIMESTAMP] != largest)).tolist():
        row = rows[number].tolist()
        begin, offset = position + row[at.POSITION], row[at.BASE_OFFSET]
        find_wrong_time(find, begin, offset, said=row[at.MAX_TIMESTAMP], largest=int(largest[number]))


def find_wrong_time(find: Find, position: int, offset: int, *, said: int, largest: int) -> None:
    """Record that a batch's header has a larger or smaller timestamp than the largest of its records."""
    find(
        "timestamp",
        position,
        offset,
        f"the batch of offset {offset} has the largest time {said}, its records {largest}",
    )


def _largest_times(rows: IntegerArray, timestamps: IntegerArray) -> IntegerArray:
    """Compute the largest record time of each row; a row without records has its header's time."""
    found: IntegerArray = rows[:, at.MAX_TIMESTAMP].copy()
    has_records = rows[:, at.RECORD_COUNT] > 0
    counts = rows[has_records, at.RECORD_COUNT]
    if len(counts):
        found[has_records] = np.maximum.reduceat(timestamps, np.cumsum(counts) - counts)
    return found
