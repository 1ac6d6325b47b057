"""One share fetch: read the partitions that have records for the member, acquire, answer.

    share partitions in turn -> read each from its next offset -> enough bytes: acquire, cut the slices, answer
                                                               -> too few: wait until a log or share partition changes

A share partition is one partition of a topic, as one share group reads it. Records are acquired when the request is
answered, so a waiting request holds no records. The bytes of a request are divided equally among its readable
partitions; its limit of records applies to all of them together. The first partitions could use up this limit, so the
order rotates with each request. Loop thread only. Source: KIP-932.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.share.log_batches import aborted_batches, cut, read_batches
from tidelog.broker.share.sessions import PartitionKey
from tidelog.broker.share.share_groups import ServedPartition, ShareGroups, wake_key
from tidelog.broker.share.share_partition import AcquireRequest, BatchRange
from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.protocol.errors import KafkaError, OffsetOutOfRangeError
from tidelog.protocol.messages.share_fetch import AcquiredRecords, PartitionData
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica.purgatory import Parked

RECORD_LIMIT = 1
"""Acquire mode in which the limit of records is exact and not rounded up to batches (KIP-1206)."""

Results = dict[PartitionKey, PartitionData]


class ReadParams(NamedTuple):
    """Parameters of a share fetch that apply to all its partitions."""

    group_id: str
    member_id: str
    max_bytes: int
    min_bytes: int
    max_records: int
    batch_size: int
    strict: bool
    """True in the acquire mode RECORD_LIMIT."""
    turn: int
    """The session's epoch: the number of partitions by which the request's order is rotated."""


class _Read(NamedTuple):
    """Records of one partition that were read from ``offset`` on, but not acquired. If they are not sent, ``release``
    must be called."""

    served: ServedPartition
    offset: int
    found: FetchDataInfo


class ShareRead:
    """One share fetch over its partitions. While it waits for records, it is parked in the purgatory."""

    __slots__ = ("_broker", "_deferred", "_groups", "_params", "_parked", "_partitions")

    def __init__(
        self, broker: Broker, groups: ShareGroups, partitions: Sequence[PartitionKey], params: ReadParams
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._params = params
        turn = params.turn % len(partitions) if partitions and params.turn > 0 else 0
        self._partitions = [*partitions[turn:], *partitions[:turn]]
        self._deferred: Deferred[Results] = Deferred()
        self._parked: Parked | None = None

    def begin(self, max_wait_ms: int) -> Results | Deferred[Results]:
        """Answer at once if there are enough records or an error; else wait for more, at most ``max_wait_ms``."""
        if not self._partitions or self._params.max_records <= 0 or self._params.max_bytes <= 0:
            return {}
        reads, errors = self._read()
        if errors or max_wait_ms <= 0 or self._is_enough(reads):
            return self._acquire(reads, errors)
        release(reads)
        self._parked = self._broker.purgatory.park(self, self._keys(), max_wait_ms, self._deferred.refuse)
        self._deferred.on_abandon(self._abandon)
        return self._deferred

    def _keys(self) -> list[object]:
        """Return the keys of the purgatory under which the fetch waits: its partitions and share partitions."""
        by_id = self._broker.replica_manager.partition_by_id
        keys: list[object] = [by_id(topic_id, index) for topic_id, index in self._partitions]
        return keys + [wake_key(StateKey(self._params.group_id, *partition)) for partition in self._partitions]

    def try_complete(self) -> bool:
        """Answer if there are enough records now, or an error."""
        reads, errors = self._read()
        if not errors and not self._is_enough(reads):
            release(reads)
            return False
        self._deferred.complete(self._acquire(reads, errors))
        return True

    def expire(self) -> None:
        """Answer with the records that there are, because the request has timed out."""
        self._deferred.complete(self._acquire(*self._read()))

    def _abandon(self) -> None:
        assert self._parked is not None
        self._broker.purgatory.cancel(self._parked)

    def _is_enough(self, reads: list[_Read]) -> bool:
        total = sum(len(read.found.records) for read in reads)
        return total > 0 and total >= self._params.min_bytes

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[_Read], Results]:
        """Read each partition that may have records to acquire, in order. Returns the reads that found records, and the
        errors of other partitions."""
        errors: Results = {}
        ready: list[ServedPartition] = []
        limits = self._groups.config(self._params.group_id).limits
        for partition in self._partitions:
            try:
                served = self._groups.serve(StateKey(self._params.group_id, *partition))
                if served.partition.can_acquire(limits):
                    ready.append(served)
            except KafkaError as error:
                errors[partition] = build_error_data(partition, error)
        reads: list[_Read] = []
        for served in ready:
            try:
                read = self._read_one(served, max(1, self._params.max_bytes // len(ready)))
            except KafkaError as error:
                errors[served.key[1:]] = build_error_data(served.key[1:], error)
            else:
                if read.found.records:
                    reads.append(read)
        return reads, errors

    def _read_one(self, served: ServedPartition, max_bytes: int) -> _Read:
        committed = self._groups.config(self._params.group_id).read_committed
        isolation = FetchIsolation.TXN_COMMITTED if committed else FetchIsolation.HIGH_WATERMARK
        partition = self._broker.replica_manager.partition_by_id(served.key.topic_id, served.key.partition)
        served.partition.log_start_moved(partition.log_start_offset)
        offset = served.partition.next_fetch_offset
        try:
            found = partition.read(offset, max_bytes, isolation=isolation, min_one_message=True)
        except OffsetOutOfRangeError:  # the log was truncated below the offset: there is nothing to read until it grows
            found = FetchDataInfo(b"", offset)
        return _Read(served, offset, found)

    # -- acquiring ----------------------------------------------------------------------------------------------

    def _acquire(self, reads: list[_Read], errors: Results) -> Results:
        """Acquire the records that were read, up to the request's limit, and build the response of each partition."""
        results = errors
        left = self._params.max_records
        total = 0
        for position, read in enumerate(reads):
            if left <= 0:
                release(reads[position:])
                break
            try:
                data, count = self._acquire_one(read, left)
            except KafkaError as error:
                release([read])
                data, count = build_error_data(read.served.key[1:], error), 0
            left -= count
            total += len(data.records)
            results[read.served.key[1:]] = data
        self._broker.metrics.bytes_out.count += total
        return results

    def _acquire_one(self, read: _Read, max_records: int) -> tuple[PartitionData, int]:
        """Return the response of one partition and its number of records. Raises KafkaStorageError."""
        served, records = read.served, read.found.records
        batches = read_batches(records, read.offset, max_records)
        request = AcquireRequest(
            self._params.member_id,
            read.offset,
            [BatchRange(batch.base_offset, batch.last_offset) for batch in batches],
            max_records,
            self._params.batch_size,
            self._params.strict,
        )
        limits = self._groups.config(self._params.group_id).limits
        acquired = served.partition.acquire(request, limits, self._broker.time.monotonic_ms())
        if acquired and read.found.aborted_transactions:
            hidden = aborted_batches(batches, read.found.aborted_transactions)
            acquired = served.partition.drop_aborted(
                [BatchRange(batch.base_offset, batch.last_offset) for batch in hidden], acquired
            )
        data = PartitionData(partition_index=served.key.partition, records=b"")
        if not acquired:
            release([read])
            return data, 0
        self._groups.watch(served)
        data.records = cut(records, batches, acquired[0].first, acquired[-1].last)
        data.acquired_records = [
            AcquiredRecords(first_offset=run.first, last_offset=run.last, delivery_count=run.delivery_count)
            for run in acquired
        ]
        return data, sum(run.last - run.first + 1 for run in acquired)


def build_error_data(partition: PartitionKey, error: KafkaError) -> PartitionData:
    """Build the response of a partition with an error."""
    return PartitionData(partition_index=partition[1], error_code=error.code, error_message=error.message, records=b"")


def release(reads: Sequence[_Read]) -> None:
    """Release the file slices of reads that are not sent."""
    for read in reads:
        if isinstance(read.found.records, TransferableRecords):
            read.found.records.release()
