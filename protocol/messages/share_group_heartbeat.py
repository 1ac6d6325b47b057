"""ShareGroupHeartbeat (key 76): join, stay in and leave a share group (KIP-932).

v0 was early access in Kafka 4.0; later releases do not serve it.
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, nullable_struct, string, uuid


class ShareGroupHeartbeatRequest(Message, api_key=76, versions="1", flexible="0+"):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ShareGroupHeartbeatResponse(Message, api_key=76, versions="1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nullable_struct(Assignment, nullable="0+")
