"""Produce: append each partition's records, and answer with their first offset.

v0-1 carry message sets of magic 0, v2 magic 1, v3+ one batch of magic 2; v7+ may use zstd; the answer from v8 on names
the records at fault (KIP-467); v13 has topics by id. acks=0 is never answered: an error closes the connection, so that
the client asks for metadata again. With one replica, acks=-1 waits for the same as acks=1, but is refused if
min.insync.replicas is above 1.

    one partition, or few small ones   appended in the turn in which the request came; if that takes SLICE_MS, the rest
                                       in steps
    many partitions, or many bytes     in steps, one partition in each
    records that take longer than a turn (``tidelog.log.records.work_budget``)
                                       validated in a thread, then appended on the loop

Between steps a topic may be deleted, and other producers may append. So after the validation in a thread the partition
is looked up again, and everything but the records is checked again. Each partition's records are appended together or
not at all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Acknowledgement, Deferred, when_all
from tidelog.broker.loop.steps import SLICE_MS, Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import EXPECTED_ERRORS, unexpected_failure
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.records.work_budget import TURN, TooMuchForTurnError, WorkBudget, one_batch_budget
from tidelog.log.unified_log import LogAppendInfo
from tidelog.log.validation.params import AppendOrigin, record_errors
from tidelog.log.validation.result import ValidationResult
from tidelog.log.validation.single_batch import attributes_of
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    TransactionalIdAuthorizationFailedError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.protocol.record.record_batch import (
    COMPRESSION_MASK,
    MAGIC_OFFSET,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_MASK,
    has_transactional_batch,
)
from tidelog.protocol.schema.engine import blank

API_KEY = ApiKey.PRODUCE
MIN_VERSION, MAX_VERSION = 0, 13
Request = ProduceRequest

_CLIENT = AppendOrigin.CLIENT
FIRST_VERSION_WITH_IDS = 13
_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_MAGIC_2 = 3
_FIRST_VERSION_WITH_STORAGE_ERROR = 4
_ZSTD = 4
TRANSACTIONS = "tidelog.broker.coordinator.produce_check"
"""Module with the check of transactions, which is imported when it is first needed."""
_ADMIN_CLIENT_ID = "__admin_client"
"""Client id of Kafka's tools, which alone may write to internal topics."""

Answer = ProduceResponse | Deferred[ProduceResponse] | Steps[Any] | None
Waits = list[tuple[PartitionProduceResponse, Deferred[None]]]
"""Answers of partitions, each with what it waits for: replicas, a sync, or the check of the transaction."""

TURN_PARTITIONS, TURN_BYTES = 64, 1024 * 1024
"""A request within both limits is appended in one turn of the loop, if its records allow it."""


class Progress:
    """Progress of a produce request: its budget of work, the answers so far, and what its response waits for."""

    __slots__ = ("asks_coordinator", "budget", "has_failed", "outcomes", "waits")

    def __init__(self, budget: WorkBudget) -> None:
        self.budget = budget
        self.outcomes: list[PartitionProduceResponse] = []
        """Answers of the first partitions, if the others are appended in steps."""
        self.waits: Waits = []
        self.has_failed = False
        self.asks_coordinator = False
        """Whether the answer waits for a transaction's coordinator: then the connection's next request waits, too."""


