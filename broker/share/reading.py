"""One share fetch: read the partitions that have records for the member, acquire, answer.

    share partitions in turn -> read each from its next offset -> enough bytes: acquire, cut the slices, answer
                                                               -> too few: wait until a log or share partition changes

A share partition is one partition of a topic, as one share group reads it. Records are acquired when the request is
answered, so a waiting request holds no records. Between two steps other requests may acquire records that were read:
then only those that are left are acquired. The bytes of a request are divided equally among its readable
partitions; its limit of records applies to all of them together. The first partitions could use up this limit, so the
order rotates with each request. Loop thread only. Source: KIP-932.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.broker.replica.keys_wait import KeysWait
from tidelog.broker.share.log_batches import aborted_batches, cut, read_batches
from tidelog.broker.share.sessions import PartitionKey
from tidelog.broker.share.share_groups import ServedPartition, ShareGroups, wake_key
from tidelog.broker.share.share_partition import AcquireRequest, BatchRange
from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.protocol.errors import KafkaError, OffsetOutOfRangeError
from tidelog.protocol.messages.share_fetch import AcquiredRecords, PartitionData
from tidelog.protocol.transferable import TransferableRecords, release_slices

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

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
    is_strict: bool
    """True in the acquire mode RECORD_LIMIT."""
    turn: int
    """The session's epoch: the number of partitions by which the request's order is rotated."""


class _ReadRecords(NamedTuple):
    """Records of one partition that were read from ``offset`` on, but not acquired. If they are not sent, ``release``
    must be called."""

    served: ServedPartition
    offset: int
    found: FetchDataInfo


class ShareRead:
    """One share fetch over its partitions, in steps. While it waits for records, it is parked in the purgatory."""

    __slots__ = ("_broker", "_groups", "_params", "_partitions")

    def __init__(
        self, broker: Broker, groups: ShareGroups, partitions: Sequence[PartitionKey], params: ReadParams
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._params = params
        turn = params.turn % len(partitions) if partitions and params.turn > 0 else 0
        self._partitions = [*partitions[turn:], *partitions[:turn]]

    def run(self, max_wait_ms: int) -> Steps[Results]:
        """Read and acquire once there are enough records or an error, but after ``max_wait_ms`` at the latest. The
        slices of the results must be released if they are not sent (``release_results``)."""
        if not self._partitions or self._params.max_records <= 0 or self._params.max_bytes <= 0:
            return {}
        if max_wait_ms > 0:
            reads, errors = yield from self._read_enough(self._broker.timers.monotonic_ms() + max_wait_ms)
        else:
            reads, errors = yield from self._read()
        return (yield from self._acquire(reads, errors))

    def _read_enough(self, until_ms: float) -> Steps[tuple[list[_ReadRecords], Results]]:
        """Read and wait for a change, until there are enough records or an error, or until ``until_ms``. Each wait
        begins before the partitions are read, so that no change between the read and the wait is missed."""
        keys = yield from self._keys()
        is_over = False
        while True:
            wait = KeysWait(self._broker.purgatory, keys, until_ms - self._broker.timers.monotonic_ms())
            try:
                reads, errors = yield from self._read()
                if errors or is_over or self._is_enough(reads):
                    return reads, errors
                release(reads)
                yield wait.ended
            finally:
                wait.cancel()
            is_over = wait.is_over

    def _keys(self) -> Steps[list[Hashable]]:
        """Return the keys of the purgatory under which the fetch waits: its partitions and share partitions."""
        keys: list[Hashable] = []
        for number, (topic_id, index) in enumerate(self._partitions):
            with suppress(KafkaError):  # the next read finds the error
                keys.append(self._broker.replica_manager.partition_by_id(topic_id, index))
            keys.append(wake_key(StateKey(self._params.group_id, topic_id, index)))
            if not number % ITEMS_PER_STEP:
                yield None
        return keys

    def _is_enough(self, reads: list[_ReadRecords]) -> bool:
        total = sum(len(read.found.records) for read in reads)
        return total > 0 and total >= self._params.min_bytes

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self) -> Steps[tuple[list[_ReadRecords], Results]]:
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
            yield None
        reads: list[_ReadRecords] = []
        try:
            for served in ready:
                try:
                    read = self._read_one(served, max(1, self._params.max_bytes // len(ready)))
                except KafkaError as error:
                    errors[served.key[1:]] = build_error_data(served.key[1:], error)
                else:
                    if read.found.records:
                        reads.append(read)
                yield None
        except GeneratorExit:
            release(reads)
            raise
        return reads, errors

    def _read_one(self, served: ServedPartition, max_bytes: int) -> _ReadRecords:
        committed = self._groups.config(self._params.group_id).read_committed
        isolation = FetchIsolation.TXN_COMMITTED if committed else FetchIsolation.HIGH_WATERMARK
        partition = self._broker.replica_manager.partition_by_id(served.key.topic_id, served.key.partition)
        served.partition.log_start_moved(partition.log_start_offset)
        offset = served.partition.next_fetch_offset
        try:
            found = partition.read(offset, max_bytes, isolation=isolation, min_one_message=True)
        except OffsetOutOfRangeError:  # the log was truncated below the offset: there is nothing to read until it grows
            found = FetchDataInfo(b"", offset)
        return _ReadRecords(served, offset, found)

    # -- acquiring ----------------------------------------------------------------------------------------------

    def _acquire(self, reads: list[_ReadRecords], results: Results) -> Steps[Results]:
        """Acquire the records that were read, up to the request's limit. Returns the results, to which the response of
        each partition is added. A share partition that was dropped from memory since it was read is left out."""
        left = self._params.max_records
        pending = deque(reads)
        try:
            while pending and left > 0:
                read = pending.popleft()
                if self._groups.find(read.served.key) is read.served:
                    data, count = self._try_acquire(read, left)
                    left -= count
                    self._broker.metrics.bytes_out.count += len(data.records)
                    results[read.served.key[1:]] = data
                else:
                    release([read])
                yield None
        except GeneratorExit:
            release_results(results)
            raise
        finally:
            release(pending)
        return results

    def _try_acquire(self, read: _ReadRecords, max_records: int) -> tuple[PartitionData, int]:
        """Return the response of one partition, which may be an error, and its number of records."""
        try:
            return self._acquire_one(read, max_records)
        except KafkaError as error:
            release([read])
            return build_error_data(read.served.key[1:], error), 0

    def _acquire_one(self, read: _ReadRecords, max_records: int) -> tuple[PartitionData, int]:
        """Return the response of one partition and its number of records. Raises KafkaStorageError."""
        served, records = read.served, read.found.records
        batches = read_batches(records, read.offset, max_records)
        request = AcquireRequest(
            self._params.member_id,
            read.offset,
            [BatchRange(batch.base_offset, batch.last_offset) for batch in batches],
            max_records,
            self._params.batch_size,
            self._params.is_strict,
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


def release_results(results: Results) -> None:
    """Release the file slices of results that are not sent."""
    for data in results.values():
        release_slices(data.records if isinstance(data.records, list) else [data.records])


def release(reads: Iterable[_ReadRecords]) -> None:
    """Release the file slices of reads that are not sent."""
    for read in reads:
        if isinstance(read.found.records, TransferableRecords):
            read.found.records.release()
