"""Engine of a round's record-level work: compiled modules, or a plain Python reference unless all are compiled.

Both engines fill the same batch tables, keep the same records and write equal bytes before compression, as property
tests check. So a round can use either. The compiled modules also run as plain Python, but slower than the reference,
which is written for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from tidelog.cleaner.engine import batch_decisions, batch_walk, digest_map, lz4_frames, reference
from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray, WordArray
from tidelog.cleaner.engine.offset_map import (
    DIGEST_BYTES,
    MD5_ALGORITHM,
    PROCESS_SECRET,
    OffsetMapFullError,
    SkimpyOffsetMap,
    digest_of,
)
from tidelog.cleaner.engine.transaction_rows import TransactionRows

#: Smallest first size of a map: 512 KiB fit into the second-level cache and have 24,576 entries.
FIRST_MAP_BYTES = 512 * 1024
#: Factor by which a map that is full grows.
GROWTH = 4
#: Largest number of buckets of a map whose entries are copied at a time.
_DRAIN_BUCKETS = 64 * 1024


class KeyMap(Protocol):
    """Map from a key's digest to the key's largest ordinal. Of two records with one key, the one with the smaller
    ordinal is superseded.

    ``put`` and ``put_digests`` set the bits of superseded records in ``bits``: an array for the clean section, and one
    for the dirty section, whose ordinals begin at ``batch_table.DIRTY_ORDINALS``.
    """

    limit: int  # the most keys that the map takes

    @property
    def size(self) -> int:
        """Number of keys in the map."""
        ...

    @property
    def collision_rate(self) -> float:
        """Probes after the first one, on average for each look-up."""
        ...

    def put(self, buffer: ByteArray, keys: IntegerArray, count: int, bits: tuple[ByteArray, ByteArray]) -> int:
        """Put the first ``count`` keys; return how many were put before the map was full."""
        ...

    def put_digests(self, digests: WordArray, bits: tuple[ByteArray, ByteArray]) -> int:
        """Put rows of (first word, second word, ordinal), as :meth:`put` does."""
        ...

    def look_up(self, buffer: ByteArray, keys: IntegerArray, count: int, bits: ByteArray, bias: int) -> None:
        """Set bit (ordinal - ``bias``) for each of the first ``count`` keys that is in the map."""
        ...

    def drain(self) -> Iterator[WordArray]:
        """Yield the entries in parts of bounded size, then clear the map; each part is valid until the next."""
        ...

    def clear(self) -> None: ...

    def close(self) -> None:
        """Free the memory."""
        ...


class Engine(Protocol):
    """Routines of a round's record-level work; ``tidelog.cleaner.engine.reference`` describes most of them."""

    name: str

    def scan(
        self, buffer: ByteArray, limits: tuple[int, int], offsets: tuple[int, int], table: IntegerArray
    ) -> tuple[int, int, int]: ...

    def parse(self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], keys: IntegerArray) -> int: ...

    def decide(
        self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], transactions: TransactionRows
    ) -> list[int]: ...

    def filter(
        self,
        buffer: ByteArray,
        table: IntegerArray,
        rows: tuple[int, int],
        superseded: at.SupersededBits,
        times: at.FilterTimes,
        out: at.FilterOutput,
        stats: IntegerArray,
    ) -> tuple[int, int, int]: ...

    def index_entries(
        self, out_table: IntegerArray, written: int, interval: int, state: IntegerArray, entries: IntegerArray
    ) -> int: ...

    def expand(
        self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], used: int, limits: at.ExpandLimits
    ) -> tuple[int, int]:
        """Decompress batches by the codecs of this engine: (first row that the caller has to do, bytes used)."""
        ...

    def pack(
        self, out: ByteArray, out_table: IntegerArray, rows: tuple[int, int], packed: ByteArray, target: int
    ) -> tuple[int, int]:
        """Compress batches by the codecs of this engine: (first row that the caller has to do, end of the output)."""
        ...

    def partition(self, digests: WordArray, partitions: int) -> tuple[WordArray, IntegerArray]:
        """Sort by the top bits of the second word: (sorted rows, the rows at which partitions begin, and the end)."""
        ...

    def new_map(self, memory: int, load_factor: float, algorithm: str, first_bytes: int = FIRST_MAP_BYTES) -> KeyMap:
        """Build a map of at most ``memory`` bytes; ``first_bytes`` is an estimate of what it needs."""
        ...


