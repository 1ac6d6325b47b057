"""Reading of records from topics of any Kafka cluster, between two positions, alone or as a member of a group.

Reading ends where the logs ended when it began (in a group: at the last assignment), or it follows the logs. When a
leader or coordinator moves, the new one is looked up. Records that retention deletes before they are read are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.client.admin.groups import committed_offsets
from tidelog.client.admin.offsets import TopicPartition, log_ends, log_starts, offsets_from
from tidelog.client.cluster import Cluster, Trouble, is_passing
from tidelog.client.connection import ClientError
from tidelog.client.records.fetcher import Fetcher
from tidelog.client.records.member import REJOINS, GroupMember
from tidelog.find import FoundRecord
from tidelog.protocol.errors import KafkaError, OffsetOutOfRangeError

WAIT_MS = 500
RETRY_S = 30.0
"""How long a leader may be missing: a controller fences a silent broker after 9 s, and then elects a new leader."""
PAUSE_S = 0.1
VACANT_ROUNDS = 3
"""Successive responses without batches after which a partition counts as read: the last offsets may have no records."""
COMMIT_S = 5.0


class Range(NamedTuple):
    """The wanted records: start and end of reading. ``offset`` is ``start``, ``end``, a number as text, or ``-N`` for N
    offsets before the end. Without ``offset`` and ``begin_ms`` reading begins at the group's committed offset, or at
    the start of the log if there is none.

    Older records than ``begin_ms`` are left out wherever they are. A partition ends at its first record after
    ``end_ms``: a group's committed offset cannot pass that record and come back to it.
    """

    offset: str | None
    begin_ms: int | None
    end_ms: int | None
    follow: bool
    isolation_level: int


class Reading:
    """Rounds of a fetcher up to given ends. If a leader has moved or is missing, it retries for RETRY_S."""

    def __init__(self, cluster: Cluster, wanted: Range) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._fetcher = Fetcher(cluster, {}, wanted.isolation_level)
        self._ends: dict[TopicPartition, int] = {}
        self._vacant: dict[TopicPartition, int] = {}
        self._failing_since: float | None = None

    def begin(self, positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Read from these positions on, up to the ends; a partition without an end is followed."""
        self._fetcher.positions = positions
        self._ends = ends
        self._vacant = {}

    def drop_finished(self) -> bool:
        """Remove partitions that are read to their end; return whether any is left."""
        positions = self._fetcher.positions
        for topic_partition, end in self._ends.items():
            if positions.get(topic_partition, -1) >= end or self._vacant.get(topic_partition, 0) >= VACANT_ROUNDS:
                positions.pop(topic_partition, None)
        return bool(positions)

    def next_round(self) -> Iterator[FoundRecord]:
        """Yield the records of one round that lie before the ends. Raises ClientError, KafkaError."""
        if not self._fetcher.positions:
            time.sleep(WAIT_MS / 1000)
        try:
            yield from self._records()
            self._count_vacant()
        except Trouble as error:
            self.pause_after(error)
        else:
            self._failing_since = None

    def _skip_deleted(self) -> bool:
        """Move positions before the start of their log to it; return whether there were any. Raises ClientError,
        KafkaError."""
        positions = self._fetcher.positions
        starts = log_starts(self._cluster, list(positions))
        deleted = {partition: start for partition, start in starts.items() if positions[partition] < start}
        positions.update(deleted)
        return bool(deleted)

    def pause_after(self, error: ClientError | KafkaError) -> None:
        """Wait before a retry. Raises the error if it is not passing, or failures have lasted for RETRY_S."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not is_passing(error) or now - self._failing_since > RETRY_S:
            raise error
        self._cluster.forget_leaders()
        time.sleep(PAUSE_S)

    def _records(self) -> Iterator[FoundRecord]:
        try:
            for topic, partition, record in self._fetcher.fetch(WAIT_MS):
                if self._is_wanted((topic, partition), record.offset, record.timestamp):
                    found = record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
                    yield FoundRecord(topic, partition, *found)
        except OffsetOutOfRangeError:
            if not self._skip_deleted():
                raise

    def _is_wanted(self, topic_partition: TopicPartition, offset: int, time_ms: int) -> bool:
        """Return whether a record lies in the range; the first one after the range's time ends its partition."""
        _, begin_ms, end_ms, _, _ = self._wanted
        if end_ms is not None and time_ms > end_ms:
            self._ends[topic_partition] = min(offset, self._ends.get(topic_partition, offset))
        end = self._ends.get(topic_partition)
        return (end is None or offset < end) and (begin_ms is None or time_ms >= begin_ms)

    def _count_vacant(self) -> None:
        """Count responses without records. Raises ClientError if a leader's log ends before the wanted end."""
        vacant = {partition: seen for partition, seen in self._fetcher.vacant.items() if partition in self._ends}
        self._vacant = {
            partition: self._vacant.get(partition, 0) + 1
            for partition, seen in vacant.items()
            if seen >= self._ends[partition]
        }
        for partition, seen in vacant.items():
            if seen < self._ends[partition]:
                raise ClientError(
                    f"{partition[0]}-{partition[1]} ends at {seen} now, and ended at {self._ends[partition]} before"
                )


