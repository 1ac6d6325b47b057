"""DescribeProducers (key 61): the active producers of partitions, to find hanging transactions (KIP-664)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, int64, string


class TopicRequest(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    topics: list[TopicRequest] = array(TopicRequest)


class ProducerState(Struct):
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class TopicResponse(Struct):
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)
