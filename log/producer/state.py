# cython: wraparound=True, boundscheck=True
"""Producer state of one log: last sequence of each producer, and open transactions (KIP-98).

Per producer id: epoch, coordinator epoch, the last five batches, the first offset of an open transaction.

==============================  ================================================================================
a batch of an idempotent        answer
producer arrives
==============================  ================================================================================
one of the last five again      duplicate: nothing is written, the answer has its first offset
older epoch                     INVALID_PRODUCER_EPOCH
new epoch, sequence not 0       OUT_OF_ORDER_SEQUENCE_NUMBER (unless nothing is known of the producer)
same epoch, gap                 OUT_OF_ORDER_SEQUENCE_NUMBER
not transactional, but a        INVALID_TXN_STATE
transaction is open
marker of an older coordinator  TRANSACTION_COORDINATOR_FENCED
==============================  ================================================================================

``check`` raises and changes nothing; ``update`` changes and cannot fail: the records are written between the two. The
*first unstable offset* is the first offset of the oldest transaction that is open, or whose marker the high watermark
has not passed; read_committed readers stop there.

Snapshots are taken on roll, on close and after recovery, named by the next offset. ``load`` reads the newest valid one
at or below the log end; its caller replays the batches after it. Snapshots hold a producer's last batch only:
``tidelog.log.producer.replay`` reads the four before it from the records.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from tidelog.log.files.checkpoints import CheckpointCorruptError
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.producer.snapshot import ENTRY_SIZE, HEAD_SIZE, SnapshotEntry, decode_snapshot, seal_snapshot
from tidelog.log.segment.segment import SNAPSHOT_SUFFIX, file_name
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.compiled import words
from tidelog.protocol.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionCoordinatorFencedError,
)

logger = logging.getLogger(__name__)

BATCHES_TO_RETAIN = 5
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
MAX_SEQUENCE = 2**31 - 1
_ABOVE_ALL = 2**63 - 1
"""An offset above all others."""
LOADED_GRACE_MS = 3_600_000
"""A producer read from a snapshot is known for at least this long, or ``producer.id.expiration.ms`` if that is less.
Clients retry for less than an hour (``delivery.timeout.ms``)."""
DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000
MAX_PRODUCER_EPOCH = 32_767
STRICT_TRANSACTION_VERSION = 2
"""From this ``transaction.version`` on, each transaction has a producer epoch of its own (KIP-890)."""


PRODUCERS_UNDER_LOCK = 1000
"""Largest number of producers that are looked at under the log's lock at a time, by ``remove_expired`` and by the
cleaner. To check them takes 0.3 ms: appends wait for the lock."""


class ProducerBatch(NamedTuple):
    """Producer fields of a batch that arrives or is replayed."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int
    is_transactional: bool


class Marker(NamedTuple):
    """An end-of-transaction control record."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    offset: int
    timestamp: int
    is_abort: bool


class BatchMetadata:
    """One of a producer's last five batches."""

    __slots__ = ("last_offset", "last_sequence", "offset_delta", "timestamp")

    def __init__(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        self.last_sequence = last_sequence
        self.last_offset = last_offset
        self.offset_delta = offset_delta
        self.timestamp = timestamp

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchMetadata) and self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BatchMetadata{self._fields()}"

    def _fields(self) -> tuple[int, int, int, int]:
        return self.last_sequence, self.last_offset, self.offset_delta, self.timestamp

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """The sequence of the batch's first record; sequences wrap around from 2^31 - 1 to 0."""
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + MAX_SEQUENCE + 1


