"""Choice between compiled routines and plain reference for indexing and look-ups, made once at import.

Both give equal results. Where nothing is compiled, the reference is used: it is faster than uncompiled routines.
"""

from __future__ import annotations

from tidelog.log.find.engine import entries, reference, walk
from tidelog.log.find.engine.entries import Chain

__all__ = [
    "IS_COMPILED", "Chain", "find_nth_record", "match_records", "put_entries", "put_tags", "restore_slots",
    "walk_chunk", "write_pieces",
]  # fmt: skip

IS_COMPILED = walk.IS_COMPILED and entries.IS_COMPILED
walk_chunk = walk.walk_chunk if IS_COMPILED else reference.walk_chunk
find_nth_record = walk.find_nth_record if IS_COMPILED else reference.find_nth_record
put_entries = entries.put_entries if IS_COMPILED else reference.put_entries
put_tags = entries.put_tags if IS_COMPILED else reference.put_tags
restore_slots = entries.restore_slots if IS_COMPILED else reference.restore_slots
write_pieces = entries.write_pieces if IS_COMPILED else reference.write_pieces
_find_matches = walk.match_records if IS_COMPILED else reference.match_records


def match_records(section: bytes, count: int, query: reference.MatchQuery) -> list[tuple[int, int]]:
    """Find the byte ranges of the records in an uncompressed section that match. Raises InvalidRecordError."""
    spans = _find_matches(section, count, query)
    return reference.match_records(section, count, query) if spans is None else spans
