"""InitializeShareGroupState (key 83): a group coordinator has the state of share partitions made (KIP-932)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, int64, string, uuid


class InitializePartition(Struct):
    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


class InitializeTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[InitializePartition] = array(InitializePartition)


class InitializeShareGroupStateRequest(Message, api_key=83, versions="0", flexible="0+"):
    group_id: str = string()
    topics: list[InitializeTopic] = array(InitializeTopic)


class InitializePartitionResult(Struct):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class InitializeTopicResult(Struct):
    topic_id: bytes = uuid()
    partitions: list[InitializePartitionResult] = array(InitializePartitionResult)


class InitializeShareGroupStateResponse(Message, api_key=83, versions="0", flexible="0+"):
    results: list[InitializeTopicResult] = array(InitializeTopicResult)
