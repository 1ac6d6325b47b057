"""Produce: append each partition's records and say at which offset they begin.

v0-1 carry message sets of magic 0, v2 magic 1, v3+ exactly one or more batches of magic 2; v7+ may use zstd; v8+ answer
with the records at fault (KIP-467); v13 names topics by id. acks 0 is never answered: an error closes
the connection, so that the client asks for metadata again; 1 and -1 are the same with one replica.

    a partition, or few with little    appended in the turn in which the request came
    many partitions, many bytes        in steps, a partition in each
    records that take longer than a turn (``tidelog.log.records.work_budget``)
                                       validated in a thread, appended when the loop comes back to them

Between steps a topic may be deleted and other producers append: partitions are looked up and all but the records is
checked again after a thread. Each partition's records are appended at once or not at all.
"""

from __future__ import annotations

import struct
from functools import partial
from types import GeneratorType
from typing import Any, cast

from tidelog.broker.broker import Broker
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred, when_all
from tidelog.broker.loop.steps import Steps
from tidelog.broker.loop.threads import in_thread
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.appended_response import FIRST_VERSION as _FIRST_WITH_TEMPLATE
from tidelog.broker.requests.appended_response import encode_appended
from tidelog.broker.requests.context import Repeat, RequestContext
from tidelog.broker.requests.repeated_produce import repeated_produce
from tidelog.broker.requests.route import shielded
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.records.work_budget import TURN, TooMuchForTurnError, WorkBudget
from tidelog.log.unified_log import LogAppendInfo
from tidelog.log.validation.relocation import StaleOffsetsError
from tidelog.log.validation.validator import AppendOrigin, ValidationResult, record_errors
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
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
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
)

API_KEY = ApiKey.PRODUCE
MIN_VERSION, MAX_VERSION = 0, 13
Request = ProduceRequest

_CLIENT = AppendOrigin.CLIENT
_FIRST_VERSION_WITH_IDS = 13
_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_MAGIC_2 = 3
_FIRST_VERSION_WITH_STORAGE_ERROR = 4
_ZSTD = 4
_ATTRIBUTES_LOW_BYTE, _TRANSACTIONAL = 22, 0x10
_pack_offsets = struct.Struct(">qqq").pack
_LENGTH = struct.Struct(">i")
_LENGTH_OFFSET = 8
TRANSACTIONS = "tidelog.broker.coordinator.produce_check"
_ADMIN_CLIENT_ID = "__admin_client"
"""Kafka's tools write to internal topics under this client id; all others are kept out of them."""


Answer = ProduceResponse | bytes | Deferred[ProduceResponse] | Steps[Any] | None
Waits = list[tuple[PartitionProduceResponse, Deferred[None]]]
Outcome = LogAppendInfo | PartitionProduceResponse

TURN_PARTITIONS, TURN_BYTES = 64, 1024 * 1024
"""A request with no more of both is appended within one turn of the loop, if its records allow it."""
_MERGED_PER_STEP = 256
_MOST_VALIDATIONS = 8
"""Attempts to validate wrappers of magic 0 again because others appended meanwhile."""


class Progress:
    """Progress of a request of several partitions."""

    __slots__ = ("budget", "outcomes", "waits")

    def __init__(self, budget: WorkBudget) -> None:
        self.budget = budget
        self.outcomes: list[Outcome] = []
        self.waits: Waits = []


