"""Proof of transaction indices: the entries of a segment's ``.txnindex`` are compared with the markers in its records.

A missing, emptied or cut index looks like a whole one with fewer aborted transactions. So after a load an index is
*unproven*, unless a digest of the last checkpoint (``tidelog.log.files.index_digests``) matches it, its segment is
empty, or the load has rebuilt it. Readers and the cleaner prove it before its first use. A read on the event loop
raises UnprovenIndexError instead; its caller has the index proven in a thread, and reads again. A proof has these
steps:

    producer state at the segment's base    -> transactions that are open there
    headers of the segment, read once       -> aborted transactions, and those open at its end
    entries differ                          -> the index is replaced, in memory and on disk

If damage makes batches unreadable, existing entries are kept beside those of the readable markers. A segment at whose
end no transaction is open is *settled*: no later marker concerns its records, so later segments need not be searched.

Any thread that may block. ``proof_lock`` is held for the whole proof. The log's lock, for which appends wait, is held
only to walk over the segment's last 64 KB and to replace the entries. No reader uses an index before it is proven, so
none reads a mixture of old and new entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.log.files.index_digests import IndexDigests, digest_of
from tidelog.log.index.abstract_index import IndexCorruptError
from tidelog.log.index.transaction_index import AbortedTxn, TransactionIndex
from tidelog.log.producer.replay import rebuild_producer_state
from tidelog.log.producer.state import ProducerStateManager
from tidelog.log.segment.batch_scan import BatchHeader, crc_matches
from tidelog.log.segment.resync import find_resume_position, is_misplaced
from tidelog.log.segment.segment import LogSegment
from tidelog.log.segment.segments import LogSegments
from tidelog.log.segment.transaction_check import commits_transaction
from tidelog.log.system.reserve import write_if_room
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

LOCKED_BYTES = 64 * 1024
"""Largest number of bytes of a segment that are walked under the log's lock, while appends wait; the bytes before are
walked without it."""


class UnprovenIndexError(Exception):
    """A read needs transaction indices that are not proven. ``prove`` proves them, in a thread that may block."""

    def __init__(self, prove: Callable[[], object]) -> None:
        super().__init__("transaction indices have to be proven first")
        self.prove = prove


def ensure_proven(log: UnifiedLog, segment: LogSegment) -> TransactionIndex:
    """Return the segment's transaction index, and prove it before if that was not done. Raises KafkaStorageError."""
    index = segment.transaction_index
    if not index.is_proven:
        with log.files, log.proof_lock:
            while not index.is_proven:
                _prove(log, segment)
    return index


def segment_digest(topic_id: bytes | None, segment: LogSegment) -> str:
    """Return the digest of a segment's transaction index. A load takes the index for proven if the last checkpoint has
    this digest. Raises KafkaStorageError."""
    index, size = segment.transaction_index, segment.size
    known = index.digest
    if known is None or known[0] != size:
        known = index.digest = (size, digest_of(topic_id, segment.base_offset, size, index.content()))
    return known[1]


def note_proofs(log: UnifiedLog, digests: IndexDigests, *, is_closing: bool = False) -> None:
    """Note in ``digests`` the digest of each proven transaction index of the log. Without ``is_closing`` only segments
    that begin below the recovery point are taken. Raises KafkaStorageError if a log that is being closed cannot be
    read.
    """
    segments = log.segments
    flushed = segments if is_closing else segments.values(0, log.recovery_point)
    try:
        with log.files:
            found = [segment_digest(log.topic_id, one) for one in flushed if one.transaction_index.is_proven]
    except KafkaStorageError:
        if is_closing:
            raise
        return  # deleted or closed meanwhile; the digests noted before match no other files
    digests.note(log.topic_partition, found)


def _prove(log: UnifiedLog, segment: LogSegment) -> None:
    """Walk the segment, replace wrong entries and mark the index as proven, unless the log was truncated meanwhile.
    Raises KafkaStorageError."""
    index, version, resets = segment.transaction_index, log.version, segment.resets
    markers = _Markers(segment.base_offset, _open_at(log, segment.base_offset))
    while segment.size - markers.position > LOCKED_BYTES:
        _walk(markers, segment, segment.size)
    with log.lock:
        is_active = segment is log.segments.active
        if segment.resets != resets or (is_active and log.version != version):
            return
        _walk(markers, segment, segment.size)
        present = _entries_of(index)
        wanted = markers.aborted if markers.is_complete else _merge(present, markers.aborted)
        if present != wanted:
            if _lacks_transactions(present, wanted):
                logger.warning("%s is rebuilt: its entries contradict the markers in the log", index.path)
                log.environment.damage.indices += 1
            index.reset()
            for transaction in wanted:
                index.append(transaction)
            write_if_room(index.save, "aborted transactions are kept in memory")
        index.is_settled = markers.is_complete and not markers.open and not is_active
        index.is_proven = True


