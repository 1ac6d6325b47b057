"""AssignReplicasToDirs (key 73): a broker tells in which log directories its replicas lie (KIP-858)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, int64, uuid


class AssignedPartition(Struct):
    partition_index: int = int32()


class AssignedTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[AssignedPartition] = array(AssignedPartition)


class AssignedDirectory(Struct):
    id: bytes = uuid()
    topics: list[AssignedTopic] = array(AssignedTopic)


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    directories: list[AssignedDirectory] = array(AssignedDirectory)


class AssignedPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class AssignedTopicResult(Struct):
    topic_id: bytes = uuid()
    partitions: list[AssignedPartitionResult] = array(AssignedPartitionResult)


class AssignedDirectoryResult(Struct):
    id: bytes = uuid()
    topics: list[AssignedTopicResult] = array(AssignedTopicResult)


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    directories: list[AssignedDirectoryResult] = array(AssignedDirectoryResult)
