"""LogSegment: when a segment is due to be rolled, at the limits of timestamps."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.logs import NOW_MS, batch
from tidelog.log.config import LogConfig
from tidelog.log.segment.segment import LogSegment
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime

LEAST, MOST = -(2**63), 2**63 - 1
TIMESTAMPS = (LEAST, LEAST + 1, -(2**62), -2, -1, 0, 1, NOW_MS, 2**62, MOST - 1, MOST)
AGE_MS = 500


@pytest.mark.parametrize("segment_ms", [AGE_MS - 1, AGE_MS, 604_800_000, MOST])
def test_age_of_a_segment_is_exact_at_the_limits_of_timestamps(tmp_path: Path, segment_ms: int) -> None:
    """A difference of two of them does not fit into 64 bits; earlier than the first record is never too old."""
    for number, (first, later) in enumerate(itertools.product(TIMESTAMPS, TIMESTAMPS)):
        time = ManualTime(NOW_MS)
        segment = LogSegment.create(str(tmp_path), number, LogConfig({}), (OsFileSystem(), time))
        segment.append(batch(1), number, first, number)
        time.advance(AGE_MS)
        is_due = (later - first if first >= 0 else AGE_MS) > segment_ms
        assert segment.should_roll(1 << 20, segment_ms, 100, later, number + 1) == is_due, (first, later)
        segment.close()
