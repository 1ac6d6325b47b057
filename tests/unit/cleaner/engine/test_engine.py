"""Compiled modules against the plain Python reference: equal tables, bits and bytes, for valid and damaged input."""

from __future__ import annotations

import errno
import hashlib
import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray, WordArray
from tidelog.cleaner.engine.batch_table import BatchState
from tidelog.cleaner.engine.engine import AS_BUILT, ENGINE, CompiledEngine, Modules, ReferenceEngine
from tidelog.cleaner.engine.offset_map import MD5_ALGORITHM, PROCESS_SECRET, SIPHASH_ALGORITHM, siphash128
from tidelog.cleaner.engine.transaction_rows import TransactionRows
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)

REFERENCE = ReferenceEngine()
COMPILED = CompiledEngine()
PLAIN_MODULES = Modules(*map(uncompiled, AS_BUILT))
PLAIN = CompiledEngine(PLAIN_MODULES)
"""The same modules as Python."""
KEYS = st.none() | st.sampled_from([b"a", b"b", b"c", b"", b"longer than eight bytes"])
VALUES = st.none() | st.binary(max_size=12) | st.just(b"x" * 200)
TIMES = st.integers(0, 2**63 - 1) | st.integers(10**12, 10**12 + 1000)


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    base = draw(st.integers(0, 50))
    if draw(st.integers(0, 5)) == 0:
        return end_transaction_marker(
            EndTransactionMarker(draw(st.booleans()), 0),
            timestamp=draw(TIMES),
            producer_id=draw(st.integers(0, 3)),
            producer_epoch=0,
            offset=base,
        )
    records, offset = [], base
    for _ in range(draw(st.integers(0, 4))):
        headers = draw(st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2))
        records.append(Record(offset, draw(TIMES), draw(KEYS), draw(VALUES), tuple(headers)))
        offset += draw(st.integers(1, 3))
    return build_batch(
        records,
        BatchOptions(
            base_offset=base,
            last_offset_delta=max(offset - base - 1, 0),
            log_append_time=draw(st.none() | TIMES),
            producer_id=draw(st.integers(-1, 3)),
            producer_epoch=0,
            is_transactional=draw(st.booleans()),
            delete_horizon_ms=draw(st.none() | TIMES),
        ),
    )


def seal(data: bytearray) -> bytearray:
    """Make the checksum correct, so that the walk through the records has to find the damage."""
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return data


@st.composite
def broken_batches(draw: st.DrawFn) -> bytearray:
    batch = draw(batches())
    for _ in range(draw(st.integers(0, 3))):
        batch[draw(st.integers(0, len(batch) - 1))] = draw(st.integers(0, 255))
    return seal(batch) if draw(st.booleans()) and batch[16] == 2 else batch


def buffer_of(parts: list[bytearray]) -> ByteArray:
    return np.frombuffer(b"".join(parts) + bytes(at.PADDING), np.uint8).copy()


