"""consumer_protocol."""

from __future__ import annotations

from protocol.schema import Message, Struct, array, binary, int32, string
from protocol.types import Buffer


class TopicPartition(Struct):
    topic: str = string("1+")
    partitions: list[int] = array(int32, "1+")


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = array(string)
    user_data: Buffer | None = binary(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


class TopicPartitionResponse(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[TopicPartitionResponse] = array(TopicPartitionResponse)
    user_data: Buffer | None = binary(nullable="0+", default=None)
