"""Metadata (key 3): the brokers, and the topics with their partitions, leaders and replicas.

An empty list of topics means all of them in v0; from v1 null means all and an empty list none.

    v1  racks, controller id, internal topics    v2  cluster id         v4  auto-creation can be refused (KAFKA-5291)
    v5  offline replicas    v7  leader epochs    v8  authorized operations (KIP-430)
    v9  flexible    v10 topic ids in the answer  v11 the cluster's operations move to DescribeCluster (KIP-700)
    v12 topics may be asked for by id alone (KIP-516)    v13 top-level error, REBOOTSTRAP_REQUIRED (KIP-1102)
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Struct):
    topic_id: bytes = uuid("10+")
    name: str | None = string(nullable="10+")


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponseBroker(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32("7+", default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, "5+")


class MetadataResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="12+")
    topic_id: bytes = uuid("10+")
    is_internal: bool = boolean("1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32("8+", default=-(2**31))


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string("2+", nullable="2+", default=None)
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))
    error_code: int = int16("13+")
