# cython: wraparound=True, boundscheck=True
"""Fetch: read partitions up to the limits, or wait until there is enough to read.

v0-3 get message sets of magic 0 or 1 (down-converted); v3+ a limit of the response; v4+ isolation levels; v7+ sessions
(KIP-227); v9+ leader epochs (KIP-320); v11+ a rack, to read from a nearer replica (KIP-392); v12+ the epoch of the last
fetched record; v13+ topic ids; v16+ the address of the leader that an error names (KIP-951).

    read all targets -> enough bytes, an error, no time to wait -> answer
                     -> parked in the purgatory under its partitions; read again when one of them has records or moves
                        its offsets; answered at the deadline

A *target* is one partition of a fetch, with its fetch offset and limit. ``fetch.pxd`` declares the C types. Generators
are in ``long_fetch``: the dispatcher recognizes only those of plain Python. From v4 on, a result is a slice of a file,
without work for each record; only the records of virtual topics are filtered, in a thread. From v3 on, a first batch
larger than a limit is returned in full, so that a consumer always makes progress (KIP-74). Clients of v0-2 get the
beginning of such a batch, and then ask again with a larger limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.leaders import LEADER_ERRORS, endpoints_of, leader_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.broker.replica.fetching.fetch_session import FetchContext, FetchTarget, Result
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext
from tidelog.log.fetch import FetchIsolation
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    NONE,
    FencedLeaderEpochError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    TopicAuthorizationFailedError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.messages.fetch import (
    NO_REPLICA,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.schema.walker import blank
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.broker.security.authorization.grants import FetchGuard

API_KEY = ApiKey.FETCH
MIN_VERSION, MAX_VERSION = 0, 18
Request = FetchRequest

_READ_COMMITTED = 1
_COMMITTED, _HIGH_WATERMARK = FetchIsolation.TXN_COMMITTED, FetchIsolation.HIGH_WATERMARK
_LAST_VERSION_WITH_HARD_LIMIT = 2
LAST_VERSION_DOWN_CONVERTED = 3
_LAST_VERSION_WITHOUT_STORAGE_ERROR = 5
_FIRST_VERSION_WITH_ZSTD = 10
_FIRST_WITH_RACKS = 11
_NO_EPOCH = -1
_NO_TOPICS: frozenset[str | bytes] = frozenset()
MANY_TARGETS = 32
"""A fetch that names more partitions than this, or whose session has more to read, is answered in steps."""


class ReadParams:
    """Parameters common to all partitions of a request."""

    __slots__ = ("find_nearer", "guard", "is_incremental", "isolation", "max_bytes", "min_bytes", "version")

    def __init__(
        self,
        version: int,
        isolation: FetchIsolation,
        max_bytes: int,
        min_bytes: int,
        find_nearer: Callable[[Partition, FetchTarget], int] | None,
    ) -> None:
        self.version = version
        self.isolation = isolation
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        self.is_incremental = False
        self.guard: FetchGuard | None = None
        """The authorizer's check of each partition; None without an authorizer."""
        self.find_nearer = find_nearer
        """Function that returns the id of the replica that the client should read from, -1 for this broker's replica.
        None if the client is not sent to other replicas."""


class ReadResult:
    """Result of one pass over the targets of a fetch."""

    __slots__ = ("must_answer", "partitions", "proof", "results", "total_bytes")

    def __init__(
        self,
        results: list[Result],
        total_bytes: int,
        must_answer: bool,
        proof: Deferred[None] | None,
        partitions: list[Partition | None],
    ) -> None:
        self.results = results
        self.partitions = partitions
        """The partition of each result; None if it was not found."""
        self.total_bytes = total_bytes
        self.must_answer = must_answer
        """Whether the client must be answered now: an error, a diverging epoch or a nearer replica."""
        self.proof = proof
        """A running check of an index file; some partition cannot be read before it ends. None if there is none."""

    def is_enough(self, min_bytes: int) -> bool:
        """Return whether a request that may wait can be answered now. An empty result is not sent while ``proof``
        runs."""
        return self.must_answer or (self.total_bytes >= min_bytes and (self.total_bytes > 0 or self.proof is None))