class Run:
    """One engine's pass over one chunk, with every intermediate result for comparison."""

    def __init__(self, engine: Any, buffer: ByteArray, seed: list[int]) -> None:
        self.engine = engine
        self.buffer = buffer.copy()
        self.table: IntegerArray = np.zeros((20, at.COLUMNS), np.int64)
        self.rows, self.used, self.claimed = engine.scan(
            self.buffer, (0, len(buffer) - at.PADDING), (0, 1000), self.table
        )
        packed = self.table[: self.rows, at.STATE] == BatchState.PACKED
        self.table[: self.rows][packed, at.STATE] = BatchState.POISON  # expanded by the reader, not by an engine
        self._number()
        transactions = TransactionRows(
            [(0, 0, 20), (1, 5, 9), (1, 12, 60)], [(seed[0], 1)], [(2, 0)], now_ms=2**62, end_offset=12
        )
        self.markers = engine.decide(self.buffer, self.table, (0, self.rows), transactions)
        self.bits: ByteArray = np.zeros(100, np.uint8)
        self.put()
        self.filter(seed)

    def _number(self) -> None:
        table = self.table[: self.rows]
        counts = np.where(table[:, at.STATE] == BatchState.POISON, 0, table[:, at.COUNT])
        table[:, at.ORDINAL] = at.DIRTY_ORDINALS + np.cumsum(counts) - counts

    def put(self) -> None:
        keys: IntegerArray = np.zeros((100, 3), np.int64)
        self.found = self.engine.parse(self.buffer, self.table, (0, self.rows), keys)
        self.keys = keys[: self.found]
        key_map = self.engine.new_map(64 * 24, 0.9, SIPHASH_ALGORITHM)
        no_bits: ByteArray = np.zeros(1, np.uint8)
        assert key_map.put(self.buffer, self.keys, self.found, (no_bits, self.bits)) == self.found
        self.size = key_map.size

    def filter(self, seed: list[int]) -> None:
        out: ByteArray = np.zeros(20_000, np.uint8)
        self.out_table: IntegerArray = np.zeros((20, at.OUT_COLUMNS), np.int64)
        self.stats: IntegerArray = np.zeros(at.STATS, np.int64)
        times = at.FilterTimes(seed[1], seed[1] + 86_400_000)
        superseded, output = at.SupersededBits(self.bits, at.DIRTY_ORDINALS), at.FilterOutput(out, self.out_table)
        self.done, size, self.written = self.engine.filter(
            self.buffer, self.table, (0, self.rows), superseded, times, output, self.stats,
        )  # fmt: skip
        self.out = out[:size].tobytes()
        state: IntegerArray = np.array([0, 0, -1, 0], np.int64)
        entries: IntegerArray = np.zeros((20, 4), np.int64)
        count = self.engine.index_entries(self.out_table, self.written, 100, state, entries)
        self.entries = entries[:count].tolist(), state.tolist()

    def result(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if isinstance(value, int | bytes | list | tuple)}
        arrays = {name: value.tolist() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {**plain, **arrays}


SEEDS = st.tuples(st.integers(0, 20), st.integers(10**12, 2**62)).map(list)


@pytest.mark.parametrize("part", range(2))
@settings(max_examples=40 * DEPTH, deadline=None)
@given(parts=st.lists(batches(), max_size=5), seed=SEEDS)
def test_engines_agree_on_good_batches(parts: list[bytearray], seed: list[int], part: int) -> None:
    buffer = buffer_of(parts)

    expected = Run(REFERENCE, buffer, seed).result()
    assert Run(COMPILED, buffer, seed).result() == expected
    assert Run(PLAIN, buffer, seed).result() == expected


@pytest.mark.parametrize("cuts", [st.just(0), st.integers(1, 10), st.integers(11, 30)], ids=["0", "1-10", "11-30"])
@settings(max_examples=40 * DEPTH, deadline=None)
@given(parts=st.lists(broken_batches(), min_size=1, max_size=4), draw=st.data(), seed=SEEDS)
def test_engines_agree_on_broken_batches(
    cuts: st.SearchStrategy[int], parts: list[bytearray], draw: st.DataObject, seed: list[int]
) -> None:
    data = b"".join(parts)
    buffer = buffer_of([bytearray(data[: len(data) - draw.draw(cuts)])])

    expected = Run(REFERENCE, buffer, seed).result()
    assert Run(COMPILED, buffer, seed).result() == expected
    assert Run(PLAIN, buffer, seed).result() == expected


@settings(max_examples=200 * DEPTH, deadline=None)
@given(keys=st.lists(st.binary(max_size=200), max_size=10), seed=st.integers(0, 7))
def test_compiled_digests_are_those_of_the_libraries(keys: list[bytes], seed: int) -> None:
    buffer = np.frombuffer(bytes(seed) + b"".join(keys) + bytes(at.PADDING), np.uint8).copy()
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    rows: IntegerArray = np.zeros((len(keys), 3), np.int64)
    for number, key in enumerate(keys):
        rows[number] = seed + ends[number] - len(key), len(key), number
    digests: WordArray = np.zeros((len(keys), 3), np.uint64)
    for algorithm, expected in (
        (at.SIPHASH, [siphash128(key, PROCESS_SECRET) for key in keys]),
        (at.MD5, [hashlib.md5(key, usedforsecurity=False).digest() for key in keys]),
    ):
        for module in (AS_BUILT.digest_map, PLAIN_MODULES.digest_map):
            digests[:] = 0
            module.hash_keys(buffer, rows, len(keys), algorithm, PROCESS_SECRET, digests)
            assert [digests[n, :2].tobytes() for n in range(len(keys))] == expected
            assert digests[:, 2].tolist() == list(range(len(keys)))


def digests_of(count: int, distinct: int) -> WordArray:
    rng = np.random.default_rng(count)
    names: WordArray = rng.integers(0, 2**63, (distinct, 2), np.uint64) * np.uint64(2)
    rows: WordArray = np.empty((count, 3), np.uint64)
    rows[:, :2] = names[rng.integers(0, distinct, count)]
    rows[:, 2] = at.DIRTY_ORDINALS + rng.permutation(count)
    return rows


@pytest.mark.parametrize("algorithm", [SIPHASH_ALGORITHM, MD5_ALGORITHM])
@pytest.mark.parametrize("distinct", [1, 100, 3000])
def test_maps_agree_on_bits_and_entries(distinct: int, algorithm: str) -> None:
    rows = digests_of(5000, distinct)
    results = []
    for engine in (REFERENCE, COMPILED, PLAIN):
        bits: ByteArray = np.zeros(700, np.uint8)
        no_bits: ByteArray = np.zeros(1, np.uint8)
        key_map = engine.new_map(96 * 1024, 0.9, algorithm)
        assert key_map.put_digests(rows, (no_bits, bits)) == len(rows)
        entries = sorted(tuple(row) for piece in key_map.drain() for row in piece.tolist())
        results.append((bits.tolist(), entries, key_map.size))

    assert results[0] == results[1] == results[2]
    assert results[0][2] == 0


def test_map_grows_from_its_first_size_to_the_limit() -> None:
    rows = digests_of(100_000, 80_000)
    distinct = len(np.unique(rows[:, 0]))
    bits: ByteArray = np.zeros(13_000, np.uint8)
    key_map = COMPILED.new_map(8 * 1024 * 1024, 0.9, SIPHASH_ALGORITHM)

    assert key_map.put_digests(rows, (bits, bits)) == len(rows)
    assert key_map.size == distinct
    assert int(np.unpackbits(bits).sum()) == len(rows) - distinct
    assert 0 < key_map.collision_rate < 1
    key_map.close()


@pytest.mark.parametrize("engine", [REFERENCE, COMPILED, PLAIN])
def test_full_map_says_where_it_stopped_and_known_keys_still_fit(engine: Any) -> None:
    rows = digests_of(1000, 1000)
    bits: ByteArray = np.zeros(200, np.uint8)
    key_map = engine.new_map(24 * 64, 0.9, SIPHASH_ALGORITHM)

    done = key_map.put_digests(rows, (bits, bits))

    assert 0 < done < 1000
    assert key_map.size == key_map.limit
    assert key_map.put_digests(rows[:10], (bits, bits)) == 10


@pytest.mark.parametrize("partitions", [2, 256])
def test_partitions_agree_and_are_sorted_ranges(partitions: int) -> None:
    rows = digests_of(2000, 2000)

    for engine in (REFERENCE, COMPILED, PLAIN):
        ordered, starts = engine.partition(rows, partitions)
        shift = np.uint64(64 - partitions.bit_length() + 1)
        assert starts[0] == 0
        assert starts[-1] == 2000
        assert sorted(map(tuple, ordered.tolist())) == sorted(map(tuple, rows.tolist()))
        for number in range(partitions):
            assert set((ordered[starts[number] : starts[number + 1], 1] >> shift).tolist()) <= {number}


def test_table_of_producers_grows_and_forgets_finished_transactions() -> None:
    table: IntegerArray = np.zeros((2000, at.COLUMNS), np.int64)
    table[:, at.PRODUCER_ID] = np.arange(2000)
    table[:, at.ATTRIBUTES] = at.TRANSACTIONAL_MASK
    buffer: ByteArray = np.zeros(at.PADDING, np.uint8)
    transactions = TransactionRows([], [], [], now_ms=0, end_offset=-1)

    for start in range(0, 2000, 100):
        COMPILED.decide(buffer, table, (start, start + 100), transactions)
    snapshot = transactions.snapshot()
    transactions.restore(snapshot)

    assert transactions.producers_used == 2000
    assert set(transactions.producers[:, 0].tolist()) == {-1, *range(2000)}


def test_a_map_smaller_than_a_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="too few for a bucket"):
        COMPILED.new_map(63, 0.9, SIPHASH_ALGORITHM)