class ReferenceMap:
    """:class:`KeyMap` over :class:`SkimpyOffsetMap`, in plain Python."""

    def __init__(self, memory: int, load_factor: float, algorithm: str) -> None:
        # SipHash in Python takes 15 µs for each key. Keyed BLAKE2b is as safe, and the same records are kept.
        self._digest = digest_of(algorithm) if algorithm.lower() == MD5_ALGORITHM else _keyed_digest
        self._map = SkimpyOffsetMap(memory, digest=self._digest)
        self.limit = max(1, int(self._map.slots * load_factor))

    @property
    def size(self) -> int:
        return self._map.size

    @property
    def collision_rate(self) -> float:
        return self._map.collision_rate

    def _put(self, digest: bytes, ordinal: int, bits: tuple[ByteArray, ByteArray]) -> None:
        if self._map.size >= self.limit and self._map.get_digest(digest) < 0:
            raise OffsetMapFullError
        before = self._map.put_digest(digest, ordinal)
        if before >= 0:
            _set_bit(bits, min(before, ordinal))

    def put(self, buffer: ByteArray, keys: IntegerArray, count: int, bits: tuple[ByteArray, ByteArray]) -> int:
        for index, (position, size, ordinal) in enumerate(keys[:count].tolist()):
            try:
                self._put(self._digest(buffer[position : position + size].tobytes()), ordinal, bits)
            except OffsetMapFullError:
                return index
        return count

    def put_digests(self, digests: WordArray, bits: tuple[ByteArray, ByteArray]) -> int:
        for index, (first, second, ordinal) in enumerate(digests.tolist()):
            try:
                self._put(first.to_bytes(8, "little") + second.to_bytes(8, "little"), ordinal, bits)
            except OffsetMapFullError:
                return index
        return len(digests)

    def look_up(self, buffer: ByteArray, keys: IntegerArray, count: int, bits: ByteArray, bias: int) -> None:
        for position, size, ordinal in keys[:count].tolist():
            if self._map.get_digest(self._digest(buffer[position : position + size].tobytes())) >= 0:
                bits[(ordinal - bias) >> 3] |= 1 << (ordinal - bias & 7)

    def drain(self) -> Iterator[WordArray]:
        rows = [
            (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"), ordinal)
            for digest, ordinal in self._map.entries()
        ]
        self.clear()
        if rows:
            yield np.array(rows, np.uint64).reshape(-1, 3)

    def clear(self) -> None:
        self._map.clear()

    def close(self) -> None:
        self._map.buffer = np.zeros(0, np.uint8)


def _keyed_digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES, key=PROCESS_SECRET).digest()


def _set_bit(bits: tuple[ByteArray, ByteArray], ordinal: int) -> None:
    target, number = (bits[1], ordinal - at.DIRTY_ORDINALS) if ordinal >= at.DIRTY_ORDINALS else (bits[0], ordinal)
    target[number >> 3] |= 1 << (number & 7)


class ReferenceEngine:
    """:class:`Engine` in plain Python."""

    name = "reference"
    scan = staticmethod(reference.scan_batches)
    parse = staticmethod(reference.parse_records)
    index_entries = staticmethod(reference.index_entries)

    def decide(
        self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], transactions: TransactionRows
    ) -> list[int]:
        return reference.decide_batches(buffer, table, rows, transactions)

    def filter(
        self,
        buffer: ByteArray,
        table: IntegerArray,
        rows: tuple[int, int],
        superseded: at.SupersededBits,
        times: at.FilterTimes,
        out: at.FilterOutput,
        stats: IntegerArray,
    ) -> tuple[int, int, int]:
        return reference.filter_batches(buffer, table, rows, superseded, times, out, stats)

    def expand(
        self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], used: int, limits: at.ExpandLimits
    ) -> tuple[int, int]:
        return rows[0], used

    def pack(
        self, out: ByteArray, out_table: IntegerArray, rows: tuple[int, int], packed: ByteArray, target: int
    ) -> tuple[int, int]:
        return rows[0], target

    def partition(self, digests: WordArray, partitions: int) -> tuple[WordArray, IntegerArray]:
        number = digests[:, 1] >> np.uint64(64 - partitions.bit_length() + 1)
        order = np.argsort(number, kind="stable")
        starts = np.searchsorted(number[order], np.arange(partitions + 1, dtype=np.uint64))
        return digests[order], starts.astype(np.int64)

    def new_map(self, memory: int, load_factor: float, algorithm: str, first_bytes: int = FIRST_MAP_BYTES) -> KeyMap:
        return ReferenceMap(memory, load_factor, algorithm)


