"""ListOffsets (key 2): the offset for a timestamp.

Special timestamps: -1 latest, -2 earliest, -3 the record with the largest timestamp (v7, KIP-734), -4 earliest on local
disk (v8, KIP-405), -5 latest in tiered storage (v9, KIP-1005), -6 earliest not yet uploaded (v11, KIP-1023).

v0 asks for up to ``max_num_offsets`` segment starts before a time and gets a list; from v1 there is one offset and its
timestamp. v2 adds isolation level and throttle time; v4 adds leader epochs (KIP-320); v6 is flexible; v10 adds
``timeout_ms`` for look-ups in remote storage (KIP-1075).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Struct):
    partition_index: int = int32()
    current_leader_epoch: int = int32("4+", default=-1)
    timestamp: int = int64()
    max_num_offsets: int = int32("0", default=1)


class ListOffsetsTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Message, api_key=2, versions="0-11", flexible="6+"):
    replica_id: int = int32()
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32("10+")


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    old_style_offsets: list[int] = array(int64, "0")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Message, api_key=2, versions="0-11", flexible="6+"):
    throttle_time_ms: int = int32("2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
