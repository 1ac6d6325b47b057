"""The layout of the arrays that decoding reads and writes (tables of decoded records, limits, progress), and the
statuses that it returns.

A *table* is an int64 array of shape (COLUMNS, rows); positions in it are bytes of the buffer the row was decoded from:

    OFFSET | TIMESTAMP (ms) | TIMESTAMP_TYPE | KEY_START | KEY_SIZE | VALUE_START | VALUE_SIZE | HEADERS_START | HEADERS

A size of -1 is null; HEADERS is the number of headers, HEADERS_START the byte at which the first one's name length
begins.

``decode_chunk`` walks whole magic 2 batches of a chunk from byte BEGIN on, and stops where the caller must act:

    NEED_BYTES   the chunk ends, within a batch or not  COMPRESSED   its CRC holds; decompress, then decode_section
    TABLE_FULL   the batch has more rows than room      OLD_FORMAT   magic 0 or 1 (or unknown)
    END          END_OFFSET is reached                  BAD_CRC, MALFORMED   damage: no row of the batch was added
    HOLE         wanted offsets are missing before the batch, or its offsets jump ahead into those of the next one in
                 the chunk: check it, set NEXT_OFFSET to its base offset and call again

A batch whose offset goes back is damage too: the CRC does not cover offsets.

``limits`` (int64, slots below) say which records are wanted; those of control batches and of aborted transactions never
are. ``progress`` (int64): ROWS in the table so far, CONSUMED bytes of the chunk, NEXT_OFFSET after the last batch.
"""

from __future__ import annotations

OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY_START, KEY_SIZE, VALUE_START, VALUE_SIZE, HEADERS_START, HEADERS = range(9)
COLUMNS = 9
#: Slots of ``bounds``: the byte to begin at, the bytes in the chunk, and the range of bytes whose batches have CRCs
#: that were already checked.
BEGIN, SIZE, VERIFIED_FROM, VERIFIED_TO = range(4)
BOUNDS_SLOTS = 4
#: Slots of ``limits``: offsets [START_OFFSET, END_OFFSET), times [MIN_TIME, MAX_TIME] in ms, 1 when only one key is
#: wanted, and the offset below which a cleaner may have removed records.
START_OFFSET, END_OFFSET, MIN_TIME, MAX_TIME, HAS_KEY, CLEANED_BELOW = range(6)
LIMIT_SLOTS = 6
#: Slots of ``progress``.
ROWS, CONSUMED, NEXT_OFFSET = range(3)
PROGRESS_SLOTS = 3
#: Statuses.
NEED_BYTES, TABLE_FULL, END, COMPRESSED, OLD_FORMAT, BAD_CRC, MALFORMED, HOLE = range(8)
#: Columns of ``aborted``, whose rows are sorted: a producer's records from its first to its last offset are aborted.
PRODUCER, FIRST, LAST = range(3)
#: Slots of a section's ``context``: the bases of its records' deltas, the log append time, 1 if all records have that
#: time, the number of records, and the section's first and end byte.
BASE_OFFSET, BASE_TIMESTAMP, APPEND_TIME, IS_APPEND_TIME, RECORDS, SECTION_START, SECTION_END = range(7)
CONTEXT_SLOTS = 7
#: Bytes that a buffer has after its data: a varint may be read past the end before its record is refused.
PADDING = 64
