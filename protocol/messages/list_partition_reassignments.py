"""ListPartitionReassignments (key 46): the reassignments in progress (KIP-455). Null topics ask for all."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, string


class ListPartitionReassignmentsTopics(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)


class OngoingTopicReassignment(Struct):
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
