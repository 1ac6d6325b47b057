"""Fetch of a follower: records up to the log end. Its fetch offsets show the leader which records it has.

    check leader epoch -> check log start and divergence -> read -> note the follower's fetch offset, and the log end
    before the read -> answer with the log start and the high watermark, which the fetch offset may have raised

If there is nothing to read, the fetch is parked until one of the partitions has records or another leader. A partition
without records and without new offsets may then *rest*: the next fetches of its session do not read it until its rest
ends (:mod:`tidelog.broker.replica.replication.resting`). A fetch of many partitions is read in steps.

A follower whose last epoch is later than all of the leader's log gets OFFSET_OUT_OF_RANGE: a divergence without an
offset would make Kafka's followers fetch again without a pause.

Source: ReplicaManager.fetchMessages and Partition.fetchRecords of Kafka 4.3; KIP-227, KIP-595, KIP-903.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.fetch import (
    MANY_TARGETS,
    ReadParams,
    ReadResult,
    build_response,
    failed_partition,
    names_many,
    read_params,
    release_results,
    with_endpoints,
)
from tidelog.broker.handlers.long_fetch import context_in_steps, read_in_steps, response_in_steps
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.broker.replica.fetching.fetch_session import FetchContext, FetchTarget, Result
from tidelog.broker.replica.partition import NO_LEADER_EPOCH, Partition
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.broker.replica.replication.resting import READ_ALL_MS, Resting
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

if TYPE_CHECKING:
    from tidelog.broker.replica.replication.leading import Leading


class Replica(NamedTuple):
    """The broker that fetches; its epoch is -1 in requests from before v15."""

    broker_id: int
    broker_epoch: int


def replica_of(request: FetchRequest) -> Replica:
    """Return the broker that fetches, with id -1 for a consumer."""
    state = request.replica_state
    if state.replica_id >= 0:
        return Replica(state.replica_id, state.replica_epoch)
    return Replica(request.replica_id, -1)


def answer_replica(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse] | Steps[FetchResponse | Deferred[FetchResponse]]:
    """Answer a follower's fetch, or wait if there is nothing to read. Raises what ``FetchSessionCache.context_for``
    raises."""
    if names_many(request):
        return _answer_many(broker, context, request)
    fetch_context = broker.fetch_sessions.context_for(context.api_version, request)
    targets = targets_to_read(fetch_context)
    if len(targets) > MANY_TARGETS:
        return _answer_in_steps(broker, context, fetch_context, request)
    fetch = FollowerFetch(broker, context, fetch_context, request)
    read = fetch.read(targets, is_first_read=True)
    if read.is_enough(fetch.params.min_bytes) or request.max_wait_ms <= 0 or not fetch_context.targets:
        return fetch.respond(read, build_response(fetch_context, read.results))
    release_results(read.results)
    fetch.let_rest(targets)
    return DelayedReplicaFetch(fetch).park(request.max_wait_ms)


def targets_to_read(context: FetchContext) -> list[FetchTarget]:
    """Return the partitions that a fetch reads: those that do not rest; once in READ_ALL_MS all of its session."""
    session = context.session
    if session is not None and session.last_used_ms - session.active_since_ms >= READ_ALL_MS:
        session.activate_all()
    return context.active


def _answer_many(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> Steps[FetchResponse | Deferred[FetchResponse]]:
    fetch_context = yield from context_in_steps(broker.fetch_sessions, context.api_version, request)
    return (yield from _answer_in_steps(broker, context, fetch_context, request))


def _answer_in_steps(
    broker: Broker, context: RequestContext, fetch_context: FetchContext, request: FetchRequest
) -> Steps[FetchResponse | Deferred[FetchResponse]]:
    """Answer a fetch of many partitions, as ``answer_replica`` does. A full fetch does not wait; the incremental
    fetches that follow it in its session do.
    """
    fetch = FollowerFetch(broker, context, fetch_context, request)
    targets = targets_to_read(fetch_context)
    read = yield from read_in_steps(fetch.begin_read(is_first_read=True), targets)
    waits = fetch_context.is_incremental and request.max_wait_ms > 0
    if read.is_enough(fetch.params.min_bytes) or not waits:
        return fetch.respond(read, (yield from response_in_steps(fetch_context, read.results)))
    release_results(read.results)
    for first in range(0, len(targets), ITEMS_PER_STEP):
        fetch.let_rest(targets[first : first + ITEMS_PER_STEP])
        yield None
    return DelayedReplicaFetch(fetch).park(request.max_wait_ms)


class FollowerFetch:
    """One fetch of a follower: the follower, its session, and the parameters of the request."""

    __slots__ = ("_client", "_replica", "broker", "context", "params")

    def __init__(self, broker: Broker, client: RequestContext, context: FetchContext, request: FetchRequest) -> None:
        self.broker = broker
        self.context = context
        self.params = read_params(broker, client, request, context)
        self._client = client
        self._replica = replica_of(request)

    def begin_read(self, *, is_first_read: bool) -> ReplicaRead:
        """Return a new pass over targets of this fetch. ``is_first_read``: see ``ReplicaRead``."""
        return ReplicaRead(self.broker.replica_manager, self.params, self._replica, is_first_read=is_first_read)

    def read(self, targets: list[FetchTarget], *, is_first_read: bool) -> ReadResult:
        """Read these partitions in one turn."""
        reading = self.begin_read(is_first_read=is_first_read)
        reading.add(targets)
        return reading.result()

    def let_rest(self, targets: list[FetchTarget]) -> None:
        """Let partitions rest if the follower has all their records and knows their offsets."""
        session = self.context.session
        if session is None:
            return
        active = session.activate_all() if session.active is None else session.active
        for target in targets:
            leading = self._leading_at_rest(target)
            if leading is not None and active.get(target.key) is target:
                del active[target.key]
                leading.rests.add(self._replica.broker_id, Resting(self.broker.purgatory, session, target))

    def _leading_at_rest(self, target: FetchTarget) -> Leading | None:
        """Return the leader's side of a partition that may rest; None if it may not."""
        try:
            partition = find_partition(self.broker.replica_manager, target)
        except KafkaError:
            return None
        leading = partition.leading
        if leading is None or target.current_leader_epoch != partition.leader_epoch or not is_known(target, partition):
            return None
        return leading if leading.rests.may_rest(self._replica, target.fetch_offset) else None

    def respond(self, read: ReadResult, response: FetchResponse) -> FetchResponse:
        """Complete the response. The offsets of a partition whose log diverges are sent again later: a follower that
        has to truncate ignores them."""
        for target, data in read.results:
            if data.records:
                self._note_sent(target, len(data.records))
        if read.must_answer:
            for target, data in read.results:
                if data.diverging_epoch.epoch != NO_LEADER_EPOCH:
                    target.sent_high_watermark = -1
        return with_endpoints(self.broker, self._client, read, response)

    def _note_sent(self, target: FetchTarget, size: int) -> None:
        try:
            leading = find_partition(self.broker.replica_manager, target).leading
        except KafkaError:
            return  # the partition was removed between two steps
        if leading is not None and leading.throttle is not None:
            leading.throttle.note_sent(size)