def handle(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    """Append; None for acks=0, the encoded response where one partition's records were appended, deferred where
    ``flush.messages`` asks for a sync before the acknowledgement, in steps where it takes longer than a turn.

    Raises InvalidRequiredAcksError; CloseConnectionError when acks=0 and something failed.
    """
    acks = request.acks
    if acks not in (1, -1, 0):
        raise InvalidRequiredAcksError
    if request.transactional_id is not None and not broker.imports.is_loaded(TRANSACTIONS):
        return _after_import(broker, context, request)
    topics = request.topic_data
    answer: Answer
    if len(topics) == 1 and len(topics[0].partition_data) == 1 and acks and context.api_version >= _FIRST_WITH_TEMPLATE:
        answer = _append_one(broker, context, request)
    elif context.frame_bytes <= TURN_BYTES and _are_few(topics):
        answer = _append_few(broker, context, request)
    else:
        answer = _append_in_steps(broker, context, request, Progress(WorkBudget(in_turn=True)))
    return answer


def _after_import(broker: Broker, context: RequestContext, request: ProduceRequest) -> Steps[Any]:
    """Append into a transaction once what knows of transactions is imported. Raises as :func:`handle` does."""
    _own_records(context, request)
    yield from broker.imports.loaded(TRANSACTIONS)
    answer = handle(broker, context, request)
    return (yield from answer) if isinstance(answer, GeneratorType) else answer


def repeat_of(
    broker: Broker, context: RequestContext, request: ProduceRequest, frame: memoryview, position: int
) -> Repeat | None:
    """Build the pattern of the connection's next requests, if they are like this one."""
    version = context.api_version
    if not request.topic_data:
        return None
    first = request.topic_data[0]
    topic = TopicProduceData(name=first.name, topic_id=first.topic_id)  # without the records, which do not live on
    index = first.partition_data[0].index if first.partition_data else -1

    def refused(error: KafkaError) -> ProduceResponse:
        return _refused(topic, index, version, error)

    return repeated_produce(broker, version, request, (frame, position), refused)


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


def _append_one(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    """The request that nearly all are: one partition, appended. Its response differs from the last one of the same
    partition in three numbers, so they are put into the bytes of that one: 0.4 µs in place of 2.4."""
    topic = request.topic_data[0]
    data = topic.partition_data[0]
    try:
        partition, info, wait = _append_records(broker, context, request, topic, data, TURN)
    except KafkaError as error:
        return _refused(topic, data.index, context.api_version, error)
    except TooMuchForTurnError:
        context.repeat = None  # the next request is likely to be such a one, too
        return _append_in_steps(broker, context, request, Progress(WorkBudget(in_turn=True)))
    template = partition.produce_responses.get(context.api_version)
    if template is None:
        template = partition.produce_responses[context.api_version] = _response_template(
            topic, data.index, context.api_version
        )
    if wait is not None:
        answer = _appended(data.index, info)
        topic_answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])
        return _when_committed(ProduceResponse(responses=[topic_answer]), [(answer, wait)])
    return template[0] + _pack_offsets(info.first_offset, info.log_append_time, info.log_start_offset) + template[1]


def _are_few(topics: list[TopicProduceData]) -> bool:
    """Return whether a request names few partitions, and each once."""
    partitions = 0
    for topic in topics:
        asked = topic.partition_data
        partitions += len(asked)
        if partitions > TURN_PARTITIONS or len({data.index for data in asked}) < len(asked):
            return False
    return len(topics) == 1 or len({(topic.name, topic.topic_id) for topic in topics}) == len(topics)


def _append_few(broker: Broker, context: RequestContext, request: ProduceRequest) -> Answer:
    """A short request: each partition by itself. Where all were appended and none waits for a sync, as nearly always,
    the response is put together from its numbers. Raises CloseConnectionError."""
    progress = Progress(WorkBudget(in_turn=True))
    waits, outcomes = progress.waits, progress.outcomes
    try:
        for topic in request.topic_data:
            for data in topic.partition_data:
                outcomes.append(_append(broker, context, request, topic, data, progress))
    except TooMuchForTurnError:
        return _append_in_steps(broker, context, request, progress)
    all_appended = not waits and all(outcome.__class__ is LogAppendInfo for outcome in outcomes)
    if request.acks == 0:
        if not all_appended:
            raise CloseConnectionError("a produce request with acks=0 failed")
        return None
    if all_appended and context.api_version >= _FIRST_WITH_TEMPLATE:
        return encode_appended(request.topic_data, cast("list[LogAppendInfo]", outcomes), context.api_version)
    left = iter(outcomes)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_described(data.index, next(left)) for data in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )
    return _when_committed(response, waits) if waits else response


def _append_in_steps(
    broker: Broker, context: RequestContext, request: ProduceRequest, progress: Progress
) -> Steps[ProduceResponse | Deferred[ProduceResponse] | None]:
    """Append the rest of a request in steps; the records outlive the frame from here on."""
    _own_records(context, request)
    return _append_each(broker, context, request, progress)


def _own_records(context: RequestContext, request: ProduceRequest) -> None:
    """Copy the records of a frame that does not live on."""
    if context.owns_frame:
        return
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None if data.records is None else memoryview(bytearray(data.records))
    context.owns_frame = True


def _append_each(
    broker: Broker, context: RequestContext, request: ProduceRequest, progress: Progress
) -> Steps[ProduceResponse | Deferred[ProduceResponse] | None]:
    """Append partition by partition and let others be served in between. Raises CloseConnectionError."""
    response = ProduceResponse(responses=[])
    before = iter(progress.outcomes)
    has_failed = False
    for topic in (yield from _merged(request.topic_data)):
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[])
        response.responses.append(answer)
        for data in topic.partition_data:
            outcome = next(before, None)
            if outcome is None:
                yield None
                outcome = yield from _append_patiently(broker, context, request, topic, data, progress)
            has_failed |= isinstance(outcome, PartitionProduceResponse)
            answer.partition_responses.append(_described(data.index, outcome))
            data.records = None
    if request.acks == 0:
        if has_failed:
            raise CloseConnectionError("a produce request with acks=0 failed")
        return None
    return _when_committed(response, progress.waits) if progress.waits else response


