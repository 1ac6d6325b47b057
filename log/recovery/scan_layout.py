"""Layout shared by the recovery kernel and its caller: slots, columns, answers, sizes of tables.

Apart from the kernels because the process that runs their machine code has no numba
(``tidelog.log.recovery.scan_kernels``).
"""

from __future__ import annotations

#: Slots of ``walk``.
SEGMENT_BASE, INTERVAL, NEXT_OFFSET, LAST_ENTRY, LARGEST, LARGEST_OFFSET, LAST_TIME, LATEST_EPOCH = range(8)
OFFSET_ROOM, TIME_ROOM, OFFSET_COUNT, TIME_COUNT, EPOCH_COUNT, ROW_COUNT, CONSUMED = range(8, 15)
WALK_SLOTS = 15

#: Columns of a producer row; rows lie one behind the other.
POSITION, SIZE, BASE_OFFSET, DELTA, MAX_TIMESTAMP, EPOCH, ATTRIBUTES, PRODUCER, PRODUCER_EPOCH, SEQUENCE, COUNT = range(
    11
)
ROW_COLUMNS = 11

#: Why ``scan`` came back: the chunk ends within a batch; an output table is full (call again behind CONSUMED); the
#: batch at CONSUMED is not for the kernel.
NEED_BYTES, TABLE_FULL, NOT_MINE = range(3)

#: Rows of a call, and slots of the table of producers: twice as many, so that probes stay short.
PRODUCER_ROWS = 8192
PRODUCER_SLOTS = 2 * PRODUCER_ROWS
