"""History of the responses that clients of a cluster got, checked by the rules of Jepsen's queue checker for Kafka.

Every value is written once. A value is acknowledged at an offset, or aborted with its transaction, or neither is known.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """A value at an offset of a partition."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Findings(NamedTuple):
    """Faults of a history; all are empty for one that is right."""

    lost: list[str]
    """Values that were acknowledged, and are not in the log at the end."""
    duplicated: list[str]
    """Values that are in the log twice."""
    changed: list[str]
    """Offsets at which two values were seen."""
    aborted_reads: list[str]
    """Values of aborted transactions that were read."""
    skipped: list[str]
    """Offsets with records between those that a reader got, which the reader did not get."""
    disordered: list[str]
    """Values of one writer whose offsets are not in the order in which they were written."""

    @property
    def is_clean(self) -> bool:
        """Return whether there is no fault."""
        return not any(self)


class History:
    """Acknowledgements, aborts and reads, as the clients record them. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: list[Position] = []
        """Values that were acknowledged; an offset below 0 is unknown."""
        self.aborted: set[bytes] = set()
        self.reads: dict[str, list[Position]] = defaultdict(list)
        """The records that each reader got, in order."""

    def acknowledge(self, position: Position) -> None:
        """Note that a value was acknowledged to its writer."""
        with self._lock:
            self.acknowledged.append(position)

    def abort(self, value: bytes) -> None:
        """Note that the transaction of a value was aborted."""
        with self._lock:
            self.aborted.add(value)

    def read(self, reader: str, position: Position) -> None:
        """Note that a reader got a record."""
        with self._lock:
            self.reads[reader].append(position)

    def forget(self, writer: str) -> None:
        """Remove the reads of a writer's values, for a writer with acks=1, whose records may be lost."""
        for reader, reads in self.reads.items():
            self.reads[reader] = [one for one in reads if not one.value.startswith(f"{writer}-".encode())]

    def findings(self, final: Sequence[Position]) -> Findings:
        """Check the history against ``final``, all records in the logs at the end."""
        return Findings(
            list(self._lost(final)),
            list(_duplicated(final)),
            list(self._changed(final)),
            list(self._aborted_reads(final)),
            list(self._skipped(final)),
            list(_disordered(final)),
        )

    def _lost(self, final: Sequence[Position]) -> Iterator[str]:
        there = {(one.topic, one.partition, one.value) for one in final}
        for one in self.acknowledged:
            if one.value not in self.aborted and (one.topic, one.partition, one.value) not in there:
                yield f"{one} was acknowledged and is not there"

    def _changed(self, final: Sequence[Position]) -> Iterator[str]:
        seen: dict[tuple[str, int, int], bytes] = {}
        for one in self._all(final):
            if one.offset < 0:
                continue
            before = seen.setdefault((one.topic, one.partition, one.offset), one.value)
            if before != one.value:
                yield f"{one} was {before!r} before"

    def _all(self, final: Sequence[Position]) -> Iterator[Position]:
        yield from (one for one in self.acknowledged if one.value not in self.aborted)
        for reads in self.reads.values():
            yield from reads
        yield from final

    def _aborted_reads(self, final: Sequence[Position]) -> Iterator[str]:
        for one in (*(one for reads in self.reads.values() for one in reads), *final):
            if one.value in self.aborted:
                yield f"{one} was read, and its transaction is aborted"

    def _skipped(self, final: Sequence[Position]) -> Iterator[str]:
        written = _offsets(final)
        for reader, reads in self.reads.items():
            for partition, offsets in _offsets(reads).items():
                first, last = min(offsets), max(offsets)
                there = {one for one in written.get(partition, ()) if first <= one <= last}
                for offset in sorted(there - set(offsets)):
                    yield f"{reader} passed over {partition} {offset}"


def _offsets(positions: Iterable[Position]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in positions:
        found[one.topic, one.partition].append(one.offset)
    return found


def _duplicated(final: Sequence[Position]) -> Iterator[str]:
    seen: dict[tuple[str, int, bytes], int] = {}
    for one in final:
        before = seen.setdefault((one.topic, one.partition, one.value), one.offset)
        if before != one.offset:
            yield f"{one} is at {before} too"


def _disordered(final: Sequence[Position]) -> Iterator[str]:
    """Yield the values ``WRITER-NUMBER`` whose number is below that of an earlier record of the writer."""
    last: dict[tuple[str, int, bytes], int] = {}
    for one in sorted(final):
        writer, _, number = one.value.rpartition(b"-")
        before = last.get((one.topic, one.partition, writer), -1)
        if int(number) < before:
            yield f"{one} comes after {before}"
        last[one.topic, one.partition, writer] = int(number)