class DelayedReplicaFetch:
    """A follower's fetch that waits for records, as an operation of the purgatory.

    A full fetch reads all its partitions; an incremental one only those that have changed. It is parked under the
    partitions that do not rest, and under the session for those that rest. If the rest of one ends, the fetch reads all
    that do not rest, and is answered at once.
    """

    __slots__ = ("_deferred", "_fetch", "_waited")

    def __init__(self, fetch: FollowerFetch) -> None:
        self._fetch = fetch
        self._deferred: Deferred[FetchResponse] = Deferred()
        manager, session = fetch.broker.replica_manager, fetch.context.session
        self._waited = [(partition_or_none(manager, target), target) for target in fetch.context.active]
        if session is not None:
            session.is_woken = False

    def park(self, max_wait_ms: int) -> Deferred[FetchResponse]:
        """Park the fetch, unless one of its partitions has changed since an earlier step read it."""
        if self.try_complete():
            return self._deferred
        keys: list[Hashable] = [partition for partition, _ in self._waited if partition is not None]
        if self._fetch.context.session is not None:
            keys.append(self._fetch.context.session)
        return self._fetch.broker.purgatory.park_answer(self, keys, max_wait_ms, self._deferred)

    def try_complete(self) -> bool:
        """Answer if there are records or errors now. The purgatory calls this mostly for a new high watermark, for
        which a follower does not wait."""
        session = self._fetch.context.session
        if session is not None and session.is_woken:
            self._answer(self._read(self._fetch.context.active))
            return True
        moved = [target for partition, target in self._waited if has_moved(partition, target)]
        if not moved:
            return False
        read = self._read(moved)
        if not read.is_enough(self._fetch.params.min_bytes):
            release_results(read.results)
            return False
        self._answer(read)
        return True

    def expire(self) -> None:
        """Answer with the records that can be read now, and with offsets that the follower does not know."""
        self._answer(
            self._read(
                [
                    target
                    for partition, target in self._waited
                    if partition is None or has_moved(partition, target) or not is_known(target, partition)
                ]
            )
        )

    def _read(self, targets: list[FetchTarget]) -> ReadResult:
        """Read these targets; for a full fetch read all targets, since its answer has all partitions."""
        context = self._fetch.context
        return self._fetch.read(targets if context.is_incremental else context.targets, is_first_read=False)

    def _answer(self, read: ReadResult) -> None:
        self._deferred.complete(self._fetch.respond(read, build_response(self._fetch.context, read.results)))


