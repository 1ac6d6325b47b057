"""Proof of transaction indices: the entries of a segment's ``.txnindex`` are compared with the markers in its records.

A missing, emptied or cut index looks like one of a segment without aborted transactions. After a load an index is
*unproven* unless a digest of the last checkpoint (``tidelog.log.files.index_digests``) matches it. A look-up or a
cleaning proves it before its first use; a read on the loop raises UnprovenIndexError, has it proven in a thread, and
reads again.

    producer state at the segment's base    -> transactions that are open there
    headers of the segment, once            -> aborted transactions, and what is open at its end
    entries differ                          -> the index is replaced, in memory and on disk

If damage hides batches, existing entries are kept beside those of the readable markers. A segment at whose end no
transaction is open is *settled*: no later marker concerns its records, so later segments need no look.

Any thread that may block. ``proof_lock`` is held for the walk; the log's lock, for which appends wait, to look at what
was appended since the walk, and to replace the entries. No reader uses an index before it is proven, so none sees it
half replaced.
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
from tidelog.log.segment.resync import find_resume_position
from tidelog.log.segment.segment import LogSegment
from tidelog.log.segment.segments import LogSegments
from tidelog.log.segment.transaction_check import ends_transaction
from tidelog.log.system.reserve import write_if_room
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

LOCKED_BYTES = 64 * 1024
"""Records of an active segment that are walked while appends wait; what came before is walked without the lock."""


class UnprovenIndexError(Exception):
    """A read needs transaction indices that are not proven. ``prove`` proves them, in a thread that may block."""

    def __init__(self, prove: Callable[[], object]) -> None:
        super().__init__("transaction indices have to be proven first")
        self.prove = prove


def ensure_proven(log: UnifiedLog, segment: LogSegment) -> TransactionIndex:
    """Return the segment's transaction index, proven. Raises KafkaStorageError."""
    index = segment.transaction_index
    if not index.is_proven:
        with log.files, log.proof_lock:
            while not index.is_proven:
                _prove(log, segment)
    return index


def segment_digest(topic_id: bytes | None, segment: LogSegment) -> str:
    """Return the digest by which the next load accepts a proven index, if segment and index are unchanged then. Raises
    KafkaStorageError."""
    index, size = segment.transaction_index, segment.size
    known = index.digest
    if known is None or known[0] != size:
        known = index.digest = (size, digest_of(topic_id, segment.base_offset, size, index.content()))
    return known[1]


def note_proofs(log: UnifiedLog, digests: IndexDigests, *, is_closing: bool = False) -> None:
    """Note the digests of the segments whose index is proven and which recovery would not walk after a kill; of all
    segments of a log that closes. Raises KafkaStorageError if a log that closes cannot be read.
    """
    segments = log.segments
    flushed = segments if is_closing else segments.values(0, log.recovery_point)
    try:
        with log.files:
            found = [segment_digest(log.topic_id, one) for one in flushed if one.transaction_index.is_proven]
    except KafkaStorageError:
        if is_closing:
            raise
        return  # deleted or closed meanwhile; what was noted before fits no other file
    digests.note(log.topic_partition, found)


def _prove(log: UnifiedLog, segment: LogSegment) -> None:
    """Walk the segment and note the proof, unless it may have been truncated meanwhile. Raises KafkaStorageError."""
    index, version = segment.transaction_index, log.version
    markers = _Markers(_open_at(log, segment.base_offset))
    while segment.size - markers.position > LOCKED_BYTES:
        _walk(markers, segment, segment.size)
    with log.lock:
        is_active = segment is log.segments.active
        if is_active and log.version != version:
            return
        _walk(markers, segment, segment.size)
        present = _entries_of(index)
        wanted = markers.aborted if markers.is_whole else _merge(present, markers.aborted)
        if present != wanted:
            if _misleads(present, wanted):
                logger.warning("%s: its entries contradict the markers in the log; it is rebuilt", index.path)
                log.environment.damage.indices += 1
            index.reset()
            for transaction in wanted:
                index.append(transaction)
            write_if_room(index.save, "aborted transactions are kept in memory")
        index.is_settled = markers.is_whole and not markers.open and not is_active
        index.is_proven = True


def _misleads(present: list[AbortedTxn], wanted: list[AbortedTxn]) -> bool:
    """Return whether the index names less than the markers do. It may name more: a cleaner took those records away."""
    known = {(one.producer_id, one.last_offset): one.first_offset for one in present}
    return any(known.get((one.producer_id, one.last_offset), 2**63) > one.first_offset for one in wanted)


def _entries_of(index: TransactionIndex) -> list[AbortedTxn]:
    """Return the file's entries, or none if one is impossible."""
    try:
        return list(index)
    except IndexCorruptError:
        return []


def _merge(present: list[AbortedTxn], found: list[AbortedTxn]) -> list[AbortedTxn]:
    """Merge the entries with the markers of a segment that is not whole. An entry of a marker's producer and offset
    wins: damage may hide the end of an earlier transaction, and the marker would then seem to end both.
    """
    merged = {one.last_offset: one for one in present}
    for one in found:
        known = merged.get(one.last_offset)
        if known is None or known.producer_id != one.producer_id:
            merged[one.last_offset] = one
    return [merged[offset] for offset in sorted(merged)]


class _Markers:
    """The transactions of a segment, followed batch by batch. ``open``: first offset by producer id."""

    __slots__ = ("aborted", "is_whole", "open", "position")

    def __init__(self, open_at_base: dict[int, int] | None) -> None:
        """``open_at_base`` is None if damage hides it."""
        self.aborted: list[AbortedTxn] = []
        self.is_whole = open_at_base is not None
        self.position = 0
        """Everything below this byte was followed."""
        self.open = dict(open_at_base or ())

    def take(self, segment: LogSegment, header: BatchHeader) -> None:
        """Follow one batch."""
        if header.is_control:
            self._take_marker(header, segment.records.read_at(header.position, header.size))
        elif header.is_transactional:
            self.open.setdefault(header.producer_id, header.base_offset)
        self.position = header.position + header.size

    def _take_marker(self, header: BatchHeader, batch: bytes) -> None:
        if not crc_matches(header, memoryview(batch)):
            self.is_whole = False
            # The transaction has ended; only an index entry can tell whether it was aborted.
            self.open.pop(header.producer_id, None)
            return
        is_commit = ends_transaction(batch)
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
            logger.error("markers of transactions may be lost: %s", error)
        if markers.position < size:
            markers.is_whole = False
            markers.position = find_resume_position(segment.records, markers.position, size, ())


def _open_at(log: UnifiedLog, offset: int) -> dict[int, int] | None:
    """Find the first offset of each transaction open at ``offset``, a segment's base, by producer id; None when damage
    hides it.
    """
    environment = log.environment
    state = ProducerStateManager(
        environment.file_system, log.directory, environment.time, environment.producer_id_expiration_ms
    )
    before = LogSegments(segment for segment in log.segments if segment.base_offset < offset)
    try:
        rebuild_producer_state(state, before, 0, offset, keep_later_snapshots=True, recalled_bytes=0)
    except CorruptMessageError as error:
        logger.error("%s: transactions open at %d are not all known: %s", log.directory, offset, error)
        return None
    firsts = ((entry.producer_id, entry.current_txn_first_offset) for entry in state.producers.values())
    return {producer_id: first for producer_id, first in firsts if first >= 0}
