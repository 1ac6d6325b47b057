"""Pages of records over HTTP: a thread builds them, and limits of records and bytes hold for each."""

from __future__ import annotations

import json

import pytest

from tidelog.broker.admin.find import take
from tidelog.broker.find.finding import FoundRecord
from tidelog.protocol.record.record_batch import Record


def found(count: int, size: int) -> list[FoundRecord]:
    return [FoundRecord(0, Record(offset, 1, b"k", bytes(size))) for offset in range(count)]


@pytest.mark.parametrize(("count", "size", "parts"), [(0, 1, []), (600, 1, [256, 256, 88]), (5, 400_000, [1] * 5)])
def test_a_part_has_few_records_and_few_bytes(count: int, size: int, parts: list[int]) -> None:
    """A zero byte is six characters of JSON."""
    records = iter(found(count, size))
    lines = list(iter(lambda: take(records, False), b""))
    assert [len(json.loads(b"[" + part + b"]")) for part in lines] == parts


def test_a_part_may_be_base64() -> None:
    (record,) = json.loads(b"[" + take(iter(found(1, 1)), True) + b"]")
    assert (record["key"], record["value"]) == ("aw==", "AA==")