def handle(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse] | Steps[FetchResponse | Deferred[FetchResponse]]:
    """Read the partitions, and wait if there are fewer than ``min_bytes`` to read.

    Raises FetchSessionIdNotFoundError, InvalidFetchSessionEpochError, FetchSessionTopicIdError.
    """
    if broker.replica_manager.roles is not None and max(request.replica_id, request.replica_state.replica_id) >= 0:
        from tidelog.broker.handlers.replica_fetch import answer_replica

        return answer_replica(broker, context, request)
    if names_many(request):
        from tidelog.broker.handlers.long_fetch import fetch_many  # imported late: few clients fetch so many

        return fetch_many(broker, context, request)
    fetch_context = broker.fetch_sessions.context_for(context.api_version, request)
    params = read_params(broker, context, request, fetch_context)
    targets = fetch_context.targets
    if len(targets) > MANY_TARGETS:
        return _fetch_in_steps(broker, context, fetch_context, params, request.max_wait_ms)
    reading = PartitionRead(broker, params, True)
    reading.add(targets)
    read = reading.result()
    if reading.is_unopened or (read.proof is not None and not read.is_enough(params.min_bytes)):
        release_results(read.results)
        return _fetch_in_steps(broker, context, fetch_context, params, request.max_wait_ms)
    if read.total_bytes >= params.min_bytes or read.must_answer or request.max_wait_ms <= 0 or not targets:
        broker.metrics.bytes_out.count += read.total_bytes
        if params.version <= LAST_VERSION_DOWN_CONVERTED and read.total_bytes:
            return converted_response(broker, fetch_context, params, read)
        response = build_response(fetch_context, read.results)
        return with_endpoints(broker, context, read, response) if read.must_answer else response
    release_results(read.results)
    return DelayedFetch(broker, context, fetch_context, params).park(request.max_wait_ms)


def _fetch_in_steps(
    broker: Broker, client: RequestContext, context: FetchContext, params: ReadParams, max_wait_ms: int
) -> Steps[FetchResponse | Deferred[FetchResponse]]:
    from tidelog.broker.handlers.long_fetch import fetch_in_steps

    return fetch_in_steps(broker, client, context, params, max_wait_ms)


def names_many(request: FetchRequest) -> bool:
    """Return whether a request names more partitions than one turn of the loop can handle."""
    topics, forgotten = request.topics, request.forgotten_topics_data
    if len(topics) == 1 and not forgotten:
        return len(topics[0].partitions) > MANY_TARGETS
    count = 0
    for topic in topics:
        count += len(topic.partitions)
    for gone in forgotten:
        count += len(gone.partitions)
    return count > MANY_TARGETS


def read_params(
    broker: Broker, context: RequestContext, request: FetchRequest, fetch_context: FetchContext
) -> ReadParams:
    """Read the parameters of a request that concern all of its partitions."""
    authorizer, guard = broker.authorizer, context.fetch_guard
    if authorizer is not None and (guard is None or request.replica_id >= 0 or request.replica_state.replica_id >= 0):
        guard = authorizer.fetch_guard(broker.metadata, context, request)
    max_bytes = min(request.max_bytes, broker.config.get_int("fetch.max.bytes"))
    isolation = _COMMITTED if request.isolation_level == _READ_COMMITTED else _HIGH_WATERMARK
    has_nearer = request.rack_id and broker.replica_manager.roles is not None
    find_nearer = _find_nearer(broker, context, request) if has_nearer else None
    params = ReadParams(context.api_version, isolation, max_bytes, min(request.min_bytes, max_bytes), find_nearer)
    params.is_incremental, params.guard = fetch_context.is_incremental, guard
    return params


