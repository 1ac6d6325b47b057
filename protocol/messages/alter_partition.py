"""AlterPartition (key 56): a leader asks the active controller to change a set of in-sync replicas (KIP-497).

v1 adds the leader recovery state (KIP-704); v2 names topics by id (KIP-841); v3 names replicas with their broker
epochs, so that no earlier process of a broker joins the set (KIP-903).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int8, int16, int32, int64, string, uuid

RECOVERED, RECOVERING = 0, 1
"""Leader recovery states: after an unclean election a leader is recovering (KIP-704)."""


class BrokerState(Struct):
    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class PartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array(int32, "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32()


class TopicData(Struct):
    topic_name: str = string("0-1")
    topic_id: bytes = uuid("2+")
    partitions: list[PartitionData] = array(PartitionData)


class AlterPartitionRequest(Message, api_key=56, versions="0-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[TopicData] = array(TopicData)


class PartitionDataResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32()


class TopicDataResponse(Struct):
    topic_name: str = string("0-1")
    topic_id: bytes = uuid("2+")
    partitions: list[PartitionDataResponse] = array(PartitionDataResponse)


class AlterPartitionResponse(Message, api_key=56, versions="0-3", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicDataResponse] = array(TopicDataResponse)
