"""Look-up of records by time: equal to a scan over the records, in every format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import NOW_MS, record_lists
from tidelog.log.records.lookup import FoundRecord, first_at_or_after
from tidelog.protocol.errors import MessageTooLargeError
from tidelog.protocol.record.message_set import LegacyRecordBatch, MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, RecordBatch, build_batch

BOUND = 1 << 20


def stored(records: list[Record], form: str) -> RecordBatch | LegacyRecordBatch:
    if form == "wrapper":
        return LegacyRecordBatch(build_message_set(records, MessageSetOptions(1, 1)))
    options = BatchOptions(compression=1 if form == "gzip" else 0, log_append_time=NOW_MS if form == "append" else None)
    return RecordBatch(build_batch(records, options))


@given(
    records=record_lists(holes=True),
    form=st.sampled_from(["plain", "gzip", "append", "wrapper"]),
    timestamp=st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2**48),
    min_offset=st.integers(0, 5000) | st.just(2**63 - 1),
)
def test_look_ups_agree_with_a_scan(records: list[Record], form: str, timestamp: int, min_offset: int) -> None:
    batch = stored(records, form)
    scanned = [FoundRecord(record.timestamp, record.offset) for record in batch.records()]
    expected = [found for found in scanned if found.timestamp >= timestamp and found.offset >= min_offset]
    assert first_at_or_after(batch, timestamp, min_offset, BOUND) == (expected[0] if expected else None)
    newest = max(scanned, key=lambda found: found.timestamp)
    assert first_at_or_after(batch, batch.max_timestamp, 0, BOUND) == newest


@pytest.mark.parametrize("append_time", [None, NOW_MS])
def test_an_emptied_batch_has_nothing(append_time: int | None) -> None:
    options = BatchOptions(base_offset=5, last_offset_delta=3, log_append_time=append_time)
    batch = RecordBatch(build_batch([], options))
    assert first_at_or_after(batch, 0, 0, BOUND) is None


def test_the_bound_holds() -> None:
    batch = RecordBatch(build_batch([Record(0, NOW_MS, None, bytes(1000))], BatchOptions(compression=1)))
    with pytest.raises(MessageTooLargeError):
        first_at_or_after(batch, 0, 0, 100)
