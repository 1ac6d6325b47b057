"""Recovery's kernels as numba compiles them, called as their image is: what serves where there is no image of them.

Importing this module runs each once, on the types a recovery uses, so that a child has compiled all of them.
"""

from __future__ import annotations

from array import array

from tidelog.log.records.array_kernels import numba_callers
from tidelog.log.recovery import scan_kernels
from tidelog.log.recovery.scan_group import RECOVERY
from tidelog.log.recovery.scan_layout import PRODUCER_SLOTS, ROW_COLUMNS, WALK_SLOTS

_CALLS = numba_callers(RECOVERY, {name: getattr(scan_kernels, name) for name in RECOVERY.signatures})
scan = _CALLS.scan
needed_rows = _CALLS.needed_rows

_rows = array("q", bytes(8 * ROW_COLUMNS))
scan(
    bytearray(64), (0, 64, 0), array("q", bytes(8 * WALK_SLOTS)), bytearray(8), bytearray(12), array("q", (0, 0)), _rows
)
needed_rows(_rows, 0, array("q", bytes(8 * PRODUCER_SLOTS)), bytearray(PRODUCER_SLOTS), array("q", (0,)))
