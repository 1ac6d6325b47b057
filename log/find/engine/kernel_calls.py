"""Calls of numba's kernels with the reference's signatures, used where there is no image of machine code."""

from __future__ import annotations

from tidelog.log.find.engine.calls import FindCalls
from tidelog.log.find.engine.kernel_group import FIND
from tidelog.log.find.engine.kernels import KERNELS
from tidelog.log.records.array_kernels import numba_callers

CALLS = FindCalls(numba_callers(FIND, KERNELS))
walk_chunk = CALLS.walk_chunk
put_entries = CALLS.put_entries
put_tags = CALLS.put_tags
write_pieces = CALLS.write_pieces
walk_chain = CALLS.walk_chain
match_records = CALLS.match_records
nth_place = CALLS.nth_place
