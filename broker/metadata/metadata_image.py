"""Image of the cluster's metadata at one offset of ``__cluster_metadata``: brokers, topics, configs, quotas, users.

An image is immutable: nothing in it changes after it was published, so any thread may read it. The next image shares
what did not change (``tidelog.broker.metadata.delta``).

Source: MetadataImage and its parts of Kafka 4.3; KIP-631.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NO_LEADER = -1
TOPIC_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 16, 32
"""Kinds of resource in a ConfigRecord (ConfigResource.Type of Kafka)."""

Resource = tuple[int, str]
"""Kind and name of a resource that has configs. A broker's name is its id; the empty name means all brokers."""
QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs sorted by type; name None is the type's default."""


class PartitionState(NamedTuple):
    """One partition: replicas in preferred order, in-sync replicas, leader, epochs.

    ``directories`` has the replicas' directory ids, in the order of ``replicas`` (KIP-858). ``elr`` are the eligible
    leader replicas (KIP-966).
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[bytes, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    is_recovering: bool = False
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, node_id: int) -> bytes | None:
        """Return the id of the log directory of a broker's replica, None if the record names none."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(node_id)


class TopicState(NamedTuple):
    """One topic; ``partitions`` has its partitions in the order of their numbers."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]


class Endpoint(NamedTuple):
    """A listener of a broker or controller. ``security_protocol``: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: int
    security_protocol: int


class BrokerRegistration(NamedTuple):
    """One registered broker. ``features`` has the lowest and highest level of each feature that it supports."""

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    is_fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    cordoned_directories: tuple[bytes, ...] | None = None
    is_migrating_zk_broker: bool = False


class ControllerRegistration(NamedTuple):
    """One registered controller."""

    controller_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    is_zk_migration_ready: bool = False


class ScramState(NamedTuple):
    """Keys that SCRAM derives from a password (RFC 5802); the password itself is not stored."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class AccessRule(NamedTuple):
    """One ACL, by Kafka's numbers of resource type, pattern type, operation and permission."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class TokenState(NamedTuple):
    """One delegation token; times in ms since the epoch."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int


class MetadataImage(NamedTuple):
    """The metadata after the record at ``offset`` (-1: none), which was appended in ``epoch`` of the quorum.

    ``timestamp_ms`` is the append time of that record's batch. ``topic_ids`` maps a topic's name to its id. Keys of
    ``acls`` are their ids, those of ``scram`` (user, mechanism number). ``producer_ids`` is the first id of the next
    block.
    """

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = -1
    features: Mapping[str, int] = {}
    brokers: Mapping[int, BrokerRegistration] = {}
    controllers: Mapping[int, ControllerRegistration] = {}
    topics: Mapping[bytes, TopicState] = {}
    topic_ids: Mapping[str, bytes] = {}
    configs: Mapping[Resource, Mapping[str, str]] = {}
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
    scram: Mapping[tuple[str, int], ScramState] = {}
    acls: Mapping[bytes, AccessRule] = {}
    tokens: Mapping[str, TokenState] = {}
    producer_ids: int = 0

    def topic_by_name(self, name: str) -> TopicState | None:
        """Return the topic of this name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]


EMPTY_IMAGE = MetadataImage()
