"""Every kernel of the cleaner, compiled: importing this module runs each once, on the types a round uses.

Imported by a child process to fill numba's cache on disk, then by the serving process to load from it
(``tidelog.log.records.kernel_loader``). A kernel missing here would be compiled in the first round, under the
interpreter lock; a test compares the signatures before and after a real round.
"""

from __future__ import annotations

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.engine import ByteArray, IntegerArray, KernelEngine, TransactionRows, WordArray
from tidelog.cleaner.engine.offset_map import SIPHASH_ALGORITHM
from tidelog.protocol.record.record_batch import Record, build_batch


def _run_all(engine: KernelEngine) -> None:
    batch = build_batch([Record(0, 0, b"key", b"first"), Record(1, 0, b"key", None)])
    buffer: ByteArray = np.frombuffer(bytes(batch) + bytes(at.PADDING), np.uint8).copy()
    table: IntegerArray = np.zeros((4, at.COLUMNS), np.int64)
    rows, _, _ = engine.scan(buffer, (0, len(batch)), (0, 10), table)
    transactions = TransactionRows([], [], [], (0, 0))
    transactions.producers_used = len(transactions.producers)  # so that it grows
    engine.decide(buffer, table, (0, rows), transactions)
    keys: IntegerArray = np.zeros((4, 3), np.int64)
    found = engine.parse(buffer, table, (0, rows), keys)
    bits: ByteArray = np.zeros(8, np.uint8)
    key_map = engine.new_map(4 * 1024 * 1024, 0.9, SIPHASH_ALGORITHM)
    key_map.put(buffer, keys, found, (bits, bits))
    key_map.look_up(buffer, keys, found, bits, 0)
    _grow(engine)
    for digests in key_map.drain():
        engine.partition(digests, 2)
    out: ByteArray = np.zeros(1024, np.uint8)
    out_table: IntegerArray = np.zeros((4, at.OUT_COLUMNS), np.int64)
    stats: IntegerArray = np.zeros(at.STATS, np.int64)
    _, _, written = engine.filter(buffer, table, (0, rows), (bits, 0), (1, 2), (out, out_table), stats)
    engine.expand(buffer, table, (0, rows), len(batch), (len(buffer), len(buffer), len(buffer)))
    engine.pack(out, out_table, (0, written), np.zeros(1024, np.uint8), 0)
    state: IntegerArray = np.zeros(4, np.int64)
    engine.index_entries(out_table, written, 0, state, np.zeros((4, 4), np.int64))


def _grow(engine: KernelEngine) -> None:
    digests: WordArray = np.zeros((40_000, 3), np.uint64)
    digests[:, 0] = np.arange(40_000, dtype=np.uint64) * np.uint64(2**48 + 1)
    digests[:, 2] = np.arange(40_000, dtype=np.uint64)
    bits: ByteArray = np.zeros(5_001, np.uint8)
    engine.new_map(4 * 1024 * 1024, 0.9, SIPHASH_ALGORITHM).put_digests(digests, (bits, bits))


ENGINE = KernelEngine()
_run_all(ENGINE)
