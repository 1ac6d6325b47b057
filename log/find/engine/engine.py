"""Choice between compiled routines and plain reference for indexing and look-ups, made once at import.

Results never depend on it; uncompiled routines would be slower than the reference.
"""

from __future__ import annotations

from tidelog.log.find.engine import entries, reference, walk
from tidelog.log.find.engine.entries import Chain

__all__ = [
    "IS_COMPILED", "Chain", "match_records", "nth_place", "put_entries", "put_tags", "restore_slots", "walk_chunk",
    "write_pieces",
]  # fmt: skip

IS_COMPILED = walk.IS_COMPILED and entries.IS_COMPILED
walk_chunk = walk.walk_chunk if IS_COMPILED else reference.walk_chunk
nth_place = walk.nth_place if IS_COMPILED else reference.nth_place
put_entries = entries.put_entries if IS_COMPILED else reference.put_entries
put_tags = entries.put_tags if IS_COMPILED else reference.put_tags
restore_slots = entries.restore_slots if IS_COMPILED else reference.restore_slots
write_pieces = entries.write_pieces if IS_COMPILED else reference.write_pieces
_find_matches = walk.match_records if IS_COMPILED else reference.match_records


def match_records(section: bytes, count: int, query: reference.MatchQuery) -> list[tuple[int, int]]:
    """Find the places of the records of an uncompressed section that match. Raises InvalidRecordError."""
    places = _find_matches(section, count, query)
    return reference.match_records(section, count, query) if places is None else places
