"""Records that are checked and rebuilt one by one."""

from __future__ import annotations

import pytest

from tidelog.log.validation.params import AppendContext, RejectedRecordsError, ValidationParams
from tidelog.log.validation.rebuilding import check_each_record, rebuild
from tidelog.protocol.record.record_batch import CREATE_TIME, BatchOptions, Record, RecordBatch

RECORDS = [Record(7, 5, b"a", b"1"), Record(9, 8, None, b"2"), Record(12, 6, b"c", b"3")]


def test_rebuilt_records_have_consecutive_offsets() -> None:
    result = rebuild(RECORDS, BatchOptions(base_offset=100), ValidationParams())
    assert [record.offset for record in RecordBatch(result.records)] == [100, 101, 102]
    assert (result.first_offset, result.last_offset, result.max_timestamp) == (100, 102, 8)
    assert result.sizes_changed


def test_records_without_a_key_are_reported_by_their_index() -> None:
    params = ValidationParams("t-0", is_compacted=True)
    with pytest.raises(RejectedRecordsError) as caught:
        check_each_record(RECORDS, CREATE_TIME, params, AppendContext(0, 0, 10))
    assert [error.batch_index for error in caught.value.record_errors] == [1]