def handle(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    """Append the records. Returns the response, or None for acks=0; a Deferred if the answer waits for replicas, a sync
    or the check of a transaction; a generator if the work takes longer than a turn or waits for an import.

    Raises InvalidRequiredAcksError; CloseConnectionError when acks=0 and something failed.
    """
    topics = request.topic_data
    is_ready = request.transactional_id is None or broker.imports.is_loaded(TRANSACTIONS)
    if is_ready and len(topics) == 1 and len(topics[0].partition_data) == 1:
        return handle_one(broker, context, request)
    if request.acks not in (1, -1, 0):
        raise InvalidRequiredAcksError
    if not is_ready:
        from tidelog.broker.handlers.long_produce import append_after_import

        return append_after_import(broker, context, request)
    if context.frame_bytes <= TURN_BYTES and _are_few(topics):
        return _append_few(broker, context, request)
    return _append_in_steps(broker, context, request, Progress(WorkBudget(in_turn=True)))


def handle_one(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    """Answer a request for one partition as ``handle`` does. Raises what ``handle`` raises."""
    if request.acks not in (1, -1, 0):
        raise InvalidRequiredAcksError
    if context.frame_bytes > TURN_BYTES:
        return _append_in_steps(broker, context, request, Progress(WorkBudget(in_turn=True)))
    progress = Progress(TURN)  # the topic's max.message.bytes bounds its one batch
    topic = request.topic_data[0]
    try:
        appended = append(broker, context, request, topic, topic.partition_data[0], progress)
    except TooMuchForTurnError:
        progress.budget = one_batch_budget()  # the thread's work need not fit into a turn, and this is its only batch
        return _append_in_steps(broker, context, request, progress)
    response, answer = blank(ProduceResponse), blank(TopicProduceResponse)
    answer.name, answer.topic_id = topic.name, topic.topic_id
    answer.partition_responses.append(appended)
    response.responses.append(answer)
    if request.acks and not (progress.waits or progress.has_failed):
        return response
    return answer_of(broker, context, request, response, progress)


def _append_in_steps(
    broker: Broker, context: RequestContext, request: ProduceRequest, progress: Progress
) -> Steps[Any]:
    from tidelog.broker.handlers.long_produce import append_in_steps  # imported late: few requests are long

    return append_in_steps(broker, context, request, progress)


def error_response(request: ProduceRequest, error: KafkaError) -> ProduceResponse:
    """Build a response with one error for every partition."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, error_code=error.code, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _are_few(topics: list[TopicProduceData]) -> bool:
    """Return whether a request names few partitions, and each once."""
    partitions = 0
    for topic in topics:
        asked = topic.partition_data
        partitions += len(asked)
        if partitions > TURN_PARTITIONS or (len(asked) > 1 and len({data.index for data in asked}) < len(asked)):
            return False
    return len(topics) == 1 or len({(topic.name, topic.topic_id) for topic in topics}) == len(topics)


def _append_few(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    """Append a short request's records, each partition by itself. After SLICE_MS, or at records that take longer than a
    turn, go on in steps. Raises CloseConnectionError."""
    budget = WorkBudget(in_turn=True)
    progress, clock = Progress(budget), broker.timers.monotonic_ms
    until_ms, left = clock() + SLICE_MS, budget.left
    response = blank(ProduceResponse)
    try:
        for topic in request.topic_data:
            answer = blank(TopicProduceResponse)
            answer.name, answer.topic_id = topic.name, topic.topic_id
            response.responses.append(answer)
            answers = answer.partition_responses
            for data in topic.partition_data:
                left = budget.left
                if clock() >= until_ms:
                    raise TooMuchForTurnError
                answers.append(append(broker, context, request, topic, data, progress))
    except TooMuchForTurnError:
        budget.restore(left)
        progress.outcomes = [outcome for topic in response.responses for outcome in topic.partition_responses]
        return _append_in_steps(broker, context, request, progress)
    return answer_of(broker, context, request, response, progress)


def answer_of(
    broker: Broker, context: RequestContext, request: ProduceRequest, response: ProduceResponse, progress: Progress
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    """Return the response, a Deferred of it if it waits, or None for acks=0. Raises CloseConnectionError."""
    if request.acks == 0:
        if progress.has_failed:
            raise CloseConnectionError("a produce request with acks=0 failed")
        return None
    if progress.waits:
        _forget_records(request)
        return _when_committed(broker, context, response, progress)
    return _with_leaders(broker, context, response) if progress.has_failed else response


def _forget_records(request: ProduceRequest) -> None:
    """Drop the records, which are in the log: they would keep the connection's buffer while the answer waits."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None


def _with_leaders(broker: Broker, context: RequestContext, response: ProduceResponse) -> ProduceResponse:
    """Add leaders to the response for errors that need them; a lone node leads every partition."""
    if broker.peers is not None:
        from tidelog.broker.handlers.leaders import name_leaders

        name_leaders(broker, context, response)
    return response


def _when_committed(
    broker: Broker, context: RequestContext, response: ProduceResponse, progress: Progress
) -> Deferred[ProduceResponse]:
    """Return a Deferred of the response, which settles when all ``progress.waits`` have ended."""
    deferred: Deferred[ProduceResponse] = Deferred() if progress.asks_coordinator else Acknowledgement()
    waits, outstanding, version = progress.waits, len(progress.waits), context.api_version

    def settle(answer: PartitionProduceResponse, done: Deferred[None]) -> None:
        nonlocal outstanding
        try:
            done.result()
        except KafkaError as error:
            answer.error_code, answer.error_message, answer.base_offset = code_for(error, version), error.message, -1
            progress.has_failed = True
        outstanding -= 1
        if not outstanding and not deferred.abandoned:
            deferred.complete(_with_leaders(broker, context, response) if progress.has_failed else response)

    for answer, wait in waits:
        wait.on_done(partial(settle, answer), deferred.refuse)
    return deferred


def append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    progress: Progress,
    validated: ValidationResult | None = None,
) -> PartitionProduceResponse:
    """Append one partition's records and return the answer. What it waits for, or a failure, is noted in ``progress``.

    Raises CloseConnectionError, TooMuchForTurnError, StaleOffsetsError.
    """
    try:
        info, wait = _append_records(broker, context, request, topic, data, progress, validated)
    except KafkaError as error:
        return note_failure(progress, request, data, context.api_version, error)
    except EXPECTED_ERRORS:
        raise
    except Exception:  # noqa: BLE001 - unexpected_failure logs it; it must not fail the other partitions
        return note_failure(progress, request, data, context.api_version, unexpected_failure())
    answer = blank(PartitionProduceResponse)
    answer.index = data.index
    answer.base_offset, _, _, answer.log_append_time_ms, answer.log_start_offset, _, _, _ = info
    if wait is not None:
        progress.waits.append((answer, wait))
    return answer


def note_failure(
    progress: Progress, request: ProduceRequest, data: PartitionProduceData, version: int, error: KafkaError
) -> PartitionProduceResponse:
    """Note that a partition's records were not appended, and build the answer with the error. Transactional records
    without a transactional id get TRANSACTIONAL_ID_AUTHORIZATION_FAILED, even if something else is wrong, too.
    """
    progress.has_failed = True
    has_id = request.transactional_id is not None or version < _FIRST_VERSION_WITH_MAGIC_2
    if not has_id and has_transactional_batch(data.records, 1):  # of the first batch: a second one is refused
        error = TransactionalIdAuthorizationFailedError()
    return _build_error_answer(data.index, version, error)


def _append_records(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    progress: Progress,
    validated: ValidationResult | None,
) -> tuple[LogAppendInfo, Deferred[None] | None]:
    """Append one partition's records; return the log's result, and a Deferred if the answer has to wait for replicas, a
    sync or the check of the transaction.

    Raises KafkaErrors of all kinds, TooMuchForTurnError, StaleOffsetsError.
    """
    version, index = context.api_version, data.index
    manager = broker.replica_manager
    if version < FIRST_VERSION_WITH_IDS:
        partition = manager.partition(topic.name, index)
    else:
        partition = manager.partition_by_id(topic.topic_id, index)
    if partition.is_internal and context.client_id != _ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"Cannot append to internal topic {partition.topic_partition.topic}")
    records, attributes = check_records(data.records, version)
    wait = None
    if attributes & TRANSACTIONAL_MASK:
        wait = _check_transaction(broker, version, request.transactional_id, partition.topic_partition, records)
        progress.asks_coordinator |= wait is not None
    info = partition.append_records(records, request.acks, _CLIENT, progress.budget, validated)
    first_offset, last_offset, _, _, _, _, size, high_watermark = info
    metrics = broker.metrics
    metrics.bytes_in.count += size
    partition.bytes_in += size
    metrics.messages_in.count += last_offset - first_offset + 1
    if request.acks == 0:
        return info, None
    if last_offset >= high_watermark and last_offset >= partition.high_watermark:  # not yet committed
        committed = partition.when_acknowledged(last_offset, request.acks, request.timeout_ms)
        if committed is not None:
            wait = committed if wait is None else when_all((wait, committed), None)
    return info, wait


