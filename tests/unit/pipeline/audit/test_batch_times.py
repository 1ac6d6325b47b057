"""Batches whose header has another largest timestamp than their records, with a correct checksum: the audit reports
them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.audit.segment import SegmentAudit, SegmentPlan, audit_segment
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

CRC, CRC_FROM, MAX_TIMESTAMP = slice(17, 21), 21, slice(35, 43)
CODECS = (0, 1, 2, 3, 4)


def with_largest_timestamp(batch: bytes, largest: int) -> bytes:
    """Put another largest timestamp into the batch's header, with a correct checksum."""
    data = bytearray(batch)
    data[MAX_TIMESTAMP] = largest.to_bytes(8, "big", signed=True)
    data[CRC] = crc32c(bytes(data[CRC_FROM:])).to_bytes(4, "big")
    return bytes(data)


def audit_batches(tmp_path: Path, content: bytes) -> SegmentAudit:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(content)
    found = audit_segment(SegmentPlan("t", 0, SegmentFile(0, str(path)), len(content), is_closed=False))
    assert found is not None
    return found


def wrong_times(found: SegmentAudit) -> list[tuple[int, int]]:
    """Return (byte, offset) of the batches with a wrong time."""
    return [(finding.position, finding.offset) for finding in found.findings if finding.kind == "timestamp"]


@pytest.mark.parametrize("seed", range(8))
def test_batches_with_a_wrong_largest_time_are_reported_and_no_others(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    content, expected, offset = bytearray(), [], 0
    for _ in range(chance.randint(1, 300)):
        times = [chance.choice((-1, 0, 1_000, 2_000, 1 << 40)) for _ in range(chance.randint(1, 6))]
        records = [Record(offset + n, time, b"k", b"v" * chance.randint(0, 50)) for n, time in enumerate(times)]
        append_time = chance.choice((None, None, 77))
        batch = bytes(
            build_batch(records, BatchOptions(compression=chance.choice(CODECS), log_append_time=append_time))
        )
        if append_time is None and chance.random() < 0.1:
            batch = with_largest_timestamp(batch, max(times) + chance.choice((-1_000, -1, 1, 1 << 41)))
            expected.append((len(content), offset))
        content += batch
        offset += len(records)
    found = audit_batches(tmp_path, bytes(content))
    assert wrong_times(found) == expected[:100]
    assert found.records == offset, "the records themselves are right"


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_a_wrapper_of_old_messages_with_a_wrong_time_is_reported(tmp_path: Path, codec: int) -> None:
    records = [Record(n, 1_000 + n, b"k", b"v") for n in range(3)]
    right = bytearray(build_message_set(records, MessageSetOptions(1, codec)))
    assert wrong_times(audit_batches(tmp_path, bytes(right))) == []
    wrong = bytearray(right)
    wrong[18:26] = (5_000).to_bytes(8, "big")
    import zlib

    wrong[12:16] = zlib.crc32(bytes(wrong[16:])).to_bytes(4, "big")
    assert wrong_times(audit_batches(tmp_path, bytes(wrong))) == [(0, 2)]


def test_a_wrong_time_makes_the_audit_wrong(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    fill(data.log("t"), 1)
    data.close()
    assert not audit(None, AuditRequest(data.source())).is_wrong
    path = data.path / "t-0" / f"{0:020d}.log"
    path.write_bytes(with_largest_timestamp(path.read_bytes(), 5))
    assert audit(None, AuditRequest(data.source())).is_wrong