def test_the_compiled_modules_serve_where_there_are_any() -> None:
    is_compiled = [module.IS_COMPILED for module in AS_BUILT]
    assert len(set(is_compiled)) == 1
    assert ENGINE.name == ("compiled" if is_compiled[0] else "reference")


def test_buffers_are_released() -> None:
    """``append`` raises BufferError while the buffer is in use."""
    for modules in (AS_BUILT, PLAIN_MODULES):
        buffer = bytearray(build_batch([Record(0, 0, b"key", b"value")])) + bytes(at.PADDING)
        table, keys, out = bytearray(8 * at.COLUMNS), bytearray(24), bytearray(1000)
        modules.batch_walk.parse_records(buffer, table, (0, 0), keys)
        modules.batch_walk.find_control_types(buffer, table, (0, 0), keys)
        modules.lz4_frames.expand_lz4(buffer, table, (0, 0), 0, at.ExpandLimits(0, 0, 0))
        modules.lz4_frames.pack_lz4(buffer, table, (0, 0), out, 0)
        modules.digest_map.hash_keys(buffer, keys, 0, at.MD5, PROCESS_SECRET, out)
        for held in (buffer, table, keys, out):
            held.append(0)


def test_kernel_without_huge_pages_serves_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutHugePages(mmap.mmap):
        def madvise(self, *_: Any) -> None:
            raise OSError(errno.EINVAL, "invalid argument")

    monkeypatch.setattr(mmap, "mmap", WithoutHugePages)
    key_map = COMPILED.new_map(1 << 20, 0.9, SIPHASH_ALGORITHM)

    assert key_map.size == 0
