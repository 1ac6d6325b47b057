"""ConsumerGroupHeartbeat (key 68): join, stay in and leave a consumer group, and receive assignments (KIP-848).

Member epoch 0 joins, -1 leaves, -2 leaves as a static member that will return. Null fields mean unchanged since the
last heartbeat. v1 adds subscription by regular expression, and members choose their own id (KIP-1082).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, nullable_struct, string, uuid


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+", default=None)


class TopicPartitionsResponse(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class Assignment(Struct):
    topic_partitions: list[TopicPartitionsResponse] = array(TopicPartitionsResponse)


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nullable_struct(Assignment, nullable="0+")
