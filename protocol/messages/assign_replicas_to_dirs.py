"""AssignReplicasToDirs (key 73): a broker reports the log directories of its replicas (KIP-858)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, int64, uuid


class PartitionData(Struct):
    partition_index: int = int32()


class TopicData(Struct):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class DirectoryData(Struct):
    id: bytes = uuid()
    topics: list[TopicData] = array(TopicData)


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    directories: list[DirectoryData] = array(DirectoryData)


class PartitionDataResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TopicDataResponse(Struct):
    topic_id: bytes = uuid()
    partitions: list[PartitionDataResponse] = array(PartitionDataResponse)


class DirectoryDataResponse(Struct):
    id: bytes = uuid()
    topics: list[TopicDataResponse] = array(TopicDataResponse)


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    directories: list[DirectoryDataResponse] = array(DirectoryDataResponse)