def _merged(topics: list[TopicProduceData]) -> Steps[list[TopicProduceData]]:
    """Each topic and partition once; of records for the same one the last count, as in Kafka, whose clients send no
    such request."""
    merged: dict[tuple[str, bytes], dict[int, PartitionProduceData]] = {}
    for topic in topics:
        partitions = merged.setdefault((topic.name, topic.topic_id), {})
        for number, data in enumerate(topic.partition_data):
            if not number % _MERGED_PER_STEP:
                yield None
            partitions[data.index] = data
    return [
        TopicProduceData(name=name, topic_id=topic_id, partition_data=list(partitions.values()))
        for (name, topic_id), partitions in merged.items()
    ]


def _append_patiently(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    progress: Progress,
) -> Steps[Outcome]:
    """Append one partition's records, validated in a thread where they take longer than a turn."""
    version, error = context.api_version, KafkaError()
    try:
        return _append(broker, context, request, topic, data, progress)
    except TooMuchForTurnError:
        pass
    for _ in range(_MOST_VALIDATIONS):
        try:
            validated = yield from _validate_in_thread(broker, version, topic, data, progress.budget)
        except KafkaError as refused:
            return _failed(data.index, version, refused)
        try:
            return _append(broker, context, request, topic, data, progress, validated)
        except StaleOffsetsError:
            error = RequestTimedOutError("other producers append faster than these records can be validated")
    return _failed(data.index, version, error)


def _validate_in_thread(
    broker: Broker, version: int, topic: TopicProduceData, data: PartitionProduceData, budget: WorkBudget
) -> Steps[ValidationResult]:
    """One partition's records as they will be stored. Raises KafkaErrors of all kinds."""
    if version >= _FIRST_VERSION_WITH_IDS:
        partition = broker.replica_manager.partition_by_id(topic.topic_id, data.index)
    else:
        partition = broker.replica_manager.partition(topic.name, data.index)
    yield partition.opening()
    records = check_records(data.records, version)
    budget.enter_turn(in_turn=False)
    try:
        validation = partition.validation(records, budget)
        validated = in_thread(broker.loop, broker.record_executor, validation, broker.timers.turns)
        yield validated
    finally:
        budget.enter_turn(in_turn=True)
    return shielded(validated.result)


def _refused(topic: TopicProduceData, index: int, version: int, error: KafkaError) -> ProduceResponse:
    failed = _failed(index, version, error)
    answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[failed])
    return ProduceResponse(responses=[answer])


def _when_committed(response: ProduceResponse, waits: Waits) -> Deferred[ProduceResponse]:
    """The response once every partition's records are committed; those that are not get their partition's error."""
    deferred: Deferred[ProduceResponse] = Deferred()
    outstanding = len(waits)

    def settle(answer: PartitionProduceResponse, done: Deferred[None]) -> None:
        nonlocal outstanding
        try:
            done.result()
        except KafkaError as error:
            answer.error_code, answer.error_message, answer.base_offset = error.code, error.message, -1
        outstanding -= 1
        if not outstanding and not deferred.abandoned:
            deferred.complete(response)

    for answer, wait in waits:
        wait.on_done(partial(settle, answer))
    return deferred


def _response_template(topic: TopicProduceData, index: int, version: int) -> tuple[bytes, bytes]:
    """Return the bytes around the three offsets in the response to a request for one partition."""
    marks = (0x1122334455667701, 0x1122334455667702, 0x1122334455667703)
    partition = PartitionProduceResponse(
        index=index, base_offset=marks[0], log_append_time_ms=marks[1], log_start_offset=marks[2]
    )
    answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])
    before, _, after = ProduceResponse(responses=[answer]).encode(version).partition(_pack_offsets(*marks))
    return before, after


def _append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    progress: Progress,
    validated: ValidationResult | None = None,
) -> Outcome:
    """Append one partition's records: what was appended, or the answer where that is an error or has to wait for a sync
    (then it is noted in ``progress``). Raises CloseConnectionError, TooMuchForTurnError, StaleOffsetsError."""
    try:
        _, info, wait = shielded(_append_records, broker, context, request, topic, data, progress.budget, validated)
    except KafkaError as error:
        return _failed(data.index, context.api_version, error)
    if wait is not None:
        answer = _appended(data.index, info)
        progress.waits.append((answer, wait))
        return answer
    return info


