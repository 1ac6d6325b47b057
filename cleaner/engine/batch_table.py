"""Batch table of the cleaner's engines: columns, batch states, decisions and limits.

A *chunk* is a stretch of a segment file read into one buffer. The *scratch* follows it in the same buffer: there
compressed batches are decompressed and old message sets are rewritten as version 2. A *batch table* describes the
batches of a chunk: an int64 array, one row per batch, one column per constant below. Positions are bytes in the buffer.

A record's *ordinal* is its number in the order of a pass, counted over readable batches. Both passes of a round read
the same bytes, so a record has the same ordinal in both. One bit per ordinal ("superseded") is all that the copy pass
needs to know about keys.
"""

from __future__ import annotations

from enum import IntEnum

# Columns of the batch table.
POSITION = 0  # of the batch as it is on disk
SIZE = 1  # bytes on disk, header and all
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
BODY = 12  # where the records start: in the chunk, or in the scratch, after a copy of the header
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
OUT_CODEC = 5  # 0: finished bytes; else header and records that still have to be compressed
OUT_CHANGED = 6  # 1 when the bytes differ from those on disk
OUT_COLUMNS = 7

# Bits of DECISION.
DISCARD = 1  # its records are dropped without looking at keys: aborted, or a marker past its horizon
RETAIN_EMPTY = 2  # the batch stays even when emptied: last sequence of an active producer, last offset of the round
MARKER_OF_EMPTY_TRANSACTION = 4  # no batch of its transaction is left: gets a delete horizon
NOT_INDEXED = 8  # its keys count for nothing: control batch or aborted

# Control types of a control batch.
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_OTHER = 2  # unknown, or not to be read
CONTROL_EMPTIED = 3  # by an earlier round

# Slots of the statistics vector that the engines fill (int64).
STAT_RECORDS_READ = 0
STAT_RECORDS_KEPT = 1
STAT_KEYLESS = 2  # dropped because a compacted log cannot hold them
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
# Length, attributes, timestamp delta, offset delta, key length, value length, header count: at least one byte each.
# A batch that claims more records than its bytes can hold is refused before any buffer is sized by the claim.
SMALLEST_RECORD = 7
# Padding after every buffer given to an engine: it may load a word that starts at the last byte.
PADDING = 16
# Ordinals from here on belong to the dirty section; below it, to the clean one. An ordinal has 40 bits in the map.
DIRTY_ORDINALS = 1 << 39

# Attribute bits of LZ4, and the positions that its compressor remembers.
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

    PLAIN = 0  # version 2, uncompressed: records in the chunk
    PACKED = 1  # compressed or an old message set: not readable until expanded
    EXPANDED = 2  # compressed, records in the scratch
    CONVERTED = 3  # old message sets, rewritten in the scratch as version 2
    POISON = 4  # cannot be read: kept as bytes


class Unreadable(IntEnum):
    """Reason why a batch is kept as bytes."""

    NONE = 0
    LENGTH = 1
    MAGIC = 2
    CRC = 3
    COUNT = 4
    RECORDS = 5
    CODEC = 6
    MESSAGE_SET = 7

    @property
    def sentence(self) -> str:
        """Return the reason as text, for logs and status."""
        return _SENTENCES[self]


_SENTENCES = {
    Unreadable.NONE: "readable",
    Unreadable.LENGTH: "its length field fits neither a batch nor the segment",
    Unreadable.MAGIC: "unknown magic byte",
    Unreadable.CRC: "checksum mismatch",
    Unreadable.COUNT: "impossible offsets or record count",
    Unreadable.RECORDS: "records do not parse",
    Unreadable.CODEC: "does not decompress within the limit",
    Unreadable.MESSAGE_SET: "old message set does not parse",
}