def _check_transaction(
    broker: Broker, version: int, transactional_id: str | None, partition: TopicPartition, records: memoryview
) -> Deferred[None] | None:
    """Check that a producer writes only into an open transaction of its own (KIP-890). Returns a Deferred if the check
    takes time.

    Raises TransactionalIdAuthorizationFailedError without an id, and what ``check_transactional_batch`` raises.
    """
    if transactional_id is None:
        raise TransactionalIdAuthorizationFailedError
    # Imported late: few producers have transactions.
    from tidelog.broker.coordinator.produce_check import check_transactional_batch

    checked = check_transactional_batch(broker, version, transactional_id, partition, records)
    return None if checked.done else checked


def check_records(records: memoryview | None, version: int) -> tuple[memoryview, int]:
    """Check that a request of this version may carry these records for one partition.

    Returns the records and the attributes of their batch, 0 for message sets. Raises InvalidRecordError,
    CorruptMessageError, UnsupportedCompressionTypeError, TransactionalIdAuthorizationFailedError.
    """
    if version < _FIRST_VERSION_WITH_MAGIC_2:
        if has_transactional_batch(records):
            raise TransactionalIdAuthorizationFailedError  # no coordinator would ever end the transaction
        return memoryview(b"") if records is None else records, 0
    attributes = attributes_of(records)
    if records is None or attributes < 0:
        raise _build_batch_error(records, version)
    if version < _FIRST_VERSION_WITH_ZSTD and attributes & COMPRESSION_MASK == _ZSTD:
        raise UnsupportedCompressionTypeError(
            "Produce requests with version 3 to 6 are not allowed to use ZStandard compression"
        )
    return records, attributes


