"""The check of one segment's transactions in an audit: its aborted batches by the markers and by the indices.

    the log's markers (``plan/transactions``)  say which batches readers of committed records leave out
    all ``.txnindex`` entries of the log       must say the same of each batch
    the segment's own ``.txnindex``            each entry fits an abort marker (tidelog.log.segment.transaction_check)

One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index.transaction_index import ENTRY
from tidelog.log.segment.batch_scan import CONTROL_MASK, TRANSACTIONAL_MASK
from tidelog.log.segment.transaction_check import TransactionIndexCheck, commits_transaction
from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.engine import AuditEngine
from tidelog.pipeline.engine.reference import BoolArray, IntegerArray
from tidelog.pipeline.errors import ObjectGoneError, PipelineError, UndecidedTransactionError
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.plan.transactions.markers import MarkerWalk

Tell = Callable[[str, str, int, int, str], None]
"""A function that takes a finding: kind, path, byte position, offset, message."""
#: How long a broker may take from a marker to its entry in the transaction index, in seconds.
ENTRY_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """One segment's plan: the segment, whether it is closed, and the last stable offset (``stable_below``).

    ``indexed``: (producer id, first, last offset) of the aborted transactions in ``.txnindex`` files.
    """

    partition: TopicPartition
    segment: SegmentFile
    is_closed: bool
    stable_below: int
    indexed: tuple[tuple[int, int, int], ...]


class TransactionAudit:
    """The check of one segment's transactions against its markers and indices."""

    def __init__(self, plan: TransactionPlan, file: OpenSegment, engine: AuditEngine, tell: Tell) -> None:
        self._plan = plan
        self._tell = tell
        self._indexed = np.array(plan.indexed, np.int64).reshape(-1, 3)
        self._aborted = np.zeros((0, 3), np.int64)
        self._misled: set[int] = set()  # producers whose current transaction differs in the index
        self._index = TransactionIndexCheck()
        self._markers = MarkerWalk(
            plan.partition, plan.segment, file, position=0, end_offset=plan.stable_below, engine=engine
        )
        self._is_stopped = False  # the walk over the markers met a file that cannot be read
        self.faults = 0

    def close(self) -> None:
        """Close the later segment that was opened to find markers."""
        self._markers.close()

    def find_aborted(self, buffer: at.ByteArray, size: int, position: int) -> None:
        """Find the aborted batches in these bytes. A transaction that cannot be decided because of damage is reported
        once. So is a later segment that cannot be read; from there on the transaction indices decide.

        Raises ObjectGoneError.
        """
        while not self._is_stopped:
            try:
                self._aborted = self._markers.aborted_below(buffer, size, position)
                return
            except ObjectGoneError:
                raise
            except PipelineError as error:
                self._tell("transaction", self._plan.segment.path, position, -1, str(error))
                if not isinstance(error, UndecidedTransactionError):
                    self._aborted, self._is_stopped = self._indexed, True

    def follow(self, buffer: at.ByteArray, rows: IntegerArray) -> None:
        """Note the markers and records of transactions in valid batches, in order; ``buffer`` has the batches of
        ``rows``."""
        for row in rows[rows[:, at.ATTRIBUTES] & (CONTROL_MASK | TRANSACTIONAL_MASK) != 0].tolist():
            start, offset, producer_id = row[at.POSITION], row[at.BASE_OFFSET], row[at.PRODUCER_ID]
            if row[at.ATTRIBUTES] & CONTROL_MASK:
                is_commit = commits_transaction(buffer.data[start : start + row[at.SIZE]])
                if is_commit is not None:
                    self._index.see_marker(producer_id, offset, is_abort=not is_commit)
            elif row[at.RECORD_COUNT]:
                self._index.see_records(producer_id, offset)

    def finish(self, next_offset: int) -> None:
        """Compare the segment's own index with its markers, after a walk over the whole segment."""
        path = self._plan.segment.sibling(".txnindex")
        entries = read_bytes(path) if self._plan.is_closed else self._entries_below(path, next_offset)
        for slot, message in self._index.finish_segment(entries):
            where = f"entry {slot}: " if slot >= 0 else ""
            self.faults += 1
            self._tell("index", path, -1, -1, where + message)

    def _entries_below(self, path: str, next_offset: int) -> bytes:
        """Read the entries below ``next_offset``. A live broker writes an entry a moment after its marker."""
        deadline = time.monotonic() + ENTRY_PATIENCE_S
        while True:
            data = read_bytes(path)
            whole = data[: len(data) // ENTRY.size * ENTRY.size]
            last = [entry[3] for entry in ENTRY.iter_unpack(whole)]
            if self._index.newest_abort <= max(last, default=-1) or time.monotonic() > deadline:
                later = sum(offset >= next_offset for offset in last)
                return whole[: len(whole) - later * ENTRY.size] if later else data
            time.sleep(0.02)

    def select_aborted(self, rows: IntegerArray, counts: BoolArray, position: int) -> BoolArray:
        """Select the aborted rows among those that ``counts`` selects. ``position``: byte of the file where the chunk
        begins."""
        aborted = covers(self._aborted, rows) & counts
        self._compare_with_index(rows, aborted, counts, position)
        return aborted

    def _compare_with_index(self, rows: IntegerArray, aborted: BoolArray, counts: BoolArray, position: int) -> None:
        """Compare aborted rows with the index; consecutive wrong batches of one producer give one finding."""
        wrong = (covers(self._indexed, rows) != aborted) & counts & (rows[:, at.RECORD_COUNT] > 0)
        self._misled -= set(rows[counts & ~wrong, at.PRODUCER_ID].tolist())
        for row, is_aborted in zip(rows[wrong].tolist(), aborted[wrong].tolist(), strict=True):
            producer_id, offset = row[at.PRODUCER_ID], row[at.BASE_OFFSET]
            if producer_id in self._misled:
                continue
            self._misled.add(producer_id)
            says = "do not have the abort by" if is_aborted else "have an abort by"
            self.faults += 1
            self._tell(
                "index", self._plan.segment.path, position + row[at.POSITION], offset,
                f"the .txnindex files {says} producer {producer_id} of offset {offset}; the markers say otherwise",
            )  # fmt: skip


def covers(transactions: IntegerArray, rows: IntegerArray) -> BoolArray:
    """Select the rows that belong to one of the transactions (producer id, first, last offset), markers included."""
    covered = np.zeros(len(rows), np.bool_)
    transactional = rows[:, at.ATTRIBUTES] & TRANSACTIONAL_MASK != 0
    if not len(transactions) or not transactional.any():
        return covered
    near = (transactions[:, 2] >= rows[0, at.BASE_OFFSET]) & (transactions[:, 1] <= rows[-1, at.LAST_OFFSET])
    for producer_id, first, last in transactions[near].tolist():
        covered |= (
            (rows[:, at.PRODUCER_ID] == producer_id)
            & (rows[:, at.BASE_OFFSET] >= first)
            & (rows[:, at.LAST_OFFSET] <= last)
        )
    covered &= transactional
    return covered


def read_bytes(path: str) -> bytes:
    """Read a small file; returns no bytes when it is missing."""
    try:
        with OpenSegment(path) as file:
            return file.read_at(0, file.size)
    except FileNotFoundError:
        return b""
