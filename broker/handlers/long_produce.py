"""Produce requests that take longer than a turn of the loop: their partitions are appended one by one, in steps.

Records whose validation takes longer than a turn are validated in a thread. Meanwhile the topic may be deleted, and
other producers may append. So the partition is then looked up again, and everything but the records is checked again.
"""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.produce import (
    FIRST_VERSION_WITH_IDS,
    TRANSACTIONS,
    Progress,
    answer_of,
    append,
    check_records,
    handle,
    note_failure,
)
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import run_isolated
from tidelog.log.records.work_budget import TooMuchForTurnError, WorkBudget
from tidelog.log.validation.relocation import StaleOffsetsError
from tidelog.log.validation.result import ValidationResult
from tidelog.protocol.errors import KafkaError, RequestTimedOutError
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_MERGED_PER_STEP = 256
_MAX_VALIDATIONS = 8
"""Largest number of validations of one partition's records. Compressed messages of magic 0 are validated again if
others appended meanwhile: the offsets inside them cannot be changed without compressing them again."""


def append_after_import(broker: Broker, context: RequestContext, request: ProduceRequest) -> Steps[Any]:
    """Append into a transaction once the check of transactions is imported. Raises what :func:`handle` raises."""
    _copy_records(context, request)
    yield from broker.imports.wait_until_loaded(TRANSACTIONS)
    answer = handle(broker, context, request)
    return (yield from answer) if isinstance(answer, GeneratorType) else answer


def append_in_steps(
    broker: Broker, context: RequestContext, request: ProduceRequest, progress: Progress
) -> Steps[ProduceResponse | Deferred[ProduceResponse] | None]:
    """Append the rest of a request in steps, from copies of the records that outlive the receive buffer."""
    _copy_records(context, request)
    return _append_each(broker, context, request, progress)


def _copy_records(context: RequestContext, request: ProduceRequest) -> None:
    """Copy the records, if the frame is valid only in this turn."""
    if context.owns_frame:
        return
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None if data.records is None else memoryview(bytearray(data.records))
    context.owns_frame = True


def _append_each(
    broker: Broker, context: RequestContext, request: ProduceRequest, progress: Progress
) -> Steps[ProduceResponse | Deferred[ProduceResponse] | None]:
    """Append partition by partition; other connections are served in between. Raises CloseConnectionError."""
    response = ProduceResponse(responses=[], throttle_time_ms=context.throttle_ms)
    before = iter(progress.outcomes)
    for topic in (yield from _merge(request.topic_data)):
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[])
        response.responses.append(answer)
        for data in topic.partition_data:
            outcome = next(before, None)
            if outcome is None:
                yield None
                outcome = yield from _append_partition(broker, context, request, topic, data, progress)
            answer.partition_responses.append(outcome)
            data.records = None
    return answer_of(broker, context, request, response, progress)


def _merge(topics: list[TopicProduceData]) -> Steps[list[TopicProduceData]]:
    """Merge entries of the same topic and partition: only the last entry's records are appended, as in Kafka. Kafka's
    clients send no such request.
    """
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


def _append_partition(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
    progress: Progress,
) -> Steps[PartitionProduceResponse]:
    """Append one partition's records; if that takes longer than a turn, a thread validates them first."""
    version, error = context.api_version, KafkaError()
    left = progress.budget.left
    try:
        return append(broker, context, request, topic, data, progress)
    except TooMuchForTurnError:
        pass
    for _ in range(_MAX_VALIDATIONS):
        progress.budget.restore(left)  # the same records count once
        try:
            validated = yield from _validate_in_thread(broker, version, topic, data, progress.budget)
        except KafkaError as refused:
            return note_failure(progress, request, data, version, refused)
        try:
            return append(broker, context, request, topic, data, progress, validated)
        except StaleOffsetsError:
            error = RequestTimedOutError("other producers append faster than these records can be validated")
    return note_failure(progress, request, data, version, error)


def _validate_in_thread(
    broker: Broker, version: int, topic: TopicProduceData, data: PartitionProduceData, budget: WorkBudget
) -> Steps[ValidationResult]:
    """Validate one partition's records in a thread, and give them the form in which they are stored. Raises KafkaErrors
    of all kinds."""
    if version < FIRST_VERSION_WITH_IDS:
        partition = broker.replica_manager.partition(topic.name, data.index)
    else:
        partition = broker.replica_manager.partition_by_id(topic.topic_id, data.index)
    yield partition.when_open()
    records, _ = check_records(data.records, version)
    budget.enter_turn(in_turn=False)
    try:
        validation = partition.validation(records, budget)
        validated = run_in_thread(broker.loop, broker.record_executor, validation, broker.timers.turns)
        yield validated
    finally:
        budget.enter_turn(in_turn=True)
    result: ValidationResult = run_isolated(validated.result)
    return result
