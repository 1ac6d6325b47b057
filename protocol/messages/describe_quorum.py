"""DescribeQuorum (key 55): leader, voters and observers of the metadata quorum (KIP-595).

v1 adds times of last fetch and last catch-up (KIP-836); v2 adds error messages, nodes and directory ids (KIP-853).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, int64, string, uint16, uuid


class PartitionData(Struct):
    partition_index: int = int32()


class TopicData(Struct):
    topic_name: str = string()
    partitions: list[PartitionData] = array(PartitionData)


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    topics: list[TopicData] = array(TopicData)


class ReplicaState(Struct):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)


class PartitionDataResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+")
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class TopicDataResponse(Struct):
    topic_name: str = string()
    partitions: list[PartitionDataResponse] = array(PartitionDataResponse)


class Listener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class Node(Struct):
    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+")
    topics: list[TopicDataResponse] = array(TopicDataResponse)
    nodes: list[Node] = array(Node, "2+")
