"""Record-level work of produce requests, look-ups by time and the replay of metadata: compiled where the package is,
else the reference in plain Python.

The choice is made once, at import. Results do not depend on it, with two exceptions: compiled, errors for a large
malformed section name no byte, and ``max_header_bytes`` has no effect. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.log.records import reference, section_walk
from tidelog.log.records.reference import SectionCheck, TimestampPosition
from tidelog.protocol.record.record_batch import RecordBatch

__all__ = ["IS_COMPILED", "SectionCheck", "TimestampPosition", "check_section", "first_at_or_after", "record_values"]

IS_COMPILED = section_walk.IS_COMPILED
"""Whether the package's modules are compiled: all are, or none."""

# Uncompiled, the walk would be three times slower than the reference.
check_section = section_walk.check_section if IS_COMPILED else reference.check_section
first_at_or_after = section_walk.first_at_or_after if IS_COMPILED else reference.first_at_or_after


def record_values(batch: RecordBatch, max_decompressed_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the offset and the value of each record. Raises what ``RecordBatch.records`` raises."""
    section = batch.uncompressed_section(max_decompressed_bytes)
    spans = section_walk.value_spans(section, batch.record_count) if IS_COMPILED else None
    if spans is None:
        for record in batch.parse(section):
            yield record.offset, record.value
        return
    view, base = memoryview(section), batch.base_offset
    for delta, start, size in spans:
        yield base + delta, None if size < 0 else bytes(view[start : start + size])