def _lacks_transactions(present: list[AbortedTxn], wanted: list[AbortedTxn]) -> bool:
    """Return whether the index lacks a transaction, or has too late a first offset for one. It may have more than the
    markers show: transactions whose records the cleaner has removed."""
    known = {(one.producer_id, one.last_offset): one.first_offset for one in present}
    return any(known.get((one.producer_id, one.last_offset), 2**63) > one.first_offset for one in wanted)


def _entries_of(index: TransactionIndex) -> list[AbortedTxn]:
    """Return the file's entries, or none if one is impossible."""
    try:
        return list(index)
    except IndexCorruptError:
        return []


def _merge(present: list[AbortedTxn], found: list[AbortedTxn]) -> list[AbortedTxn]:
    """Merge the index entries with the transactions found in a damaged segment. For the same producer and marker the
    entry is kept: the marker of an earlier transaction may be unreadable, so that two transactions seem to be one.
    """
    merged = {one.last_offset: one for one in present}
    for one in found:
        known = merged.get(one.last_offset)
        if known is None or known.producer_id != one.producer_id:
            merged[one.last_offset] = one
    return [merged[offset] for offset in sorted(merged)]


class _Markers:
    """The transactions of a segment, followed batch by batch: the aborted ones, and the first offsets of the open ones
    by producer id. ``is_complete`` is false if damage may have hidden some."""

    __slots__ = ("aborted", "is_complete", "next_offset", "open", "position")

    def __init__(self, base_offset: int, open_at_base: dict[int, int] | None) -> None:
        """``open_at_base`` has the transactions that are open at the segment's base offset; None if damage before it
        may have hidden some."""
        self.next_offset = base_offset
        self.aborted: list[AbortedTxn] = []
        self.is_complete = open_at_base is not None
        self.position = 0
        """The byte up to which the batches were followed."""
        self.open = dict(open_at_base or ())

    def take(self, segment: LogSegment, header: BatchHeader) -> None:
        """Follow one batch; one with a wrong offset counts as unreadable."""
        self.position = header.position + header.size
        if is_misplaced(segment.records, header, self.next_offset):
            self.is_complete = False
            return
        self.next_offset = header.last_offset + 1
        if header.is_control:
            self._take_marker(header, segment.records.read_at(header.position, header.size))
        elif header.is_transactional:
            self.open.setdefault(header.producer_id, header.base_offset)

    def _take_marker(self, header: BatchHeader, batch: bytes) -> None:
        if not crc_matches(header, memoryview(batch)):
            self.is_complete = False
            # The transaction has ended; only an index entry can show whether it was aborted.
            self.open.pop(header.producer_id, None)
            return
        is_commit = commits_transaction(batch)
        first = None if is_commit is None else self.open.pop(header.producer_id, None)
        if first is None or is_commit:
            return
        marker = header.base_offset
        stable = min(self.open.values(), default=marker + 1)
        self.aborted.append(AbortedTxn(header.producer_id, first, marker, stable))


def _walk(markers: _Markers, segment: LogSegment, size: int) -> None:
    """Follow the transactions from the position of ``markers`` up to byte ``size``. Raises KafkaStorageError."""
    while markers.position < size:
        try:
            for header in segment.headers(markers.position, size):
                markers.take(segment, header)
        except CorruptMessageError as error:
            logger.error("transaction markers may be unreadable: %s", error)
        if markers.position < size:
            markers.is_complete = False
            markers.position = find_resume_position(segment.records, markers.position, size, ())


def _open_at(log: UnifiedLog, offset: int) -> dict[int, int] | None:
    """Find the first offset of each transaction that is open at ``offset``, a segment's base offset, by producer id.
    Return None if damage may hide some.
    """
    environment = log.environment
    state = ProducerStateManager(
        environment.file_system, log.directory, environment.time, environment.producer_id_expiration_ms
    )
    before = LogSegments(segment for segment in log.segments if segment.base_offset < offset)
    if not rebuild_producer_state(state, before, 0, offset, keep_later_snapshots=True, recalled_bytes=0):
        return None
    firsts = ((entry.producer_id, entry.current_txn_first_offset) for entry in state.producers.values())
    return {producer_id: first for producer_id, first in firsts if first >= 0}