class ProducerEntry:
    """State of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
        "touched_ms",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.current_txn_first_offset = NO_OFFSET
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_TO_RETAIN)
        self.touched_ms = 0.0  # the last change of this state, by the monotonic clock

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the producer's last data record; -1 when unknown."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def find_duplicate(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        """Find the retained batch with exactly these sequences, when the epoch is the current one."""
        if epoch == self.producer_epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; if it is another one, forget the batches: sequences start at 0 again."""
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches.clear()

    def store(self, data: words.Bytes, at: int) -> None:
        """Write the producer's entry of a snapshot at byte ``at``: ENTRY_SIZE bytes.

        The compiled form makes no Python objects: a roll writes every producer while appends wait."""
        last_sequence, last_offset, offset_delta = NO_SEQUENCE, NO_OFFSET, 0
        if self.batches:
            last = self.batches[-1]
            last_sequence, last_offset, offset_delta = last.last_sequence, last.last_offset, last.offset_delta
        words.store_be_u64(data, at, self.producer_id)
        words.store_be_u16(data, at + 8, self.producer_epoch)
        words.store_be_u32(data, at + 10, last_sequence)
        words.store_be_u64(data, at + 14, last_offset)
        words.store_be_u32(data, at + 22, offset_delta)
        words.store_be_u64(data, at + 26, self.last_timestamp)
        words.store_be_u32(data, at + 34, self.coordinator_epoch)
        words.store_be_u64(data, at + 38, self.current_txn_first_offset)

    @classmethod
    def from_snapshot(cls, saved: SnapshotEntry) -> ProducerEntry:
        entry = cls(saved.producer_id)
        entry.producer_epoch = saved.producer_epoch
        entry.coordinator_epoch = saved.coordinator_epoch
        entry.last_timestamp = saved.timestamp
        entry.current_txn_first_offset = max(saved.current_txn_first_offset, NO_OFFSET)
        if saved.last_offset >= 0:
            metadata = BatchMetadata(saved.last_sequence, saved.last_offset, saved.offset_delta, saved.timestamp)
            entry.batches.append(metadata)
        return entry


def check_data(entry: ProducerEntry, batch: ProducerBatch, *, check_sequence: bool) -> None:
    """Check that ``batch`` may be the next one of the producer whose state is ``entry``.

    Raises InvalidProducerEpochError, OutOfOrderSequenceNumberError, InvalidTxnStateError.
    """
    who = f"producer {batch.producer_id} at offset {batch.first_offset}"
    if batch.producer_epoch < entry.producer_epoch:
        raise InvalidProducerEpochError(
            f"epoch {batch.producer_epoch} of {who} is older than {entry.producer_epoch}, the last one seen"
        )
    if check_sequence:
        _check_sequence(entry, batch, who)
    if entry.current_txn_first_offset >= 0 and not batch.is_transactional:
        raise InvalidTxnStateError(
            f"{who} wrote outside of its transaction, open since {entry.current_txn_first_offset}"
        )


def _check_sequence(entry: ProducerEntry, batch: ProducerBatch, who: str) -> None:
    first = batch.first_sequence
    if entry.producer_epoch == NO_PRODUCER_EPOCH:
        return  # no batch of this producer is known (any more): every sequence is accepted, as in Kafka
    if batch.producer_epoch != entry.producer_epoch:
        if first != 0:
            raise OutOfOrderSequenceNumberError(f"{who} begins epoch {batch.producer_epoch} with sequence {first}")
        return
    last = entry.last_sequence
    if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
        raise OutOfOrderSequenceNumberError(f"{who} sent sequence {first} after {last}")


def _is_late(entry: ProducerEntry, marker_epoch: int, transaction_version: int) -> bool:
    """Return whether a marker belongs to an earlier transaction than the producer's current one (KIP-1228).

    From transaction version 2 on, a marker has a higher epoch than its transaction's records. So a marker with the
    epoch of the records repeats an earlier one, except at the highest epoch, which cannot be raised."""
    if transaction_version < STRICT_TRANSACTION_VERSION or marker_epoch != entry.producer_epoch:
        return marker_epoch < entry.producer_epoch
    return entry.current_txn_first_offset >= 0 and marker_epoch != MAX_PRODUCER_EPOCH


def _is_expired(entry: ProducerEntry | None, idle_since_ms: float) -> bool:
    return entry is None or (entry.current_txn_first_offset < 0 and entry.touched_ms <= idle_since_ms)


