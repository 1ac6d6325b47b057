"""Fetch by a replica: records up to the log end; what it asks for tells its leader how far it is.

    leader epoch checked -> log start and divergence checked -> read -> follower noted with the log end from before
    -> high watermark, which that may have moved, and log start told

Nothing to read: parked until one of the partitions has records, or another leader. A replica whose last epoch is not
known here gets OFFSET_OUT_OF_RANGE: a divergence without an offset makes Kafka's followers ask again without a pause.

Source: ReplicaManager.fetchMessages and Partition.fetchRecords of Kafka 4.3; KIP-227, KIP-595, KIP-903.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.fetch import (
    ReadParams,
    ReadResult,
    build_response,
    failed_partition,
    read_params,
    release_results,
    with_endpoints,
)
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.fetch_session import FetchContext, FetchTarget, Result
from tidelog.broker.replica.partition import NO_LEADER_EPOCH, Partition
from tidelog.broker.replica.purgatory import Parked
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.broker.requests.context import RequestContext
from tidelog.log.fetch import FetchIsolation
from tidelog.protocol.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
)
from tidelog.protocol.messages.fetch import EpochEndOffset, FetchRequest, FetchResponse, PartitionData
from tidelog.protocol.schema.engine import blank


class Replica(NamedTuple):
    """The broker that fetches; its epoch is -1 in requests from before v15."""

    broker_id: int
    broker_epoch: int


def replica_of(request: FetchRequest) -> Replica:
    """Return the broker that fetches; its id is -1 for consumers."""
    asking = request.replica_state
    if asking.replica_id >= 0:
        return Replica(asking.replica_id, asking.replica_epoch)
    return Replica(request.replica_id, -1)


def answer_replica(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse]:
    """Read for a replica, and wait if there is nothing. Raises as ``FetchSessionCache.context_for``."""
    replica = replica_of(request)
    fetch_context = broker.fetch_sessions.context_for(context.api_version, request)
    params = read_params(broker, context, request, fetch_context)
    read = read_for_replica(broker.replica_manager, fetch_context.targets, params, replica)
    if read.is_enough(params.min_bytes) or request.max_wait_ms <= 0 or not fetch_context.targets:
        return response_to_replica(broker, context, fetch_context, read)
    release_results(read.results)
    return DelayedReplicaFetch(broker, context, fetch_context, params, replica).park(request.max_wait_ms)


class DelayedReplicaFetch:
    """A replica's fetch that waits for records. A purgatory operation."""

    __slots__ = ("_asker", "_broker", "_context", "_deferred", "_params", "_parked", "_replica", "_waited")

    def __init__(
        self, broker: Broker, asker: RequestContext, context: FetchContext, params: ReadParams, replica: Replica
    ) -> None:
        self._broker = broker
        self._asker = asker
        self._context = context
        self._params = params
        self._replica = replica
        self._deferred: Deferred[FetchResponse] = Deferred()
        self._parked: Parked | None = None
        find = broker.replica_manager
        self._waited = [(found_partition(find, target), target.fetch_offset) for target in context.targets]

    def park(self, max_wait_ms: int) -> Deferred[FetchResponse]:
        """Wait for one of the partitions to move."""
        keys = [partition for partition, _ in self._waited]
        self._parked = self._broker.purgatory.park(self, keys, max_wait_ms)
        self._deferred.on_abandon(self._abandon)
        self._deferred.on_hurry(self._hurry)
        return self._deferred

    def try_complete(self) -> bool:
        """Answer if there is something to tell now. Most touches are of a high watermark, which is not asked for."""
        if not any(
            partition.leading is None or partition.log_end_offset > offset for partition, offset in self._waited
        ):
            return False
        read = self._read()
        if not read.is_enough(self._params.min_bytes):
            release_results(read.results)
            return False
        self._answer(read)
        return True

    def expire(self) -> None:
        """Answer with what there is."""
        self._answer(self._read())

    def _read(self) -> ReadResult:
        return read_for_replica(self._broker.replica_manager, self._context.targets, self._params, self._replica)

    def _answer(self, read: ReadResult) -> None:
        self._deferred.complete(response_to_replica(self._broker, self._asker, self._context, read))

    def _hurry(self) -> None:
        assert self._parked is not None
        self._broker.purgatory.expire(self._parked)

    def _abandon(self) -> None:
        assert self._parked is not None
        self._broker.purgatory.cancel(self._parked)


