"""AlterPartition (key 56): a leader asks the active controller for another set of in-sync replicas (KIP-497).

v2 topics by id; v3 replicas with their broker epochs, so that no earlier process of a broker joins (KIP-903).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int8, int16, int32, int64, uuid

RECOVERED, RECOVERING = 0, 1
"""Leader recovery states: after an unclean election a leader is recovering (KIP-704)."""


class BrokerState(Struct):
    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class AlteredPartition(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array(int32, "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32()


class AlteredTopic(Struct):
    topic_id: bytes = uuid("2+")
    partitions: list[AlteredPartition] = array(AlteredPartition)


class AlterPartitionRequest(Message, api_key=56, versions="2-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[AlteredTopic] = array(AlteredTopic)


class PartitionAnswer(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32()


class TopicAnswer(Struct):
    topic_id: bytes = uuid("2+")
    partitions: list[PartitionAnswer] = array(PartitionAnswer)


class AlterPartitionResponse(Message, api_key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicAnswer] = array(TopicAnswer)
