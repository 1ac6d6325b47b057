"""WriteShareGroupState (key 85): the leader of a partition stores what changed in a share group's state (KIP-932).

v1 delivery complete count (KIP-1226).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int8, int16, int32, int64, string, uuid


class WriteStateBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class WritePartition(Struct):
    partition: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32("1+", default=-1)
    state_batches: list[WriteStateBatch] = array(WriteStateBatch)


class WriteTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[WritePartition] = array(WritePartition)


class WriteShareGroupStateRequest(Message, api_key=85, versions="0-1", flexible="0+"):
    group_id: str = string()
    topics: list[WriteTopic] = array(WriteTopic)


class WritePartitionResult(Struct):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class WriteTopicResult(Struct):
    topic_id: bytes = uuid()
    partitions: list[WritePartitionResult] = array(WritePartitionResult)


class WriteShareGroupStateResponse(Message, api_key=85, versions="0-1", flexible="0+"):
    results: list[WriteTopicResult] = array(WriteTopicResult)