def _described(index: int, outcome: Outcome) -> PartitionProduceResponse:
    return outcome if isinstance(outcome, PartitionProduceResponse) else _appended(index, outcome)


def _appended(index: int, info: LogAppendInfo) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time,
        log_start_offset=info.log_start_offset,
    )


def _append_records(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    budget: WorkBudget,
    validated: ValidationResult | None = None,
) -> tuple[Partition, LogAppendInfo, Deferred[None] | None]:
    """Append one partition's records; the Deferred is there where the answer waits until they are committed.

    Raises KafkaErrors of all kinds, TooMuchForTurnError, StaleOffsetsError.
    """
    version = context.api_version
    if version >= _FIRST_VERSION_WITH_IDS:
        partition = broker.replica_manager.partition_by_id(topic.topic_id, data.index)
    else:
        partition = broker.replica_manager.partition(topic.name, data.index)
    if partition.is_internal and context.client_id != _ADMIN_CLIENT_ID:
        raise InvalidTopicError(f"Cannot append to internal topic {partition.topic_partition.topic}")
    records = check_records(data.records, version)
    wait = None
    if version >= _FIRST_VERSION_WITH_MAGIC_2 and records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL:
        wait = _check_transaction(broker, version, request.transactional_id, partition.topic_partition, records)
    info = partition.append_records(records, request.acks, _CLIENT, budget, validated)
    metrics = broker.metrics
    metrics.bytes_in.count += info.size_bytes
    partition.bytes_in += info.size_bytes
    metrics.messages_in.count += info.last_offset - info.first_offset + 1
    if request.acks == 0:
        return partition, info, None
    if info.last_offset >= partition.high_watermark:
        committed = partition.when_committed(info.last_offset)
        wait = committed if wait is None else when_all((wait, committed), None)
    return partition, info, wait


def _check_transaction(
    broker: Broker, version: int, transactional_id: str | None, partition: TopicPartition, records: memoryview
) -> Deferred[None] | None:
    """Only into an open transaction of its own may a producer write (KIP-890). What to wait for, None if nothing.

    Raises TransactionalIdAuthorizationFailedError without an id, and what the coordinator raises.
    """
    if transactional_id is None:
        raise TransactionalIdAuthorizationFailedError
    from tidelog.broker.coordinator.produce_check import check_transactional_batch  # most producers need none

    checked = check_transactional_batch(broker, version, transactional_id, partition, records)
    return None if checked.done else checked


def check_records(records: memoryview | None, version: int) -> memoryview:
    """Check that a request of this version may carry these records for one partition.

    Raises InvalidRecordError, UnsupportedCompressionTypeError.
    """
    if version < _FIRST_VERSION_WITH_MAGIC_2:
        return memoryview(b"") if records is None else records
    if records is None or len(records) < RECORD_BATCH_OVERHEAD:
        raise InvalidRecordError(
            f"Produce requests with version {version} must have at least one record batch per partition"
        )
    if records[MAGIC_OFFSET] > MAGIC_V2:
        raise CorruptMessageError(f"Invalid magic found in record: {records[MAGIC_OFFSET]}")
    if records[MAGIC_OFFSET] != MAGIC_V2:
        raise InvalidRecordError(
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2"
        )
    if _LENGTH.unpack_from(records, _LENGTH_OFFSET)[0] != len(records) - LOG_OVERHEAD:
        raise InvalidRecordError(
            f"Produce requests with version {version} are only allowed to contain exactly one record batch per "
            "partition"
        )
    if version < _FIRST_VERSION_WITH_ZSTD and records[ATTRIBUTES_OFFSET + 1] & COMPRESSION_MASK == _ZSTD:
        raise UnsupportedCompressionTypeError(
            "Produce requests with version 3 to 6 are not allowed to use ZStandard compression"
        )
    return records


def _failed(index: int, version: int, error: KafkaError) -> PartitionProduceResponse:
    code = error.code
    if version < _FIRST_VERSION_WITH_STORAGE_ERROR and code == KafkaStorageError.code:
        code = NotLeaderOrFollowerError.code  # which these clients know how to retry
    faults = [
        BatchIndexAndErrorMessage(batch_index=fault.batch_index, batch_index_error_message=fault.message)
        for fault in record_errors(error)
    ]
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, record_errors=faults, error_message=error.message
    )
