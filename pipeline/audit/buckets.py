"""Counts and checksums of a log's records per ten minutes, for the report of an audit. Comparisons with a table
(``audit.table``, ``audit.latest``) do not use them.

A bucket is ten minutes of record time, named by its first millisecond. Its checksum is the sum of the records' hashes
mod 2^64 (:mod:`tidelog.pipeline.engine.reference`), so it does not depend on order, and buckets of segments can be
added up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tidelog.pipeline.engine.reference import IntegerArray, WordArray

BUCKET_MS = 600_000
_MASK = (1 << 64) - 1

#: First millisecond of a bucket -> (records, checksum).
Buckets = dict[int, tuple[int, int]]


def add(buckets: Buckets, timestamps: IntegerArray, hashes: WordArray) -> None:
    """Add records to ``buckets``; ``timestamps`` int64 in ms, ``hashes`` uint64, both of shape (records,)."""
    if not len(timestamps):
        return
    low, high = int(timestamps.min()) // BUCKET_MS, int(timestamps.max()) // BUCKET_MS
    if low == high:  # a chunk of a log usually lies within one bucket
        _put(buckets, low, len(timestamps), int(hashes.sum()))
        return
    numbers = timestamps // BUCKET_MS
    order = np.argsort(numbers, kind="stable")
    numbers, hashes = numbers[order], hashes[order]
    starts = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
    counts = np.diff(np.append(starts, len(numbers)))
    sums = np.add.reduceat(hashes, starts)
    for number, count, total in zip(numbers[starts].tolist(), counts.tolist(), sums.tolist(), strict=True):
        _put(buckets, number, count, total)


def _put(buckets: Buckets, number: int, count: int, total: int) -> None:
    known = buckets.get(number * BUCKET_MS, (0, 0))
    buckets[number * BUCKET_MS] = (known[0] + count, (known[1] + total) & _MASK)


def merge(buckets: Buckets, more: Mapping[int, tuple[int, int]]) -> None:
    """Add ``more`` to ``buckets``."""
    for begin, (count, total) in more.items():
        _put(buckets, begin // BUCKET_MS, count, total)
