"""Records decoded to columns: the reference against ``RecordBatch``'s own reader, compiled code against the
reference."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import columns_reference
from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tests.support.records import record_lists
from tidelog.pipeline.decode import columns, layout
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

DECODERS = {"reference": columns_reference, "as built": columns, "uncompiled": uncompiled(columns)}
ROOM = 64
EVERYTHING = (0, 1 << 62, -(1 << 63), (1 << 63) - 1, 0, 1 << 62)


def padded(data: bytes) -> Any:
    return np.frombuffer(data + bytes(layout.PADDING), np.uint8).copy()


class Run:
    """One call of ``decode_chunk``, and its results."""

    def __init__(
        self, decoder: Any, data: bytes, limits: tuple[int, ...] = EVERYTHING, *, key: bytes = b"",
        aborted: tuple[tuple[int, int, int], ...] = (), room: int = ROOM, verified: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.buffer = padded(data)
        self.table = np.zeros((layout.COLUMNS, room), np.int64)
        self.progress = np.zeros(layout.PROGRESS_SLOTS, np.int64)
        self.status = decoder.decode_chunk(
            self.buffer,
            np.array([0, len(data), *verified], np.int64),
            np.array(limits, np.int64),
            np.frombuffer(key, np.uint8).copy(),
            np.array(aborted, np.int64).reshape(-1, 3),
            self.table,
            self.progress,
        )
        self.rows = int(self.progress[layout.ROWS])

    def state(self) -> tuple[int, list[int], list[list[int]]]:
        return self.status, self.progress.tolist(), self.table[:, : self.rows].tolist()

    def _bytes(self, row: int, start: int, size: int) -> bytes | None:
        at, length = int(self.table[start, row]), int(self.table[size, row])
        return None if length < 0 else self.buffer[at : at + length].tobytes()

    def records(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        return [
            (
                int(self.table[layout.OFFSET, row]),
                int(self.table[layout.TIMESTAMP, row]),
                self._bytes(row, layout.KEY_START, layout.KEY_SIZE),
                self._bytes(row, layout.VALUE_START, layout.VALUE_SIZE),
            )
            for row in range(self.rows)
        ]


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """A few consecutive batches, some with log append time, transactional, control or compressed."""
    data, offset = b"", draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        records = [record._replace(offset=offset + record.offset) for record in draw(record_lists(holes=True))]
        options = BatchOptions(
            log_append_time=draw(st.none() | st.integers(0, 1 << 40)),
            producer_id=draw(st.sampled_from([-1, 5, 6])),
            producer_epoch=0,
            is_transactional=draw(st.booleans()),
            is_control=draw(st.sampled_from([False, False, False, True])),
            compression=draw(st.sampled_from([0, 0, 0, 1])),
        )
        data += bytes(build_batch(records, options))
        offset = records[-1].offset + 1
    return data


def plain(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(r.offset, r.timestamp, r.key, r.value) for batch in iter_batches(data) for r in batch.records()]


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@given(record_lists(holes=True), st.none() | st.integers(0, 1 << 40))
def test_columns_agree_with_the_records_of_the_batch(
    decoder: ModuleType, records: list[Record], append_time: int | None
) -> None:
    data = bytes(build_batch(records, BatchOptions(log_append_time=append_time)))
    run = Run(decoder, data)
    assert run.status == layout.NEED_BYTES
    assert run.records() == plain(data)
    assert run.progress[layout.CONSUMED] == len(data)
    assert run.progress[layout.NEXT_OFFSET] == records[-1].offset + 1
    assert set(run.table[layout.TIMESTAMP_TYPE, : run.rows].tolist()) <= {int(append_time is not None)}


@pytest.mark.parametrize("committed_alone", [False, True])
@settings(deadline=None, max_examples=50 * DEPTH)
@given(logs(), st.data())
def test_decoders_agree_on_any_log(committed_alone: bool, data: bytes, draw: st.DataObject) -> None:
    first = int.from_bytes(data[:8], "big")
    offsets = st.integers(max(0, first - 10), first + 3000)
    limits = (
        draw.draw(offsets), draw.draw(offsets | st.just(1 << 62)), draw.draw(st.sampled_from([-(1 << 63), 0, 1 << 40])),
        draw.draw(st.sampled_from([(1 << 63) - 1, 1 << 47])), int(committed_alone),
        draw.draw(offsets | st.just(0) | st.just(1 << 62)),
    )  # fmt: skip
    key = draw.draw(st.binary(max_size=2))
    aborted = ((5, first, first + 9), (5, first + 20, first + 2000))
    cut = data[: draw.draw(st.integers(0, len(data)))]
    states = [Run(decoder, cut, limits, key=key, aborted=aborted).state() for decoder in DECODERS.values()]
    assert states[1] == states[0]
    assert states[2] == states[0]


@pytest.mark.parametrize("places", [1, 2, 3])
@settings(deadline=None, max_examples=100 * DEPTH)
@given(record_lists(), st.data())
def test_decoders_refuse_the_same_damage(places: int, records: list[Record], draw: st.DataObject) -> None:
    data = bytearray(build_batch(records))
    for _ in range(places):
        data[draw.draw(st.integers(61, len(data) - 1))] = draw.draw(st.integers(0, 255))
    context = np.array([3, 4, 0, 0, len(records), 61, len(data)], np.int64)
    states = []
    for decoder in DECODERS.values():
        table, progress = np.zeros((layout.COLUMNS, ROOM), np.int64), np.zeros(layout.PROGRESS_SLOTS, np.int64)
        limits = np.array([-(1 << 40), *EVERYTHING[1:]], np.int64)
        status = decoder.decode_section(padded(bytes(data)), context, limits, np.zeros(0, np.uint8), table, progress)
        states.append((status, progress.tolist(), table[:, : progress[layout.ROWS]].tolist()))
    assert states[1] == states[0]
    assert states[2] == states[0]


@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("checksum_holds", [False, True])
@settings(deadline=None, max_examples=25 * DEPTH)
@given(logs(), st.data())
def test_decoders_agree_on_damaged_headers_too(
    checksum_holds: bool, places: int, part: int, data: bytes, draw: st.DataObject
) -> None:
    """A checksum that is made to hold again leaves nothing but the decoder to find the damage.

    ``part`` halves the examples of one test, which take a second.
    """
    damaged = bytearray(data)
    for _ in range(places):
        damaged[draw.draw(st.integers(0, 60) | st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    if checksum_holds:
        size = min(len(data), 12 + int.from_bytes(damaged[8:12], "big"))
        damaged[17:21] = crc32c(bytes(damaged[21:size])).to_bytes(4, "big")
    verified = (draw.draw(st.sampled_from([0, 1, len(data)])), draw.draw(st.sampled_from([0, 1, len(data)])))
    states = [
        Run(decoder, bytes(damaged), aborted=((5, 0, 1 << 40),), verified=verified).state()
        for decoder in DECODERS.values()
    ]
    assert states[1] == states[0]
    assert states[2] == states[0]


BATCH = bytes(build_batch([Record(10, 5, b"a", b"1"), Record(12, 7, b"b", None), Record(13, 6, b"a", b"3")]))

LATER = bytes(build_batch([Record(14, 5, b"a", b"1")]))


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
class TestStops:
    def test_rows_outside_of_the_offsets_are_left_out(self, decoder: ModuleType) -> None:
        assert [row[0] for row in Run(decoder, BATCH, (11, 13, *EVERYTHING[2:])).records()] == [12]

    def test_rows_outside_of_the_times_are_left_out(self, decoder: ModuleType) -> None:
        assert [row[0] for row in Run(decoder, BATCH, (0, 99, 6, 6, 0, 99)).records()] == [13]

    def test_only_rows_of_the_key_are_kept(self, decoder: ModuleType) -> None:
        limits = (*EVERYTHING[:4], 1, 1 << 62)
        assert [row[0] for row in Run(decoder, BATCH, limits, key=b"a").records()] == [10, 13]

    def test_a_batch_above_the_end_ends_it(self, decoder: ModuleType) -> None:
        run = Run(decoder, BATCH, (0, 10, *EVERYTHING[2:]))
        assert (run.status, run.progress[layout.CONSUMED]) == (layout.END, 0)

    def test_a_cut_batch_asks_for_more(self, decoder: ModuleType) -> None:
        run = Run(decoder, BATCH + LATER[:-1])
        assert (run.status, run.progress[layout.CONSUMED], run.rows) == (layout.NEED_BYTES, len(BATCH), 3)

    def test_an_offset_that_goes_back_is_damage(self, decoder: ModuleType) -> None:
        run = Run(decoder, BATCH + LATER + BATCH)
        assert (run.status, run.progress[layout.CONSUMED], run.rows) == (layout.MALFORMED, len(BATCH + LATER), 4)

    @pytest.mark.parametrize("cleaned_below", [0, 1 << 62])
    def test_an_offset_that_jumps_into_the_next_batch_stops(self, decoder: ModuleType, cleaned_below: int) -> None:
        run = Run(decoder, BATCH + BATCH, (*EVERYTHING[:5], cleaned_below))
        assert (run.status, run.progress[layout.CONSUMED], run.rows) == (layout.HOLE, 0, 0)
        assert Run(decoder, BATCH + BATCH, (10, *EVERYTHING[1:])).rows == 3
        assert Run(decoder, BATCH + LATER).rows == 4

    def test_more_records_than_rows_in_the_table(self, decoder: ModuleType) -> None:
        run = Run(decoder, BATCH, room=2)
        assert (run.status, run.rows) == (layout.TABLE_FULL, 0)

    def test_every_flipped_byte_after_the_crc_is_damage(self, decoder: ModuleType) -> None:
        for position in range(21, len(BATCH)):
            damaged = bytearray(BATCH)
            damaged[position] ^= 1
            run = Run(decoder, bytes(damaged))
            assert (run.status, run.rows) in ((layout.BAD_CRC, 0), (layout.MALFORMED, 0)), position

    def test_a_checksum_that_is_known_to_hold_is_not_computed_again(self, decoder: ModuleType) -> None:
        damaged = bytearray(BATCH + LATER)
        damaged[17] ^= 1
        damaged[len(BATCH) + 17] ^= 1
        run = Run(decoder, bytes(damaged), verified=(0, len(BATCH)))
        assert (run.status, run.progress[layout.CONSUMED], run.rows) == (layout.BAD_CRC, len(BATCH), 3)
        assert Run(decoder, bytes(damaged), verified=(1, len(damaged))).status == layout.BAD_CRC

    def test_compressed_and_old_batches_are_left(self, decoder: ModuleType) -> None:
        packed = bytes(build_batch([Record(0, 1, b"k", b"v")], BatchOptions(compression=1)))
        assert Run(decoder, packed).status == layout.COMPRESSED
        old = bytearray(BATCH)
        old[16] = 1
        assert Run(decoder, bytes(old)).status == layout.OLD_FORMAT

    def test_control_and_aborted_batches_have_no_rows(self, decoder: ModuleType) -> None:
        transactional = BatchOptions(producer_id=9, producer_epoch=0, is_transactional=True)
        mine = bytes(build_batch([Record(5, 1, b"k", b"v")], transactional))
        assert Run(decoder, mine, aborted=((9, 3, 7),)).rows == 0
        assert Run(decoder, mine, aborted=((9, 0, 4), (9, 6, 8), (10, 3, 7))).rows == 1
        control = bytes(build_batch([Record(5, 1, b"k", b"v")], transactional._replace(is_control=True)))
        assert Run(decoder, control).rows == 0


@settings(deadline=None)
@given(record_lists(max_size=20), st.integers(0, 9))
@example([Record(0, 0, None, b"")], 0)
def test_gathered_bytes_are_the_fields(records: list[Record], before: int) -> None:
    data = bytes(build_batch(records))
    for decoder in DECODERS.values():
        run = Run(decoder, data)
        starts, sizes = run.table[layout.VALUE_START], run.table[layout.VALUE_SIZE]
        offsets, validity = np.zeros(ROOM, np.int32), np.zeros(ROOM, np.uint8)
        out = np.zeros(decoder.total_size(sizes[: run.rows]), np.uint8)
        span = np.array([0, run.rows, before], np.int64)
        nulls = decoder.gather(run.buffer, starts, sizes, span, offsets, validity, out)
        values = [record.value for record in records]
        assert out.tobytes() == b"".join(value or b"" for value in values)
        assert np.diff(offsets[before : before + run.rows + 1]).tolist() == [len(value or b"") for value in values]
        bits = np.unpackbits(validity, bitorder="little")[before : before + run.rows]
        assert bits.tolist() == [value is not None for value in values]
        assert nulls == values.count(None)


@settings(deadline=None)
@given(record_lists(max_size=8))
def test_header_fields_are_those_of_the_records(records: list[Record]) -> None:
    data = bytes(build_batch(records))
    wanted = [header for record in records for header in record.headers]
    for decoder in DECODERS.values():
        run = Run(decoder, data)
        fields = np.zeros((4, len(wanted)), np.int64)
        assert decoder.header_fields(run.buffer, run.table, np.array([0, run.rows, 0], np.int64), fields) == len(wanted)
        found = [
            (
                run.buffer[name : name + name_size].tobytes().decode(),
                None if size < 0 else run.buffer[start : start + size].tobytes(),
            )
            for name, name_size, start, size in fields.T.tolist()
        ]
        assert found == wanted


def test_buffers_are_released() -> None:
    for decoder in (columns, uncompiled(columns)):
        buffer, table = bytearray(BATCH + bytes(layout.PADDING)), bytearray(8 * layout.COLUMNS * ROOM)
        bounds, limits = bytearray(np.array([0, len(BATCH), 0, 0]).tobytes()), bytearray(np.array(EVERYTHING).tobytes())
        key, aborted, progress = bytearray(), bytearray(), bytearray(8 * layout.PROGRESS_SLOTS)
        assert decoder.decode_chunk(buffer, bounds, limits, key, aborted, table, progress) == layout.NEED_BYTES
        for used in (buffer, bounds, limits, key, aborted, table, progress):
            used.append(0)  # raises BufferError while it is held


def test_a_read_only_table_is_refused() -> None:
    table = np.zeros((layout.COLUMNS, ROOM), np.int64)
    table.flags.writeable = False
    for decoder in (columns, uncompiled(columns)):
        with pytest.raises((BufferError, ValueError)):
            decoder.decode_section(
                padded(BATCH), np.zeros(layout.CONTEXT_SLOTS, np.int64), np.zeros(layout.LIMIT_SLOTS, np.int64), b"",
                table, np.zeros(layout.PROGRESS_SLOTS, np.int64),
            )  # fmt: skip