class Modules(NamedTuple):
    """The modules of the compiled engine; tests replace them by the same modules in plain Python."""

    batch_walk: Any = batch_walk
    batch_decisions: Any = batch_decisions
    digest_map: Any = digest_map
    lz4_frames: Any = lz4_frames


AS_BUILT = Modules()


class BucketMap:
    """:class:`KeyMap` in compiled code, laid out as in ``tidelog.cleaner.engine.digest_map``. It begins small, so that
    a map of few keys fits into the CPU's caches, and grows fourfold each time, up to ``memory`` bytes."""

    def __init__(self, module: Any, memory: int, load_factor: float, algorithm: str, first_bytes: int) -> None:
        self._module = module
        self._memory = memory // at.BUCKET_BYTES * at.BUCKET_BYTES
        if not self._memory:
            raise ValueError(f"{memory} bytes are too few for a bucket of {at.BUCKET_BYTES} bytes")
        self._load_factor = load_factor
        self._algorithm = at.MD5 if algorithm.lower() == MD5_ALGORITHM else at.SIPHASH
        self.limit = self._limit(self._memory)
        self._counters = np.zeros(at.COUNTERS, np.int64)
        self._digests: WordArray = np.empty((0, 3), np.uint64)
        first_bytes = max(first_bytes, FIRST_MAP_BYTES) // at.BUCKET_BYTES * at.BUCKET_BYTES
        self._allocate(min(self._memory, first_bytes))

    def _limit(self, memory: int) -> int:
        entries: int = memory // at.BUCKET_BYTES * at.ENTRIES_PER_BUCKET
        # One entry always stays free, so that the search for a missing key ends.
        return max(1, min(entries - 1, int(entries * self._load_factor)))

    def _allocate(self, size: int) -> None:
        memory = mmap.mmap(-1, size)
        # With pages of 4 KiB each probe misses the TLB as well: a put takes 69 ns, and 36 ns with huge pages.
        with contextlib.suppress(OSError):  # a kernel without huge pages refuses this
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._table: WordArray = np.frombuffer(memory, np.uint64)

    @property
    def size(self) -> int:
        return int(self._counters[at.SIZE_COUNTER])

    @property
    def collision_rate(self) -> float:
        lookups = int(self._counters[at.LOOKUPS])
        return (int(self._counters[at.PROBES]) - lookups) / lookups if lookups else 0.0

    def _hash(self, buffer: ByteArray, keys: IntegerArray, count: int) -> WordArray:
        if len(self._digests) < count:
            self._digests = np.empty((count, 3), np.uint64)
        self._module.hash_keys(buffer, keys, count, self._algorithm, PROCESS_SECRET, self._digests)
        return self._digests[:count]

    def put(self, buffer: ByteArray, keys: IntegerArray, count: int, bits: tuple[ByteArray, ByteArray]) -> int:
        return self.put_digests(self._hash(buffer, keys, count), bits)

    def put_digests(self, digests: WordArray, bits: tuple[ByteArray, ByteArray]) -> int:
        done: int = 0
        while True:
            held = self._table.nbytes
            limit = self.limit if held == self._memory else self._limit(held)
            done = self._module.put_block(digests, (done, len(digests)), self._table, bits, limit, self._counters)
            if done == len(digests) or held == self._memory:
                return done
            self._grow()

    def _grow(self) -> None:
        old = self._table
        statistics = self._counters[1:].copy()
        self._allocate(min(self._memory, old.nbytes * GROWTH))
        self._counters[:] = 0
        for piece in self._entries(old):
            no_bits: ByteArray = np.empty(0, np.uint8)
            self._module.put_block(piece, (0, len(piece)), self._table, (no_bits, no_bits), self.limit, self._counters)
        self._counters[1:] = statistics

    def _entries(self, table: WordArray) -> Iterator[WordArray]:
        buckets = table.nbytes // at.BUCKET_BYTES
        step = min(buckets, _DRAIN_BUCKETS)
        digests: WordArray = np.empty((step * at.ENTRIES_PER_BUCKET, 3), np.uint64)
        for first in range(0, buckets, step):
            found = self._module.copy_entries(table, (first, min(first + step, buckets)), digests)
            if found:
                yield digests[:found]

    def look_up(self, buffer: ByteArray, keys: IntegerArray, count: int, bits: ByteArray, bias: int) -> None:
        digests = self._hash(buffer, keys, count)
        self._module.look_up_block(digests, count, self._table, bits, bias, self._counters)

    def drain(self) -> Iterator[WordArray]:
        yield from self._entries(self._table)
        self.clear()

    def clear(self) -> None:
        self._table[:] = 0
        self._counters[at.SIZE_COUNTER] = 0

    def close(self) -> None:
        self._table = np.zeros(at.BUCKET_WORDS, np.uint64)