def _find_nearer(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> Callable[[Partition, FetchTarget], int] | None:
    from tidelog.broker.handlers.nearer_replica import find_nearer  # a lone node has no other replica

    return find_nearer(broker, context, request.rack_id)


def error_response(request: FetchRequest, error: KafkaError) -> FetchResponse:
    """Answer with the error at the top, and for each named partition, since versions before 7 have no error at the
    top."""
    responses = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                PartitionData(partition_index=asked.partition, error_code=error.code, high_watermark=-1, records=b"")
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    if request.session_epoch > 0:
        responses = []  # a session error concerns no partition: the client ends the session
    return FetchResponse(error_code=error.code, responses=responses)


class DelayedFetch:
    """A fetch that waits for records, as an operation of the purgatory."""

    __slots__ = ("_broker", "_client", "_context", "_deferred", "_params")

    def __init__(self, broker: Broker, client: RequestContext, context: FetchContext, params: ReadParams) -> None:
        self._broker = broker
        self._client = client
        self._context = context
        self._params = params
        self._deferred: Deferred[FetchResponse] = Deferred()

    def park(self, max_wait_ms: int) -> Deferred[FetchResponse]:
        """Park the fetch under its partitions, for ``max_wait_ms`` at most."""
        partition = self._broker.replica_manager.partition
        partition_by_id = self._broker.replica_manager.partition_by_id
        keys = [
            partition(target.topic, target.index) if target.topic else partition_by_id(target.topic_id, target.index)
            for target in self._context.targets
        ]
        return self._broker.purgatory.park_answer(self, keys, max_wait_ms, self._deferred)

    def try_complete(self) -> bool:
        """Read again, and answer if there are ``min_bytes`` or the answer cannot wait."""
        read = read_targets(self._broker, self._context.targets, self._params)
        if read.total_bytes < self._params.min_bytes and not read.must_answer:
            release_results(read.results)
            return False
        self._answer(read)
        return True

    def expire(self) -> None:
        """Answer with the records that can be read now."""
        self._answer(read_targets(self._broker, self._context.targets, self._params))

    def _answer(self, read: ReadResult) -> None:
        self._broker.metrics.bytes_out.count += read.total_bytes
        if self._params.version <= LAST_VERSION_DOWN_CONVERTED and read.total_bytes:
            converted = converted_response(self._broker, self._context, self._params, read)
            if isinstance(converted, Deferred):
                converted.pass_to(self._deferred)
            else:
                self._deferred.complete(converted)
        else:
            response = build_response(self._context, read.results)
            self._deferred.complete(with_endpoints(self._broker, self._client, read, response))


def read_targets(broker: Broker, targets: list[FetchTarget], params: ReadParams) -> ReadResult:
    """Read each target in order. Once the response limit is used up, targets get no records. The results own their
    slices."""
    read = PartitionRead(broker, params)
    read.add(targets)
    return read.result()


class PartitionRead:
    """One pass over the targets of a fetch, or over some of them at a time.

    With ``in_turn`` the pass stops at a partition whose log a thread must open first, and sets ``is_unopened``.
    """

    __slots__ = (
        "_in_turn",
        "_limit",
        "_must_answer",
        "_params",
        "_partitions",
        "_proof",
        "_replica_manager",
        "_results",
        "_total",
        "is_unopened",
    )

    def __init__(self, broker: Broker, params: ReadParams, in_turn: bool = False) -> None:
        self._replica_manager = broker.replica_manager
        self._params = params
        self._results: list[Result] = []
        self._partitions: list[Partition | None] = []
        self._limit = params.max_bytes
        self._total = 0
        self._must_answer = False
        self._proof: Deferred[None] | None = None
        self._in_turn = in_turn
        self.is_unopened = False

    def result(self) -> ReadResult:
        """Return what was read so far."""
        return ReadResult(self._results, self._total, self._must_answer, self._proof, self._partitions)

    def add(self, targets: list[FetchTarget]) -> None:
        """Read more targets."""
        params, replica_manager = self._params, self._replica_manager
        results, partitions = self._results, self._partitions
        limit, total, must_answer = self._limit, self._total, self._must_answer
        one_message = params.version > _LAST_VERSION_WITH_HARD_LIMIT
        guard = params.guard
        readable = _NO_TOPICS if guard is None else guard.readable()
        for target in targets:
            partition = None
            try:
                if guard is not None and (target.topic or target.topic_id) not in readable and guard.refuses(target):
                    raise TopicAuthorizationFailedError
                if target.topic:
                    partition = replica_manager.partition(target.topic, target.index)
                else:
                    partition = replica_manager.partition_by_id(target.topic_id, target.index)
                if self._in_turn and partition.when_open() is not None:
                    self.is_unopened = True
                    break
                data = read_partition(partition, target, params, limit, one_message and not total)
            except KafkaError as error:
                data = self._read_as_follower(partition, target, limit, error, one_message=not total)
                must_answer = must_answer or (data is not None and data.error_code != NONE)
            if data is None:
                continue
            records = data.records
            size = records.size if records.__class__ is TransferableRecords else len(records or b"")
            if size:
                total += size
                limit = limit - size if limit > size else 0
            elif (target.last_fetched_epoch != _NO_EPOCH and data.diverging_epoch.epoch != _NO_EPOCH) or (
                params.find_nearer is not None and data.preferred_read_replica != NO_REPLICA
            ):
                must_answer = True
            elif partition is not None and partition.proof is not None:
                self._proof = partition.proof
            results.append((target, data))
            partitions.append(partition)
        self._limit, self._total, self._must_answer = limit, total, must_answer

    def _read_as_follower(
        self, partition: Partition | None, target: FetchTarget, limit: int, error: KafkaError, *, one_message: bool
    ) -> PartitionData | None:
        """Read this broker's replica of a partition that another broker leads (KIP-392). If that is impossible, return
        the response's entry for the error."""
        params = self._params
        if (
            isinstance(error, NotLeaderOrFollowerError)
            and partition is not None
            and params.version >= _FIRST_WITH_RACKS
        ):
            try:
                return read_partition(partition, target, params, limit, one_message, True)
            except KafkaError as failure:
                error = failure
        return failed_partition(partition, target, params.version, error)


def read_partition(
    partition: Partition,
    target: FetchTarget,
    params: ReadParams,
    limit: int,
    one_message: bool,
    by_follower: bool = False,
) -> PartitionData | None:
    """Read one partition's part of the response; None if an incremental response omits it because nothing changed.

    Raises UnsupportedCompressionTypeError, and what ``offsets``, ``divergence`` and ``read`` of ``Partition`` raise.
    """
    epoch = target.current_leader_epoch
    offsets = partition.offsets(epoch if epoch > _NO_EPOCH else _NO_EPOCH, by_follower=by_follower)
    committed = params.isolation is _COMMITTED
    data = blank(PartitionData)
    data.partition_index = target.index
    data.high_watermark, data.last_stable_offset, data.log_start_offset, _ = offsets
    data.records = b""
    if not committed:
        data.aborted_transactions = None
    if params.find_nearer is not None and not by_follower:
        data.preferred_read_replica = params.find_nearer(partition, target)
        if data.preferred_read_replica != NO_REPLICA:
            return data
    if target.last_fetched_epoch != _NO_EPOCH:
        diverging = partition.divergence(target.last_fetched_epoch, target.fetch_offset)
        if diverging is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
            return data
    if params.version < _FIRST_VERSION_WITH_ZSTD and partition.config.compression_type == CompressionType.ZSTD:
        raise UnsupportedCompressionTypeError
    if target.fetch_offset == (data.last_stable_offset if committed else data.high_watermark):
        known = target.sent_high_watermark == data.high_watermark
        return (
            None if params.is_incremental and known and target.sent_log_start_offset == data.log_start_offset else data
        )
    info = partition.read(
        target.fetch_offset,
        min(target.max_bytes, limit),
        isolation=params.isolation,
        min_one_message=one_message,
        by_follower=by_follower,
    )
    if info.aborted_transactions:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in info.aborted_transactions
        ]
    if info.first_entry_incomplete and params.version > _LAST_VERSION_WITH_HARD_LIMIT:
        release_records(info.records)
    else:
        data.records = info.records
    return data


