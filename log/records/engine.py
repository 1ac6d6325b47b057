"""Chooses who does record-level work: the plain Python reference, or the numba kernels once they are loaded."""

from __future__ import annotations

from log.records import reference

check_section = reference.check_section
first_at_or_after = reference.first_at_or_after
first_with_max_timestamp = reference.first_with_max_timestamp
SectionCheck = reference.SectionCheck