class CompiledEngine:
    """:class:`Engine` in compiled code, without the interpreter lock."""

    name = "compiled"

    def __init__(self, modules: Modules = AS_BUILT) -> None:
        self._modules = modules
        self.scan = modules.batch_walk.scan_batches
        self.parse = modules.batch_walk.parse_records
        self.index_entries = modules.batch_walk.index_entries
        self.expand = modules.lz4_frames.expand_lz4
        self.pack = modules.lz4_frames.pack_lz4

    def decide(
        self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], transactions: TransactionRows
    ) -> list[int]:
        count = rows[1] - rows[0]
        if 2 * (transactions.producers_used + count) > len(transactions.producers):
            self._enlarge_producers(transactions, count)
        types: IntegerArray = np.full(count, at.CONTROL_OTHER, np.int64)
        self._modules.batch_walk.find_control_types(buffer, table, rows, types)
        markers: IntegerArray = np.empty(count, np.int64)
        found, added = self._modules.batch_decisions.decide_batches(
            table,
            rows,
            types,
            transactions.aborted,
            transactions.last_batches,
            transactions.fences,
            transactions.producers,
            transactions.now_ms,
            transactions.end_offset,
            markers,
        )
        transactions.producers_used += added
        return markers[:found].tolist()  # type: ignore[no-any-return]

    def _enlarge_producers(self, transactions: TransactionRows, more: int) -> None:
        old = transactions.producers
        still_open = int(np.count_nonzero(old[:, 1] > 0))
        new: IntegerArray = np.full((1 << (4 * (still_open + more)).bit_length(), 2), -1, np.int64)
        transactions.producers_used = self._modules.batch_decisions.move_producers(old, new)
        transactions.producers = new

    def filter(
        self,
        buffer: ByteArray,
        table: IntegerArray,
        rows: tuple[int, int],
        superseded: at.SupersededBits,
        times: at.FilterTimes,
        out: at.FilterOutput,
        stats: IntegerArray,
    ) -> tuple[int, int, int]:
        return self._modules.batch_walk.filter_batches(  # type: ignore[no-any-return]
            buffer, table, rows, superseded, times, out, stats
        )

    def partition(self, digests: WordArray, partitions: int) -> tuple[WordArray, IntegerArray]:
        ordered: WordArray = np.empty_like(digests)
        starts: IntegerArray = np.zeros(partitions + 1, np.int64)
        self._modules.digest_map.partition_digests(digests, len(digests), ordered, starts)
        return ordered, starts

    def new_map(self, memory: int, load_factor: float, algorithm: str, first_bytes: int = FIRST_MAP_BYTES) -> KeyMap:
        return BucketMap(self._modules.digest_map, memory, load_factor, algorithm, first_bytes)


ENGINE: Engine = CompiledEngine() if all(module.IS_COMPILED for module in AS_BUILT) else ReferenceEngine()
"""The engine for rounds: the compiled one if the modules are compiled. It has no state; any thread."""
