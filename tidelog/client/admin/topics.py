"""Requests that list, describe, create, extend and delete topics of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Cluster, raise_for_code
from tidelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tidelog.protocol.types import uuid_to_str

_METADATA = 12
"""The newest version of Metadata that is used; 13 only adds an error by which clients bootstrap again."""
_DELETE_BY_STATE = 6
"""The newest version of DeleteTopics that is used; from 6 on a topic is a ``DeleteTopicState``, not a name."""
_TIMEOUT_MS = 30_000


NO_LEADER = -1


class Partition(NamedTuple):
    """One partition: leader (NO_LEADER when there is none), replicas, in-sync and offline replicas, by node id."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class Topic(NamedTuple):
    """One topic with its partitions in order."""

    name: str
    id: str
    internal: bool
    partitions: list[Partition]

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition; 0 for a topic without partitions."""
        return len(self.partitions[0].replicas) if self.partitions else 0


class NewTopic(NamedTuple):
    """A topic to create; -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


def list_topics(cluster: Cluster) -> list[Topic]:
    """Return all topics, sorted by name. Raises ClientError, KafkaError."""
    answer = cluster.ask(MetadataRequest(topics=None), MetadataResponse, _METADATA)
    return sorted((_topic_of(entry) for entry in answer.topics), key=lambda topic: topic.name)


def describe_topics(cluster: Cluster, names: Sequence[str]) -> list[Topic]:
    """Return the named topics, in the order of the names. Raises ClientError, KafkaError, also if a topic is missing.

    The broker is asked not to create missing topics.
    """
    asked = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    answer = cluster.ask(request, MetadataResponse, _METADATA)
    found = {entry.name: entry for entry in answer.topics}
    for name in names:
        raise_for_code(found[name].error_code, f"topic {name}")
    return [_topic_of(found[name]) for name in names]


def create_topic(cluster: Cluster, topic: NewTopic, *, validate_only: bool = False) -> Topic:
    """Create a topic, or only check the request. Returns the topic with its id and numbers of partitions and replicas.

    The response has no leaders and no replica ids: they are -1. Raises ClientError, KafkaError.
    """
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()]
    creatable = CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=configs,
    )
    request = CreateTopicsRequest(topics=[creatable], timeout_ms=_TIMEOUT_MS, validate_only=validate_only)
    (answer,) = cluster.ask(request, CreateTopicsResponse).topics
    raise_for_code(answer.error_code, f"topic {topic.name}", answer.error_message)
    replicas = [-1] * max(answer.replication_factor, 0)
    partitions = [Partition(number, -1, -1, replicas, replicas, []) for number in range(answer.num_partitions)]
    return Topic(topic.name, uuid_to_str(answer.topic_id), False, partitions)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic with its records. Raises ClientError, KafkaError."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=_TIMEOUT_MS)
    (answer,) = cluster.ask(request, DeleteTopicsResponse, _DELETE_BY_STATE).responses
    raise_for_code(answer.error_code, f"topic {name}", answer.error_message)


def add_partitions(cluster: Cluster, name: str, total: int, *, validate_only: bool = False) -> None:
    """Add partitions to a topic until it has ``total``. Raises ClientError, KafkaError."""
    asked = CreatePartitionsTopic(name=name, count=total, assignments=None)
    request = CreatePartitionsRequest(topics=[asked], timeout_ms=_TIMEOUT_MS, validate_only=validate_only)
    (answer,) = cluster.ask(request, CreatePartitionsResponse).results
    raise_for_code(answer.error_code, f"topic {name}", answer.error_message)


def _topic_of(entry: MetadataResponseTopic) -> Topic:
    partitions = [
        Partition(one.partition_index, one.leader_id, one.leader_epoch, list(one.replica_nodes), list(one.isr_nodes),
                  list(one.offline_replicas))
        for one in sorted(entry.partitions, key=lambda one: one.partition_index)
    ]  # fmt: skip
    return Topic(entry.name or "", uuid_to_str(entry.topic_id), entry.is_internal, partitions)
