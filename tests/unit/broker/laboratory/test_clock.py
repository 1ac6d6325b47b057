from __future__ import annotations

import pytest

from tidelog.broker.laboratory.clock import LaboratoryTime
from tidelog.log.system.time import ManualTime


def test_both_clocks_run_on_from_where_they_were_moved_to() -> None:
    base = ManualTime(1_000)
    time = LaboratoryTime(base)
    time.advance(5_000)
    base.advance(7)
    assert (time.milliseconds(), time.monotonic_ms()) == (6_007, 5_007.0)


def test_no_clock_goes_back() -> None:
    time = LaboratoryTime(ManualTime(1_000))
    with pytest.raises(ValueError, match="cannot go back"):
        time.advance(-1)
    assert time.milliseconds() == 1_000


def test_no_clock_passes_the_last_date() -> None:
    time = LaboratoryTime(ManualTime(1_000))
    with pytest.raises(ValueError, match="year 9999"):
        time.advance(253_402_300_799_000)
    time.advance(253_402_300_798_999)
    assert time.milliseconds() == 253_402_300_799_999
