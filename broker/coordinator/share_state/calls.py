"""Calls to share coordinators (APIs 83 to 87): a table of the messages of each API, which all have the same structure.

    request(group_id, topics(topic_id, partitions(partition, ...))) -> results(topic_id, partitions(partition, error))

A call is for one share partition: one partition of a topic, as one share group reads it. ``build_request`` builds one
request of several calls of a group, ``results_of`` returns the results in a response. ``Call.apply`` calls the
coordinator in this process. Source: KIP-932, KIP-1226.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.coordinator.share_state.spans import RecordState, Span
from tidelog.broker.coordinator.share_state.state import ShareState, StateKey, StateUpdate, decode_spans
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import NONE, InvalidRequestError, KafkaError, error_for_code
from tidelog.protocol.messages import delete_share_group_state as deletion
from tidelog.protocol.messages import initialize_share_group_state as initialization
from tidelog.protocol.messages import read_share_group_state as reading
from tidelog.protocol.messages import read_share_group_state_summary as summarizing
from tidelog.protocol.messages import write_share_group_state as writing
from tidelog.protocol.schema.fields import Message, Struct

if TYPE_CHECKING:
    from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator

MAX_CALL_BATCHES = 20_000
"""Largest number of state batches of one share partition that a request to this coordinator may have. It is twice what
brokers need to send, one batch for each record in flight (``persister.MAX_STATE_BATCHES_OF_ONE``)."""


class Call(NamedTuple):
    """The messages of one API, and how its requests are executed and its results converted.

    ``apply(coordinator, key, asked)`` makes the call that ``asked``, the part of a request for one share partition,
    describes. It raises KafkaErrors.
    """

    request: type[Any]
    topic: type[Any]
    response: type[Any]
    topic_result: type[Any]
    result: type[Any]
    apply: Callable[[ShareCoordinator, StateKey, Any], Deferred[Any]]
    value_of: Callable[[Any], ShareState | None]
    """Converts the result of a partition, from another broker, to a state; None if the API returns no state."""
    fields_of: Callable[[ShareState], dict[str, Any]]
    """Converts a state to the fields of a partition's result."""
    needs_topic: bool = True
    """Whether the call is refused if the share partition's topic does not exist. If False, a missing topic is not an
    error, but a missing state is."""


def written_of(partition: writing.PartitionData) -> StateUpdate:
    """Return the change that the part of a request for one partition describes."""
    return StateUpdate(
        partition.start_offset,
        partition.delivery_complete_count,
        partition.leader_epoch,
        decode_spans(partition.state_batches),
        partition.state_epoch,
    )


def _write(coordinator: ShareCoordinator, key: StateKey, asked: writing.PartitionData) -> Deferred[None]:
    """Write a change by the coordinator in this process. Raises KafkaErrors, also for more than MAX_CALL_BATCHES."""
    if len(asked.state_batches) > MAX_CALL_BATCHES:
        raise InvalidRequestError(
            f"{len(asked.state_batches)} state batches of one share partition; at most {MAX_CALL_BATCHES} are allowed"
        )
    return coordinator.write(key, written_of(asked))


def build_write_data(key: StateKey, written: StateUpdate) -> writing.PartitionData:
    """Build the part of a request that writes a change of one partition."""
    return writing.PartitionData(
        partition=key.partition,
        state_epoch=written.state_epoch,
        leader_epoch=written.leader_epoch,
        start_offset=written.start_offset,
        delivery_complete_count=written.delivery_complete_count,
        state_batches=[writing.StateBatch(**batch_fields(span)) for span in written.batches],
    )


def batch_fields(span: Span) -> dict[str, int]:
    """Return the fields of a state batch."""
    return {
        "first_offset": span.first,
        "last_offset": span.last,
        "delivery_state": int(stored_state(span.state)),
        "delivery_count": span.delivery_count,
    }


def stored_state(state: RecordState) -> RecordState:
    """Return the state in which records are sent. Acquired ones are sent as available: a new leader does not know their
    locks. Changes by this broker's share partitions have no acquired records (``Change.batches``)."""
    return RecordState.AVAILABLE if state is RecordState.ACQUIRED else state


def _read_fields(state: ShareState) -> dict[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [reading.StateBatch(**batch_fields(span)) for span in state.batches],
    }


def _summary_fields(state: ShareState) -> dict[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }


def _read_value(result: reading.PartitionResult) -> ShareState:
    spans = tuple(decode_spans(result.state_batches))
    return ShareState(result.start_offset, spans, state_epoch=result.state_epoch)


def _summary_value(result: summarizing.PartitionResult) -> ShareState:
    return ShareState(
        result.start_offset,
        delivery_complete_count=result.delivery_complete_count,
        state_epoch=result.state_epoch,
        leader_epoch=result.leader_epoch,
    )


NO_STATE = ShareState(-1)
"""The summary of a share partition without a state."""

CALLS = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Call(
        initialization.InitializeShareGroupStateRequest, initialization.InitializeStateData,
        initialization.InitializeShareGroupStateResponse, initialization.InitializeStateResult,
        initialization.PartitionResult,
        lambda coordinator, key, asked: coordinator.initialize(key, asked.start_offset, asked.state_epoch),
        lambda _: None, lambda _: {},
    ),
    ApiKey.READ_SHARE_GROUP_STATE: Call(
        reading.ReadShareGroupStateRequest, reading.ReadStateData, reading.ReadShareGroupStateResponse,
        reading.ReadStateResult, reading.PartitionResult,
        lambda coordinator, key, asked: coordinator.read_as_leader(key, asked.leader_epoch),
        _read_value, _read_fields, needs_topic=False,
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: Call(
        writing.WriteShareGroupStateRequest, writing.WriteStateData, writing.WriteShareGroupStateResponse,
        writing.WriteStateResult, writing.PartitionResult,
        _write,
        lambda _: None, lambda _: {}, needs_topic=False,
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: Call(
        deletion.DeleteShareGroupStateRequest, deletion.DeleteStateData, deletion.DeleteShareGroupStateResponse,
        deletion.DeleteStateResult, deletion.PartitionResult,
        lambda coordinator, key, _: coordinator.delete_one(key),
        lambda _: None, lambda _: {},
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Call(
        summarizing.ReadShareGroupStateSummaryRequest, summarizing.ReadStateSummaryData,
        summarizing.ReadShareGroupStateSummaryResponse, summarizing.ReadStateSummaryResult,
        summarizing.PartitionResult,
        lambda coordinator, key, _: coordinator.summary(key),
        _summary_value, _summary_fields,
    ),
}  # fmt: skip
"""Calls by API."""


def build_request(api: ApiKey, group_id: str, asked: Iterable[tuple[StateKey, Struct]]) -> Message:
    """Build the request for share partitions of one group."""
    call = CALLS[api]
    topics: dict[bytes, list[Struct]] = {}
    for key, partition in asked:
        topics.setdefault(key.topic_id, []).append(partition)
    listed = [call.topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]
    request: Message = call.request(group_id=group_id, topics=listed)
    return request


def results_of(api: ApiKey, group_id: str, answer: Any) -> dict[StateKey, ShareState | KafkaError | None]:
    """Return the result of each share partition in a response: a state, an error, or None."""
    return {
        StateKey(group_id, bytes(topic.topic_id), one.partition): CALLS[api].value_of(one)
        if one.error_code == NONE
        else error_for_code(one.error_code)(one.error_message or "")
        for topic in answer.results
        for one in topic.partitions
    }
