"""FetchSnapshot (key 59): read a snapshot of the metadata log from a controller, piece by piece (KIP-630).

A piece begins at ``position`` of the snapshot's file and may end anywhere, also inside a batch. v1 adds the directory
id of the fetching replica and the endpoint of the leader (KIP-853).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    record_batches,
    string,
    struct_of,
    uint16,
    uuid,
)
from tidelog.protocol.types import RecordsValue


class SnapshotId(Struct):
    end_offset: int = int64()
    epoch: int = int32()


class PartitionSnapshot(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32()
    snapshot_id: SnapshotId = struct_of(SnapshotId)
    position: int = int64()
    replica_directory_id: bytes = uuid("1+", tag=0)


class TopicSnapshot(Struct):
    name: str = string()
    partitions: list[PartitionSnapshot] = array(PartitionSnapshot)


class FetchSnapshotRequest(Message, api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = string(nullable="0+", default=None, tag=0)
    replica_id: int = int32(default=-1)
    max_bytes: int = int32(default=2**31 - 1)
    topics: list[TopicSnapshot] = array(TopicSnapshot)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32()
    leader_epoch: int = int32()


class SnapshotIdResponse(Struct):
    end_offset: int = int64()
    epoch: int = int32()


class PartitionSnapshotResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    snapshot_id: SnapshotIdResponse = struct_of(SnapshotIdResponse)
    current_leader: LeaderIdAndEpoch = struct_of(LeaderIdAndEpoch, tag=0)
    size: int = int64()
    position: int = int64()
    unaligned_records: RecordsValue = record_batches()


class TopicSnapshotResponse(Struct):
    name: str = string()
    partitions: list[PartitionSnapshotResponse] = array(PartitionSnapshotResponse)


class NodeEndpoint(Struct):
    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class FetchSnapshotResponse(Message, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicSnapshotResponse] = array(TopicSnapshotResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)
