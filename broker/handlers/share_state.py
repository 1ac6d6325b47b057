"""Answers of the share coordinator to other brokers: the APIs 83 to 87, whose messages are alike (KIP-932)."""

from __future__ import annotations

from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.share_state.calls import CALLS, NO_STATE, Call
from tidelog.broker.coordinator.share_state.coordinator import coordinator_key
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred, deferred_error
from tidelog.broker.loop.steps import Steps, apply_each, strip_traceback, take_each, wait_for
from tidelog.broker.share.config import check_enabled
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, NotCoordinatorError, UnknownTopicOrPartitionError

Outcomes = list[tuple[int, Deferred[Any]]]

READS = (ApiKey.READ_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)


def serve_share_state(broker: Broker, api: ApiKey, request: Any) -> Steps[Any]:
    """Call the share coordinator for each share partition of a request, one in each step; the answer is sent when all
    changes are committed.

    A state is read once, even if it is named several times: a short request cannot ask for a huge response.
    """
    check_enabled(broker)
    call = CALLS[api]
    begun = yield from begin_calls(broker, api, request)
    results = []
    for topic, outcomes in take_each(begun):
        partitions = []
        for partition, outcome in take_each(outcomes):
            partitions.append((yield from build_result(call, partition, outcome)))
            yield None
        results.append(call.topic_result(topic_id=topic.topic_id, partitions=partitions))
        yield None
    return call.response(results=results)


def begin_calls(broker: Broker, api: ApiKey, request: Any) -> Steps[list[tuple[Any, Outcomes]]]:
    """Begin the coordinator's calls, and return each topic with the outcomes of its partitions."""
    call = CALLS[api]
    seen: set[StateKey] = set()
    begun = []
    for topic in request.topics:
        outcomes: Outcomes = []
        for asked in topic.partitions:
            yield None
            key = StateKey(request.group_id, bytes(topic.topic_id), asked.partition)
            if api in READS and key in seen:
                continue
            seen.add(key)
            yield opening_of(broker, key)
            outcomes.append((asked.partition, begin_call(broker, call, key, asked)))
        begun.append((topic, outcomes))
        yield None
    return begun


def opening_of(broker: Broker, key: StateKey) -> Deferred[None] | None:
    """Begin to open the log with the state of a share partition; None if it is open, or another broker leads it."""
    share = coordinators_of(broker).share
    return share.when_open(key) if share.runtime.is_here(coordinator_key(key)) else None


def begin_call(broker: Broker, call: Call, key: StateKey, asked: Any) -> Deferred[Any]:
    """Make the coordinator's call for one share partition; the Deferred has its result or its error."""
    share = coordinators_of(broker).share
    try:
        if not share.runtime.is_here(coordinator_key(key)):
            raise NotCoordinatorError
        if call.needs_topic:
            check_partition(broker, key)
        return call.apply(share, key, asked)
    except KafkaError as error:
        return deferred_error(strip_traceback(error))


def check_partition(broker: Broker, key: StateKey) -> None:
    """Raise UnknownTopicOrPartitionError for a partition that the metadata do not have."""
    image = broker.metadata.topic_by_id(key.topic_id)
    if image is None or not 0 <= key.partition < image.partition_count:
        raise UnknownTopicOrPartitionError


def build_result(call: Call, partition: int, outcome: Deferred[Any]) -> Steps[Any]:
    """Build the result of one share partition, once it is settled."""
    try:
        state = yield from wait_for(outcome)
    except KafkaError as error:
        return call.result(partition=partition, error_code=error.code, error_message=error.message)
    return call.result(partition=partition, **call.fields_of(NO_STATE if state is None else state))


def build_error(api: ApiKey, request: Any, error: KafkaError) -> Steps[Any]:
    """Build a response with one error for every share partition, in steps."""
    call = CALLS[api]
    results = []
    for topic in request.topics:
        partitions = yield from apply_each(
            topic.partitions,
            lambda one: call.result(partition=one.partition, error_code=error.code, error_message=error.message),
        )
        results.append(call.topic_result(topic_id=topic.topic_id, partitions=partitions))
        yield None
    return call.response(results=results)
