"""Batch table of the cleaner's engines: columns, batch states, decisions and limits.

A *chunk* is a part of a segment file in a buffer. The *scratch* follows it in the same buffer: compressed batches are
decompressed there, and old message sets are rewritten as version 2. A *batch table* describes the batches of a chunk:
it is an int64 array with one row for each batch, and one column for each constant below. Positions are bytes in the
buffer.

A round has an index pass, which collects keys, and a copy pass, which filters the batches. A record's *ordinal* is its
number in the order of a pass, counted over readable batches. A record that both passes read has the same ordinal in
both. In a segment that only the copy pass reads, ordinals begin at 0. All that the filter needs to know about keys is
one bit for each ordinal: whether the record is superseded by a later one with its key.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

# Columns of the batch table.
POSITION = 0  # of the batch as it was read from the disk
SIZE = 1  # bytes on disk, header included
BASE_OFFSET = 2
LAST_OFFSET_DELTA = 3
COUNT = 4  # records
ATTRIBUTES = 5
BASE_TIMESTAMP = 6
MAX_TIMESTAMP = 7
PRODUCER_ID = 8
PRODUCER_EPOCH = 9
STATE = 10  # one of BatchState
REASON = 11  # one of Unreadable, for POISON rows
BODY = 12  # position of the records: in the chunk, or in the scratch after a copy of the header
BODY_SIZE = 13
ORDINAL = 14  # of the first record
DECISION = 15  # DISCARD | RETAIN_EMPTY | MARKER_OF_EMPTY_TRANSACTION | NOT_INDEXED
COLUMNS = 16

# Columns of the table of written batches.
OUT_POSITION = 0  # in the output buffer
OUT_SIZE = 1
OUT_LAST_OFFSET = 2
OUT_MAX_TIMESTAMP = 3
OUT_COUNT = 4
OUT_CODEC = 5  # 0: finished bytes; else the codec by which the records still have to be compressed
OUT_CHANGED = 6  # 1 if the bytes differ from those on disk
OUT_COLUMNS = 7
UNKNOWN_OFFSET = -1  # the last offset of a POISON batch: its header may be wrong

# Bits of DECISION.
DISCARD = 1  # its records are dropped whatever their keys: aborted, or a marker after its delete horizon (KIP-534)
RETAIN_EMPTY = 2  # it is kept even without records: last sequence or epoch of a producer, or last offset of the round
MARKER_OF_EMPTY_TRANSACTION = 4  # no batch of its transaction is left: the marker gets a delete horizon
NOT_INDEXED = 8  # its keys supersede no others: a control batch, or aborted

# Control types of a control batch.
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_OTHER = 2  # unknown, or cannot be read
CONTROL_EMPTIED = 3  # an earlier round has removed its record

# Slots of the statistics vector that the engines fill (int64).
STAT_RECORDS_READ = 0
STAT_RECORDS_KEPT = 1
STAT_KEYLESS = 2  # dropped because a compacted log may not have records without keys
STAT_TOMBSTONES_DROPPED = 3
STAT_BATCHES_CHANGED = 4  # rewritten, emptied or dropped
STATS = 5

BATCH_OVERHEAD = 61
LOG_OVERHEAD = 12
CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
# Bytes of length, attributes, timestamp delta, offset delta, key length, value length and header count: one each.
# If a header has more records than fit into the batch's bytes, it is refused before any memory is allocated for them.
SMALLEST_RECORD = 7
# Bytes after the content of every buffer for an engine, which may load a word that starts at the last byte.
PADDING = 16
# Ordinals from here on belong to the dirty section, those below to the clean one. An ordinal has 40 bits in the map.
DIRTY_ORDINALS = 1 << 39

# Attribute bits of LZ4, and slots of its compressor's hash table of positions.
LZ4 = 3
LZ4_HASH_SLOTS = 4096

# The compiled map of keys (drawn in tidelog.cleaner.engine.digest_map).
ENTRIES_PER_BUCKET = 3
BUCKET_BYTES = 64
BUCKET_WORDS = 8
SIPHASH, MD5 = 0, 1
# Slots of a map's counters.
SIZE_COUNTER, LOOKUPS, PROBES = 0, 1, 2
COUNTERS = 3


class BatchState(IntEnum):
    """State of the batch that a row of the batch table describes."""

    PLAIN = 0  # version 2, not compressed: its records are in the chunk
    PACKED = 1  # compressed or an old message set: its records can only be read after it is expanded
    EXPANDED = 2  # compressed: its records are in the scratch
    CONVERTED = 3  # old message sets, rewritten as version 2 in the scratch
    POISON = 4  # cannot be read: its bytes are kept unchanged


class SupersededBits(NamedTuple):
    """Superseded bits from one ordinal on: the bit of ordinal ``o`` is bit ``o - first_ordinal``."""

    bits: np.ndarray[Any, np.dtype[np.uint8]]
    first_ordinal: int


class FilterTimes(NamedTuple):
    """Times in ms for the filter: now, and the delete horizon that tombstones and markers without one get (KIP-534)."""

    now: int
    new_horizon: int


class FilterOutput(NamedTuple):
    """Output of the filter: the bytes of the batches, and a table with one row for each (the OUT columns)."""

    data: np.ndarray[Any, np.dtype[np.uint8]]
    table: np.ndarray[Any, np.dtype[np.int64]]


class ExpandLimits(NamedTuple):
    """Limits in bytes for decompression into a buffer's scratch."""

    buffer: int
    """The buffer's usable bytes."""
    batch: int
    """Largest size in bytes of one batch after decompression."""
    full: int
    """Byte of the buffer from which the scratch counts as full."""


class Unreadable(IntEnum):
    """Reason why a batch cannot be read, so that its bytes are kept unchanged."""

    NONE = 0
    MAGIC = 1
    CRC = 2
    COUNT = 3
    RECORDS = 4
    CODEC = 5
    MESSAGE_SET = 6

    @property
    def sentence(self) -> str:
        """Return the reason as text, for logs and status."""
        return _SENTENCES[self]


_SENTENCES = {
    Unreadable.NONE: "readable",
    Unreadable.MAGIC: "its magic byte is unknown",
    Unreadable.CRC: "its checksum is wrong",
    Unreadable.COUNT: "its offsets or record count are impossible",
    Unreadable.RECORDS: "its records cannot be parsed",
    Unreadable.CODEC: "it cannot be decompressed within the limit",
    Unreadable.MESSAGE_SET: "the old message set cannot be parsed",
}