def read_partitions(cluster: Cluster, partitions: list[TopicPartition], wanted: Range) -> Iterator[FoundRecord | None]:
    """Yield records of these partitions, and None after each round. Raises ClientError, KafkaError."""
    reading = Reading(cluster, wanted)
    reading.begin(first_positions(cluster, partitions, wanted), last_positions(cluster, partitions, wanted))
    while reading.drop_finished():
        yield from reading.next_round()
        yield None


class MemberReading:
    """Reading as a member of a group, of the partitions that are assigned to it; a context manager, which commits and
    leaves the group at its end.

    It commits only offsets that its caller gives to ``note_written``. So a signal or an error that ends the caller
    before its output is flushed loses no record.
    """

    def __init__(
        self, cluster: Cluster, group: str, topics: tuple[str, ...], wanted: Range, tell: Callable[[KafkaError], None]
    ) -> None:
        """``tell`` is called with errors of commits after which the member rejoins or leaves."""
        self._cluster, self._group, self._wanted, self._tell = cluster, group, wanted, tell
        self._reading = Reading(cluster, wanted)
        self._written: dict[TopicPartition, int] = {}
        self._member = GroupMember(cluster, group, topics, self._commit_if_possible)
        self._next_commit = time.monotonic() + COMMIT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, and leave the group. Raises ClientError, KafkaError."""
        self._commit_if_possible()
        self._member.leave()

    def records(self) -> Iterator[FoundRecord | None]:
        """Yield records, and None after each round; the caller calls ``note_written`` then, before it goes on. Raises
        ClientError, KafkaError."""
        while True:
            try:
                is_assigned = self._member.poll()
            except Trouble as error:  # the coordinator may have moved
                self._reading.pause_after(error)
                continue
            if is_assigned:
                self._begin()
            may_be_assigned = self._wanted.follow and not self._member.assignment
            if not self._reading.drop_finished() and not may_be_assigned:
                return
            yield from self._reading.next_round()
            yield None
            self._commit_in_time()

    def note_written(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note the offsets after the last records that are safe with the caller: they are committed from now on."""
        self._written.update(offsets)

    def _begin(self) -> None:
        """Begin to read the assigned partitions, from their committed offsets on unless the user gives a start.

        If retention has deleted records after a committed offset, reading begins at the start of the log.
        """
        self._written.clear()
        partitions, wanted = self._member.assignment, self._wanted
        has_begin = wanted.offset is not None or wanted.begin_ms is not None
        committed = {} if has_begin else committed_offsets(self._cluster, self._group, partitions)
        first = first_positions(self._cluster, partitions, wanted)
        first |= {topic_partition: max(offset, first[topic_partition]) for topic_partition, offset in committed.items()}
        self._reading.begin(first, last_positions(self._cluster, partitions, wanted))

    def _commit_in_time(self) -> None:
        if time.monotonic() < self._next_commit:
            return
        try:
            self._commit()
        except REJOINS as error:  # for example, the output was blocked for longer than the session timeout
            self._tell(error)
        self._next_commit = time.monotonic() + COMMIT_S

    def _commit(self) -> None:
        self._member.commit(self._written)
        self._written.clear()

    def _commit_if_possible(self) -> None:
        try:
            self._commit()
        except KafkaError as error:
            self._tell(error)


def first_positions(cluster: Cluster, partitions: list[TopicPartition], wanted: Range) -> dict[TopicPartition, int]:
    """Find the offsets at which reading begins. Raises ClientError, KafkaError."""
    starts = log_starts(cluster, partitions)
    if wanted.offset in (None, "start") and wanted.begin_ms is None:
        return starts
    ends = log_ends(cluster, partitions, isolation_level=wanted.isolation_level)
    if wanted.begin_ms is not None:
        found = offsets_from(cluster, partitions, wanted.begin_ms)
        return {
            topic_partition: ends[topic_partition] if found[topic_partition] < 0 else found[topic_partition]
            for topic_partition in partitions
        }
    if wanted.offset == "end":
        return ends
    number = int(wanted.offset or 0)
    from_end = (wanted.offset or "").startswith("-")
    return {
        topic_partition: min(
            max(ends[topic_partition] + number if from_end else number, starts[topic_partition]), ends[topic_partition]
        )
        for topic_partition in partitions
    }


def last_positions(cluster: Cluster, partitions: list[TopicPartition], wanted: Range) -> dict[TopicPartition, int]:
    """Find the offsets at which reading ends; none yet for partitions that are followed. Raises ClientError,
    KafkaError."""
    later: dict[TopicPartition, int] = {}
    if wanted.end_ms is not None:
        # Beyond an open transaction the end is not known yet: a record that is read later shows it.
        found = offsets_from(cluster, partitions, wanted.end_ms + 1, isolation_level=wanted.isolation_level)
        later = {topic_partition: offset for topic_partition, offset in found.items() if offset >= 0}
    if wanted.follow:
        return later
    ends = log_ends(cluster, partitions, isolation_level=wanted.isolation_level)
    return {
        topic_partition: min(ends[topic_partition], later.get(topic_partition, ends[topic_partition]))
        for topic_partition in partitions
    }