def has_moved(partition: Partition | None, target: FetchTarget) -> bool:
    """Return whether a partition has records for a follower, or another leader, or was removed."""
    return partition is None or partition.leading is None or partition.log_end_offset > target.fetch_offset


def partition_or_none(manager: ReplicaManager, target: FetchTarget) -> Partition | None:
    """Return the partition that a follower fetches; None if it was removed between two steps."""
    try:
        return find_partition(manager, target)
    except KafkaError:
        return None


def find_partition(manager: ReplicaManager, target: FetchTarget) -> Partition:
    """Return the partition that a follower fetches. Raises UnknownTopicIdError, UnknownTopicOrPartitionError,
    NotLeaderOrFollowerError, InvalidTopicError."""
    if target.topic:
        return manager.partition(target.topic, target.index)
    return manager.partition_by_id(target.topic_id, target.index)


class ReplicaRead:
    """One pass over the targets of a follower's fetch, in their order, until the response limit is used up."""

    __slots__ = ("_is_first_read", "_manager", "_must_answer", "_params", "_replica", "_results", "_total")

    def __init__(self, manager: ReplicaManager, params: ReadParams, replica: Replica, *, is_first_read: bool) -> None:
        """``is_first_read``: True for the first read of a request, at which the leader notes the follower's offsets;
        False for a read after a wait."""
        self._manager = manager
        self._params = params
        self._replica = replica
        self._is_first_read = is_first_read
        self._results: list[Result] = []
        self._total = 0
        self._must_answer = False

    def add(self, targets: list[FetchTarget]) -> None:
        """Read these targets."""
        for target in targets:
            data = self._read(target)
            if data.records:
                self._total += len(data.records)
            elif data.diverging_epoch.epoch != NO_LEADER_EPOCH:
                self._must_answer = True
            elif self._params.is_incremental and not data.error_code and is_known(target, data):
                continue
            self._results.append((target, data))

    def result(self) -> ReadResult:
        """Return what was read."""
        return ReadResult(self._results, self._total, self._must_answer, None, [])

    def _read(self, target: FetchTarget) -> PartitionData:
        params, partition = self._params, None
        try:
            if params.guard is not None and params.guard.refuses(target):
                raise ClusterAuthorizationFailedError
            partition = find_partition(self._manager, target)
            limit = min(target.max_bytes, params.max_bytes - self._total)
            return read_partition(
                partition, target, self._replica, limit, is_first_read=self._is_first_read, one_message=not self._total
            )
        except KafkaError as error:
            self._must_answer = True
            return failed_partition(partition, target, params.version, error)


def is_known(target: FetchTarget, data: PartitionData | Partition) -> bool:
    """Return whether the follower knows a partition's high watermark and log start: its session sent them last."""
    return (target.sent_high_watermark, target.sent_log_start_offset) == (data.high_watermark, data.log_start_offset)


def is_held_back(leading: Leading, replica_id: int) -> bool:
    """Return whether a throttled follower gets no records now (KIP-73). Followers for which acks=all waits always get
    them: the ISR, and followers that this leader has asked the controller to add to the ISR."""
    throttle, state = leading.throttle, leading.leader_state
    if throttle is None or replica_id in state.isr or not throttle.is_exceeded:
        return False
    return replica_id not in state.maximal_isr


def read_partition(
    partition: Partition, target: FetchTarget, replica: Replica, limit: int, *, is_first_read: bool, one_message: bool
) -> PartitionData:
    """Read one partition's part of the answer. At the first read of a request, note the follower's offsets, unless its
    log diverges. A follower that is held back (``is_held_back``) gets no records.

    Raises FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderOrFollowerError, OffsetOutOfRangeError,
    CorruptMessageError, KafkaStorageError.
    """
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
        if not is_held_back(leading, replica.broker_id):
            data.records = partition.read(
                target.fetch_offset, max(limit, 0), isolation=FetchIsolation.LOG_END, min_one_message=one_message
            ).records
        if is_first_read:
            leading.note_fetch(replica, target.fetch_offset, target.log_start_offset, log_end_offset)
    data.high_watermark, data.log_start_offset = partition.high_watermark, partition.log_start_offset
    return data
