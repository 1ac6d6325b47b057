"""Consumer protocol: JoinGroup metadata and SyncGroup assignments of consumers.

The coordinator of a classic group passes both on unchanged, but reads the subscribed topics. In a group that also has
members of the KIP-848 protocol the coordinator reads subscriptions and writes assignments. The upgrade of a classic
group to such a group also reads its members' assignments.

An int16 version comes first: use ``decode_prefixed_lenient`` and ``encode_prefixed``. Consumers of different releases
share a group, so a newer version is read as the newest known one and further bytes are ignored. v1 adds owned
partitions for cooperative rebalancing (KIP-429); v2 adds the generation id (KIP-792); v3 adds the rack (KIP-881). Never
flexible.
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, binary, int32, string
from tidelog.protocol.types import Buffer


class TopicPartition(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[str] = array(string)
    user_data: Buffer | None = binary(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: Buffer | None = binary(nullable="0+", default=None)
