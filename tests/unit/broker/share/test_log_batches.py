from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.broker.data_broker import batch
from tidelog.broker.share import log_batches
from tidelog.broker.share.log_batches import LogBatch, aborted_batches, cut, read_batches
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import BatchOptions, assign_offset_and_epoch
from tidelog.protocol.transferable import TransferableRecords


def stored(*sizes: int, options: BatchOptions | None = None) -> bytes:
    """Build batches of so many records each, one after the other."""
    found, offset = b"", 0
    for size in sizes:
        made = batch(*(b"v%d" % number for number in range(size)), options=options)
        assign_offset_and_epoch(made, 0, offset, 0)
        found += made
        offset += size
    return found


class KeptFile:
    """A file for slices that counts who holds it."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self._descriptor = os.open(path, os.O_RDONLY)

    def fileno(self) -> int:
        return self._descriptor

    def retain(self) -> None:
        raise AssertionError

    def release(self) -> None:
        os.close(self._descriptor)


def test_headers_tell_offsets_and_places() -> None:
    data = stored(3, 2, 5)
    found = read_batches(data, 0, 500)
    assert [(batch.base_offset, batch.last_offset) for batch in found] == [(0, 2), (3, 4), (5, 9)]
    assert [batch.position for batch in found] == [0, found[0].size, found[0].size + found[1].size]
    assert found[-1].position + found[-1].size == len(data)


def test_no_more_is_read_than_is_asked_for() -> None:
    assert [batch.base_offset for batch in read_batches(stored(3, 2, 5), 0, 4)] == [0, 3]
    assert [batch.base_offset for batch in read_batches(stored(3, 2, 5), 4, 1)] == [3]


@pytest.mark.parametrize("missing", [1, 40, 75])
def test_a_cut_batch_is_left_out(missing: int) -> None:
    assert [batch.base_offset for batch in read_batches(stored(3, 2)[:-missing], 0, 500)] == [0]


def test_slices_are_read_through_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "WINDOW_BYTES", 100)
    data = stored(*[2] * 50)
    file = KeptFile(tmp_path / "log", b"before" + data)
    records = TransferableRecords(file, 6, len(data))
    assert read_batches(records, 0, 500) == read_batches(data, 0, 500)
    part = cut(records, read_batches(records, 0, 500), 10, 13)
    assert isinstance(part, TransferableRecords)
    assert os.pread(file.fileno(), part.size, part.position) == cut(data, read_batches(data, 0, 500), 10, 13)
    part.release()
    with pytest.raises(KafkaStorageError):
        read_batches(records, 0, 500)


def test_old_message_sets_count_from_the_batch_before() -> None:
    def entry(offset: int) -> bytes:
        body = bytes(4) + bytes([1]) + bytes(9)
        return offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body

    found = read_batches(entry(5) + entry(9), 4, 500)
    assert [(batch.base_offset, batch.last_offset) for batch in found] == [(4, 5), (6, 9)]


def test_batches_of_aborted_transactions_are_found() -> None:
    def of(producer_id: int, base: int, *, is_control: bool = False) -> LogBatch:
        return LogBatch(base, base + 1, 0, 1, producer_id, is_control)

    batches = [
        of(1, 0),
        of(2, 2),
        of(1, 4),
        of(1, 6, is_control=True),
        of(1, 8),
        of(2, 10, is_control=True),
        of(-1, 12),
    ]
    transactions = [AbortedTxn(1, 0, 6, 12), AbortedTxn(3, 100, 110, 120)]
    assert [batch.base_offset for batch in aborted_batches(batches, transactions)] == [0, 4]


def test_transactions_and_markers_are_distinguished() -> None:
    options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    (found,) = read_batches(stored(2, options=options), 0, 500)
    assert (found.producer_id, found.is_control) == (7, False)
    plain = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0)
    assert read_batches(stored(2, options=plain), 0, 500)[0].producer_id == -1


def test_the_number_of_batches_read_is_limited() -> None:
    batches = stored(*[1] * (log_batches.MAX_BATCHES + 5))
    assert len(read_batches(batches, 0, 1 << 30)) == log_batches.MAX_BATCHES


@pytest.mark.parametrize("length", [-12, -13, 4, -(2**31)])
def test_a_damaged_length_ends_the_walk(length: int) -> None:
    """It went round and round on the loop's thread where the length said that the next batch is the same one."""
    good, damaged = stored(2), bytearray(stored(3))
    damaged[8:12] = length.to_bytes(4, "big", signed=True)
    assert read_batches(bytes(damaged), 0, 1 << 30) == []
    assert len(read_batches(good + bytes(damaged), 0, 1 << 30)) == 1