def _build_batch_error(records: memoryview | None, version: int) -> KafkaError:
    """Build the error for records that are not one batch of magic 2."""
    if records is None or len(records) < RECORD_BATCH_OVERHEAD:
        return InvalidRecordError(
            f"Produce requests with version {version} must have at least one record batch per partition"
        )
    if records[MAGIC_OFFSET] > MAGIC_V2:
        return CorruptMessageError(f"Invalid magic found in record: {records[MAGIC_OFFSET]}")
    if records[MAGIC_OFFSET] != MAGIC_V2:
        return InvalidRecordError(
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2"
        )
    return InvalidRecordError(
        f"Produce requests with version {version} are only allowed to contain exactly one record batch per partition"
    )


def code_for(error: KafkaError, version: int) -> int:
    """Return an error's code; clients that do not know a storage error get one that they know how to retry."""
    if version < _FIRST_VERSION_WITH_STORAGE_ERROR and error.code == KafkaStorageError.code:
        return NotLeaderOrFollowerError.code
    return error.code


def _build_error_answer(index: int, version: int, error: KafkaError) -> PartitionProduceResponse:
    faults = [
        BatchIndexAndErrorMessage(batch_index=fault.batch_index, batch_index_error_message=fault.message)
        for fault in record_errors(error)
    ]
    return PartitionProduceResponse(
        index=index,
        error_code=code_for(error, version),
        base_offset=-1,
        record_errors=faults,
        error_message=error.message,
    )