class ProducerStateManager:
    """Producer state and its snapshots in one partition directory. Call it under the log's lock, which
    ``remove_expired`` takes itself, or before other threads know the log."""

    __slots__ = (
        "_directory",
        "_expiration_ms",
        "_file_system",
        "_first_unreplicated",
        "_last_snapshot_offset",
        "_ongoing",
        "_time",
        "_unreplicated",
        "end_offset",
        "known",
        "producers",
    )

    def __init__(
        self, file_system: FileSystem, directory: str, time: Time,
        expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    ) -> None:  # fmt: skip
        self._file_system = file_system
        self._directory = directory
        self._time = time
        self._expiration_ms = expiration_ms
        self._ongoing: dict[int, int] = {}  # open transactions: first offset -> producer id, ascending
        # Ended transactions whose marker the high watermark has not passed: first offset -> marker's offset.
        self._unreplicated: dict[int, int] = {}
        self._first_unreplicated = _ABOVE_ALL
        self._last_snapshot_offset = NO_OFFSET
        self.producers: dict[int, ProducerEntry] = {}
        self.known: list[int] = []
        """The ids of ``producers``, oldest first: to copy a million of them from the dict would take 20 ms."""
        self.end_offset = 0

    # ---- checks: raise, change nothing

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """Find the retained batch that this one repeats, if any."""
        entry = self.producers.get(producer_id)
        return entry.find_duplicate(epoch, first_sequence, last_sequence) if entry is not None else None

    def find_if_next(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> ProducerEntry | None:
        """Return the producer's entry if a batch outside of transactions is certain to be its next one: the same epoch,
        the next sequence, none of the last five again, no open transaction. Otherwise return None; then
        ``find_duplicate`` and ``check`` decide, at three times the cost.
        """
        entry = self.producers.get(producer_id)
        if entry is None or entry.producer_epoch != epoch or entry.current_txn_first_offset >= 0:
            return None
        batches = entry.batches
        if not batches:
            return None
        last = batches[-1]
        if last.last_sequence != first_sequence - 1:
            return None
        for known in batches:
            if known.last_sequence == last_sequence:
                return None
        return entry

    def check(self, batch: ProducerBatch, *, check_sequence: bool) -> None:
        """Check a batch by :func:`check_data`, which raises; the first batch of a producer is accepted."""
        entry = self.producers.get(batch.producer_id)
        if entry is not None:
            check_data(entry, batch, check_sequence=check_sequence)

    def check_marker(self, marker: Marker, transaction_version: int = 0) -> None:
        """Check that the coordinator may still end the producer's transaction.

        Raises InvalidProducerEpochError, TransactionCoordinatorFencedError.
        """
        entry = self.producers.get(marker.producer_id)
        if entry is None:
            return
        if _is_late(entry, marker.producer_epoch, transaction_version):
            raise InvalidProducerEpochError(
                f"marker of producer {marker.producer_id} has epoch {marker.producer_epoch} in transaction version "
                f"{transaction_version}, after {entry.producer_epoch}"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"marker of producer {marker.producer_id} comes from coordinator epoch {marker.coordinator_epoch}, "
                f"which {entry.coordinator_epoch} has replaced"
            )

    # ---- changes: cannot fail

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
            self.known.append(producer_id)
        entry.touched_ms = self._time.monotonic_ms()
        return entry

    def advance(
        self, entry: ProducerEntry, last_sequence: int, first_offset: int, last_offset: int, timestamp: int
    ) -> None:
        """Apply a batch that :meth:`find_if_next` accepted, and that is in the log at these offsets."""
        entry.touched_ms = self._time.monotonic_ms()
        batch = BatchMetadata.__new__(BatchMetadata)
        batch.last_sequence = last_sequence
        batch.last_offset = last_offset
        batch.offset_delta = last_offset - first_offset
        batch.timestamp = timestamp
        entry.batches.append(batch)
        entry.last_timestamp = timestamp
        self.end_offset = last_offset + 1

    def update(self, batch: ProducerBatch) -> None:
        """Apply a batch that is in the log."""
        entry = self._entry(batch.producer_id)
        entry.set_epoch(batch.producer_epoch)
        delta = batch.last_offset - batch.first_offset
        entry.batches.append(BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.timestamp))
        entry.last_timestamp = batch.timestamp
        if batch.is_transactional and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = batch.first_offset
            self._ongoing[batch.first_offset] = batch.producer_id
        self.end_offset = batch.last_offset + 1

    def update_marker(self, marker: Marker) -> AbortedTxn | None:
        """Apply a marker that is in the log; return the transaction if it is aborted and has records here, to be
        indexed."""
        entry = self._entry(marker.producer_id)
        first_offset = entry.current_txn_first_offset
        entry.set_epoch(marker.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = marker.timestamp
        entry.current_txn_first_offset = NO_OFFSET
        self.end_offset = marker.offset + 1
        if first_offset < 0:
            return None
        self._ongoing.pop(first_offset, None)
        self._unreplicated[first_offset] = marker.offset
        self._first_unreplicated = min(self._first_unreplicated, first_offset)
        if not marker.is_abort:
            return None
        last_stable_offset = next(iter(self._ongoing), marker.offset + 1)
        return AbortedTxn(marker.producer_id, first_offset, marker.offset, last_stable_offset)

    def on_high_watermark(self, offset: int) -> bool:
        """Forget the ended transactions whose marker lies below ``offset``. Return False if there was no transaction
        before, neither open nor ended.
        """
        if not self._ongoing and not self._unreplicated:
            return False
        if self._unreplicated:
            self._unreplicated = {first: last for first, last in self._unreplicated.items() if last >= offset}
            self._first_unreplicated = min(self._unreplicated, default=_ABOVE_ALL)
        return True

    @property
    def has_open_transactions(self) -> bool:
        """True if a transaction has records here and no marker yet. Under the log's lock."""
        return bool(self._ongoing)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or whose marker the high watermark has not passed; None
        without one. Under the log's lock."""
        first = min(next(iter(self._ongoing), _ABOVE_ALL), self._first_unreplicated)
        return None if first == _ABOVE_ALL else first

    def remove_expired(self, lock: AbstractContextManager[object]) -> int:
        """Forget the producers without an open transaction that were idle for ``producer.id.expiration.ms``; return how
        many.

        The monotonic clock counts: a jump of the wall clock (docs/internals/faults.md, F11) or a record from the future
        does not change how long a producer is known. ``lock``, the log's, is taken for PRODUCERS_UNDER_LOCK producers
        at a time: appends wait for it, and there may be a million producers.
        """
        idle_since_ms, count = self._time.monotonic_ms() - self._expiration_ms, 0
        end = len(self.known)
        while end > 0:
            begin = max(end - PRODUCERS_UNDER_LOCK, 0)
            with lock:
                part = self.known[begin:end]
                gone = {number for number in part if _is_expired(self.producers.get(number), idle_since_ms)}
                for producer_id in gone:
                    self.producers.pop(producer_id, None)
                if gone:
                    self.known[begin:end] = [producer_id for producer_id in part if producer_id not in gone]
            count += len(gone)
            end = begin
        return count

    # ---- snapshots

    def snapshot_path(self, offset: int) -> str:
        return os.path.join(self._directory, file_name(offset, SNAPSHOT_SUFFIX))

    def snapshot_offsets(self) -> list[int]:
        """List the offsets of the snapshot files, ascending."""
        return snapshot_offsets_in(self._file_system.list_names(self._directory))

    def take_snapshot(self, *, sync: bool = False) -> None:
        """Write the snapshot at ``end_offset``, unless it was written already. Raises KafkaStorageError.

        It is not synced by default: if a power loss damages it, which its checksum shows, recovery replays from an
        older one.
        """
        if self.end_offset == self._last_snapshot_offset or self.end_offset == 0:
            return  # at offset 0 no producer is known: ten thousand empty logs need no files
        self._file_system.replace_file(self.snapshot_path(self.end_offset), _snapshot_of(self), sync=sync)
        self._last_snapshot_offset = self.end_offset

    def load(
        self, log_start_offset: int, log_end_offset: int, *, keep_later: bool = False,
        snapshots: Iterable[int] | None = None,
    ) -> None:  # fmt: skip
        """Load the newest valid snapshot between log start and log end; without one, begin empty at the log start.

        The caller replays the batches from ``end_offset`` on. Unreadable snapshots are removed, and those above the log
        end too. ``keep_later`` keeps those above, because the log is longer than ``log_end_offset``. ``snapshots``
        are the offsets of the snapshot files, ascending; if it is None, the directory is listed.
        """
        self.clear(log_start_offset)
        for offset in reversed(self.snapshot_offsets() if snapshots is None else list(snapshots)):
            if offset > log_end_offset:
                if not keep_later:
                    self.remove_snapshot(offset)
                continue
            if offset < log_start_offset or not self._load_snapshot(offset):
                continue
            self.end_offset = self._last_snapshot_offset = offset
            return

    def _load_snapshot(self, offset: int) -> bool:
        path = self.snapshot_path(offset)
        try:
            saved = decode_snapshot(self._file_system.read_file(path), path)
        except CheckpointCorruptError as error:
            logger.warning("producer snapshot removed, its state is replayed from the records: %s", error)
            self.remove_snapshot(offset)
            return False
        now, monotonic = self._time.milliseconds(), self._time.monotonic_ms()
        # A retry may come right after the restart, whatever the records' timestamps are (those of a backfill may be
        # years old, and the wall clock may have jumped). So a producer that looks expired is kept for a grace period.
        idle_before_ms = max(self._expiration_ms - LOADED_GRACE_MS, 0)
        for item in saved:
            entry = self.producers[item.producer_id] = ProducerEntry.from_snapshot(item)
            self.known.append(item.producer_id)
            is_old = now - item.timestamp >= self._expiration_ms
            entry.touched_ms = monotonic - idle_before_ms if is_old else monotonic
        opened = sorted((entry.current_txn_first_offset, number) for number, entry in self.producers.items())
        self._ongoing = {first: number for first, number in opened if first >= 0}
        return True

    def clear(self, end_offset: int) -> None:
        """Drop the state in memory and begin at ``end_offset``."""
        self.producers.clear()
        self.known.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._first_unreplicated = _ABOVE_ALL
        self.end_offset = end_offset
        self._last_snapshot_offset = NO_OFFSET

    def remove_snapshot(self, offset: int) -> None:
        """Unlink the snapshot at ``offset``, if it exists."""
        self._file_system.unlink(self.snapshot_path(offset), missing_ok=True)

    def remove_unreadable_snapshots(self) -> None:
        """Unlink the snapshots that cannot be decoded, as by a wrong checksum."""
        for offset in self.snapshot_offsets():
            path = self.snapshot_path(offset)
            try:
                decode_snapshot(self._file_system.read_file(path), path)
            except CheckpointCorruptError as error:
                logger.warning("producer snapshot removed: %s", error)
                self.remove_snapshot(offset)

    def remove_snapshots_outside(self, kept: set[int]) -> None:
        """Unlink the snapshots whose offset is not in ``kept`` (see ``replay.choose_snapshots``)."""
        for offset in self.snapshot_offsets():
            if offset not in kept:
                self.remove_snapshot(offset)


def snapshot_offsets_in(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among these names, ascending."""
    stems = [name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit())


def _snapshot_of(state: ProducerStateManager) -> bytearray:
    """Encode the bytes of a snapshot file."""
    data, at = bytearray(HEAD_SIZE + ENTRY_SIZE * len(state.producers)), HEAD_SIZE
    for entry in state.producers.values():
        entry.store(words.address_of(data), at)
        at += ENTRY_SIZE
    seal_snapshot(data)
    return data


def producers_in_parts(state: ProducerStateManager, count: int) -> Iterator[list[ProducerEntry]]:
    """Yield the producers, ``count`` at a time, newest first. Any thread; the log's lock is not needed.

    Producers may be added and forgotten between two parts. A producer that stays is yielded at least once, and
    perhaps again if older ones were forgotten meanwhile.
    """
    end = len(state.known)
    while end > 0:
        begin = max(end - count, 0)
        found = [state.producers.get(producer_id) for producer_id in state.known[begin:end]]
        yield [entry for entry in found if entry is not None]
        end = begin
