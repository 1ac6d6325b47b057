"""Record-level work of the produce path and of look-ups by time: compiled where the package was built so, else the
reference.

The choice is made once, by import. Results do not depend on it, but of a large malformed section the compiled walk says
no more than that it is malformed. Any thread.
"""

from __future__ import annotations

from tidelog.log.records import reference, section_walk
from tidelog.log.records.reference import SectionCheck, TimestampPosition

__all__ = ["IS_COMPILED", "SectionCheck", "TimestampPosition", "check_section", "first_at_or_after"]

IS_COMPILED = section_walk.IS_COMPILED
"""Whether the package's modules are compiled: all are, or none."""

# Uncompiled, the walk would be three times slower than the reference.
check_section = section_walk.check_section if IS_COMPILED else reference.check_section
first_at_or_after = section_walk.first_at_or_after if IS_COMPILED else reference.first_at_or_after