def converted_response(
    broker: Broker, context: FetchContext, params: ReadParams, read: ReadResult
) -> FetchResponse | Deferred[FetchResponse]:
    """Convert the response to the format of clients from before 0.11; in a thread when there is much to convert."""
    from tidelog.broker.replica.fetching.down_conversion import Conversion, convert_all, fits_turn

    converting: list[PartitionData] = []
    conversions: list[Conversion] = []
    # The partitions that were read are used, not looked up again: another topic may have the name by now.
    for partition, (target, data) in zip(read.partitions, read.results, strict=True):
        if data.records:
            assert partition is not None, "only a partition that was found has records"
            records = cast(TransferableRecords, data.records)
            converting.append(data)
            offset, max_bytes, epoch = target.fetch_offset, target.max_bytes, partition.leader_epoch
            conversions.append(
                Conversion(partition, records, params.version, offset, params.isolation, max_bytes, epoch)
            )

    def fill(converted: list[bytes | KafkaError]) -> FetchResponse:
        for data, records in zip(converting, converted, strict=True):
            if isinstance(records, KafkaError):
                data.error_code, data.records = code_for(records, params.version), b""
            else:
                data.records = records
        return build_response(context, read.results)

    if fits_turn(conversions):
        return fill(convert_all(conversions))
    work = run_in_thread(broker.loop, broker.record_executor, lambda: convert_all(conversions), broker.timers.turns)
    return work.map(fill)


