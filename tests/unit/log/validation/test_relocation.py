"""Relocation: records that were validated for one offset and leader epoch, and then moved, equal those validated for
the others."""

from __future__ import annotations

import pytest

from tests.support.records import NOW_MS
from tidelog.log.validation.params import ValidationParams
from tidelog.log.validation.relocation import StaleOffsetsError, relocate
from tidelog.log.validation.result import ValidationResult
from tidelog.log.validation.validator import LogValidator
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

CODECS = [0, 1, 2, 3]


def sent(magic: int, codec: int) -> bytes:
    records = [Record(number, NOW_MS - 3 * number, b"key-%d" % number, b"value") for number in range(5)]
    if magic == 2:
        return bytes(build_batch(records, BatchOptions(compression=codec)))
    return build_message_set(records, MessageSetOptions(magic, codec))


def validated(records: bytes, offset: int, params: ValidationParams, leader_epoch: int = 7) -> ValidationResult:
    view = memoryview(bytearray(records))
    return LogValidator(params).validate_and_assign_offsets(view, offset, leader_epoch, NOW_MS)


@pytest.mark.parametrize("timestamp_type", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("source", [0, 1, 2])
def test_a_relocated_batch_equals_one_validated_there(
    source: int, target: int, codec: int, timestamp_type: int
) -> None:
    params = ValidationParams(magic=target, timestamp_type=timestamp_type)
    there = validated(sent(source, codec), 5_000, params)
    for offset, leader_epoch in ((0, 7), (4_999, 6), (5_000, 7), (5_000, 6), (70_000, 7)):
        here = validated(sent(source, codec), offset, params, leader_epoch)
        if target == 0 and codec and offset != 5_000:
            with pytest.raises(StaleOffsetsError):
                relocate(here, 5_000, 7)
            continue
        moved = relocate(here, 5_000, 7)
        assert bytes(moved.records) == bytes(there.records)
        assert moved._replace(records=b"") == there._replace(records=b"")