def found_partition(manager: ReplicaManager, target: FetchTarget) -> Partition:
    """Return the partition that a replica asks for. Raises UnknownTopicIdError and its like,
    NotLeaderOrFollowerError."""
    if target.topic:
        return manager.partition(target.topic, target.index)
    return manager.partition_by_id(target.topic_id, target.index)


def read_for_replica(
    manager: ReplicaManager, targets: list[FetchTarget], params: ReadParams, replica: Replica
) -> ReadResult:
    """Read each target in order until the response limit is used up, and note how far the replica is."""
    results: list[Result] = []
    total, must_answer = 0, False
    for target in targets:
        partition = None
        try:
            if params.is_refused is not None and params.is_refused(target):
                raise ClusterAuthorizationFailedError
            partition = found_partition(manager, target)
            limit = min(target.max_bytes, params.max_bytes - total)
            data = read_partition(partition, target, replica, limit, one_message=not total)
        except KafkaError as error:
            data = failed_partition(partition, target, params.version, error)
            must_answer = True
        if data.records:
            total += len(data.records)
        elif data.diverging_epoch.epoch != NO_LEADER_EPOCH:
            must_answer = True
        elif params.is_incremental and not data.error_code and is_known(target, data):
            continue
        results.append((target, data))
    return ReadResult(results, total, must_answer, None)


def response_to_replica(
    broker: Broker, asker: RequestContext, context: FetchContext, read: ReadResult
) -> FetchResponse:
    """The response. Offsets beside a divergence are told again: a follower that truncates does not take them."""
    response = with_endpoints(broker, asker, read, build_response(context, read.results))
    if read.must_answer:
        for target, data in read.results:
            if data.diverging_epoch.epoch != NO_LEADER_EPOCH:
                target.sent_high_watermark = -1
    return response


def is_known(target: FetchTarget, data: PartitionData) -> bool:
    """Return whether the replica's session has been told these offsets."""
    return (target.sent_high_watermark, target.sent_log_start_offset) == (data.high_watermark, data.log_start_offset)


def read_partition(
    partition: Partition, target: FetchTarget, replica: Replica, limit: int, *, one_message: bool
) -> PartitionData:
    """One partition's part of the answer. Raises FencedLeaderEpochError, UnknownLeaderEpochError,
    NotLeaderOrFollowerError, OffsetOutOfRangeError, KafkaStorageError."""
    partition.check_leader(target.current_leader_epoch)
    leading = partition.leading
    if leading is None:
        raise NotLeaderOrFollowerError
    data = blank(PartitionData)
    data.partition_index, data.aborted_transactions, data.records = target.index, None, b""
    log_end_offset = partition.log_end_offset
    if target.last_fetched_epoch != NO_LEADER_EPOCH:
        diverging = partition.divergence(target.last_fetched_epoch, target.fetch_offset)
        if target.fetch_offset < partition.log_start_offset:
            raise OffsetOutOfRangeError
        if diverging is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    if data.diverging_epoch.epoch == NO_LEADER_EPOCH:
        info = partition.read(
            target.fetch_offset, max(limit, 0), isolation=FetchIsolation.LOG_END, min_one_message=one_message
        )
        data.records = info.records
        leading.note_fetch(replica, target.fetch_offset, target.log_start_offset, log_end_offset)
    data.high_watermark, data.log_start_offset = partition.high_watermark, partition.log_start_offset
    return data