def code_for(error: KafkaError, version: int) -> int:
    """Return an error's code; clients that do not know a storage error get one that they know how to retry."""
    if version <= _LAST_VERSION_WITHOUT_STORAGE_ERROR and error.code == KafkaStorageError.code:
        return NotLeaderOrFollowerError.code
    return error.code


def failed_partition(
    partition: Partition | None, target: FetchTarget, version: int, error: KafkaError
) -> PartitionData:
    """Build the response's entry for a partition with an error."""
    code = code_for(error, version)
    data = PartitionData(partition_index=target.index, error_code=code, high_watermark=-1, records=b"")
    if partition is not None:
        data.aborted_transactions = None
    if partition is not None and isinstance(error, FencedLeaderEpochError):
        data.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
    return data


def build_response(context: FetchContext, results: list[Result]) -> FetchResponse:
    """Build the response, partitions grouped by topic in the order they were read."""
    response = blank(FetchResponse)
    response.session_id = context.finish(results)
    add_results(response, results)
    return response


def add_results(response: FetchResponse, results: list[Result]) -> None:
    """Add the next partitions to a response."""
    responses = response.responses
    last = responses[-1] if responses else None
    for target, data in results:
        if last is None or last.topic != target.topic or last.topic_id != target.topic_id:
            last = blank(FetchableTopicResponse)
            last.topic, last.topic_id = target.topic, target.topic_id
            responses.append(last)
        last.partitions.append(data)


def with_endpoints(broker: Broker, client: RequestContext, read: ReadResult, response: FetchResponse) -> FetchResponse:
    """Add the endpoints of leaders that errors name (KIP-951, v16+), which saves the client a Metadata request."""
    if read.must_answer:
        for target, data in read.results:
            if data.error_code in LEADER_ERRORS and data.current_leader.leader_id == NO_LEADER:
                leader = leader_of(broker, target.topic, target.topic_id, target.index)
                data.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
        response.node_endpoints = [
            NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in endpoints_of(broker, client, (data.current_leader.leader_id for _, data in read.results))
        ]
    return response


def release_results(results: list[Result]) -> None:
    """Release slices that are not sent."""
    for _, data in results:
        release_records(data.records)


def release_records(records: object) -> None:
    """Release a slice that is not sent."""
    if isinstance(records, TransferableRecords):
        records.release()
