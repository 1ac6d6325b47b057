"""Check, while batches are read, that transaction indices agree with the markers of their segments.

    abort marker of a transaction with records     has an entry
    entry                                          has the last offset and producer of an abort marker in its segment
    its first offset                               after the producer's previous marker, at most the first record's
    its last stable offset                         at most the first undecided offset after the marker

A cleaner removes records, so an entry may begin before the first record that is left. An aborted transaction of which
no record was read may lack an entry, as it is not known whether it had records. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.log.index.transaction_index import ENTRY
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import Buffer, RecordBatch, parse_end_transaction_marker


def commits_transaction(batch: Buffer) -> bool | None:
    """Return True for a commit marker, False for an abort marker, None for other or unreadable control batches."""
    try:
        record = next(iter(RecordBatch(batch).records()), None)
        marker = None if record is None else parse_end_transaction_marker(record)
    except KafkaError:
        return None
    return None if marker is None else marker.commit


@dataclass(slots=True)
class _EndedTransaction:
    """An aborted transaction as the records show it, by offsets. ``first`` is None if no record of it was read;
    ``undecided`` is the first offset that was undecided after the marker."""

    producer_id: int
    first: int | None
    marker: int
    marker_before: int
    undecided: int

    @property
    def largest_first(self) -> int:
        """The largest first offset that its entry may have."""
        return self.marker - 1 if self.first is None else self.first

    def possible_firsts(self) -> str:
        """Describe the first offsets that its entry may have."""
        if self.marker_before >= self.largest_first:
            return f"which has no records before its marker at {self.marker}"
        return f"from offset {self.marker_before + 1} to {self.largest_first}"


class TransactionIndexCheck:
    """Check of the transaction indices of consecutive segments; transactions are followed from one to the next."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._markers: dict[int, int] = {}
        self._ended: dict[int, _EndedTransaction] = {}

    def forget(self) -> None:
        """Forget all transactions and markers, because the segment that was read is damaged."""
        self._open.clear()
        self._markers.clear()
        self._ended.clear()

    def see_records(self, producer_id: int, base_offset: int) -> None:
        """Note a batch of records in a producer's transaction."""
        self._open.setdefault(producer_id, base_offset)

    def see_marker(self, producer_id: int, offset: int, *, is_abort: bool) -> None:
        """Note the marker of a producer's transaction."""
        first = self._open.pop(producer_id, None)
        if is_abort:
            undecided = min([offset + 1, *self._open.values()])
            self._ended[offset] = _EndedTransaction(
                producer_id, first, offset, self._markers.get(producer_id, -1), undecided
            )
        self._markers[producer_id] = offset

    @property
    def newest_abort(self) -> int:
        """The offset of the segment's last abort marker that needs an entry; -1 when there is none."""
        return max((one.marker for one in self._ended.values() if one.first is not None), default=-1)

    def finish_segment(self, data: bytes) -> list[tuple[int, str]]:
        """Return the faults of the segment's transaction index, whose bytes are ``data``, as pairs of the entry's slot
        (-1 for none) and a description."""
        ended, self._ended = self._ended, {}
        whole = len(data) // ENTRY.size * ENTRY.size
        found = [(-1, f"{len(data) - whole} bytes after the last entry")] if len(data) > whole else []
        found += _entry_faults(ENTRY.iter_unpack(data[:whole]), ended)
        found += [
            (-1, f"no entry for producer {one.producer_id}'s aborted transaction of offset {one.first} to {one.marker}")
            for one in ended.values()
            if one.first is not None
        ]
        return found


def _entry_faults(entries: Iterable[tuple[int, ...]], ended: dict[int, _EndedTransaction]) -> list[tuple[int, str]]:
    """Return the faults of entries, and remove from ``ended`` the transactions that have an entry."""
    found = []
    previous = -1
    for slot, (version, producer_id, first, last, stable) in enumerate(entries):
        one = ended.get(last)
        transaction = f"producer {producer_id}, {first} to {last}, stable {stable}"
        if version != 0:
            found.append((slot, f"unknown version {version}"))
        elif one is None or one.producer_id != producer_id:
            found.append((slot, f"its segment has no such abort marker ({transaction})"))
        elif last <= previous:
            found.append((slot, f"does not follow the entry that ends at {previous} ({transaction})"))
        elif not one.marker_before < first <= one.largest_first:
            found.append((slot, f"does not begin where the transaction does, {one.possible_firsts()} ({transaction})"))
        elif not 0 <= stable <= one.undecided:
            found.append((slot, f"offset {one.undecided} was undecided after its marker ({transaction})"))
        if one is not None and one.producer_id == producer_id and version == 0:
            del ended[last]
        previous = max(previous, last)
    return found
