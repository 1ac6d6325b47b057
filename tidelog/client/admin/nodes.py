"""The nodes of a cluster, and the log directories of its brokers."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.cluster import Address, Cluster, ask, raise_for_code
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_SOFTWARE = ("tidelog", "1")


class Broker(NamedTuple):
    """One broker and the address that it advertises to clients."""

    id: int
    host: str
    port: int
    rack: str | None


class ClusterDescription(NamedTuple):
    """The cluster's id, the broker that clients see as the controller, the brokers, and the finalized features."""

    id: str
    controller: int
    brokers: list[Broker]
    features: dict[str, int]


class LogDirPartition(NamedTuple):
    """A partition's replica in a log directory; sizes in bytes."""

    broker: int
    directory: str
    topic: str
    partition: int
    size: int
    offset_lag: int
    future: bool


class LogDir(NamedTuple):
    """A log directory of a broker; ``total`` and ``usable`` bytes of its volume are -1 if the broker does not return
    them."""

    broker: int
    directory: str
    total: int
    usable: int
    partitions: list[LogDirPartition]


def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """Describe the cluster. Raises ClientError, KafkaError."""
    answer = cluster.ask(DescribeClusterRequest(), DescribeClusterResponse)
    raise_for_code(answer.error_code, "cluster", answer.error_message)
    brokers = sorted(Broker(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers)
    name, version = _SOFTWARE
    versions = cluster.ask(
        ApiVersionsRequest(client_software_name=name, client_software_version=version), ApiVersionsResponse, 3
    )
    features = {one.name: one.max_version_level for one in versions.finalized_features}
    return ClusterDescription(answer.cluster_id, answer.controller_id, brokers, dict(sorted(features.items())))


def describe_log_dirs(cluster: Cluster, topics: list[str] | None = None) -> list[LogDir]:
    """Return the log directories of all brokers, with the partitions of these topics (None: all) and their sizes.

    Raises ClientError, KafkaError.
    """
    asked = None
    if topics is not None:
        numbers = {topic: list(range(cluster.partition_count(topic))) for topic in topics}
        asked = [DescribableLogDirTopic(topic=topic, partitions=found) for topic, found in numbers.items()]
    return [one for node in sorted(cluster.brokers().items()) for one in log_dirs_at(cluster, *node, asked)]


def log_dirs_at(
    cluster: Cluster, node: int, address: Address, asked: list[DescribableLogDirTopic] | None = None
) -> list[LogDir]:
    """Return the log directories of one broker, with these partitions (None: all) and their sizes.

    Raises ClientError, KafkaError.
    """
    found = []
    request, highest = DescribeLogDirsRequest(topics=asked), DescribeLogDirsRequest.VERSIONS.highest
    answer = ask(cluster.client_for(address), request, DescribeLogDirsResponse, highest)
    raise_for_code(answer.error_code, f"log directories of broker {node}")
    for result in answer.results:
        raise_for_code(result.error_code, f"log directory {result.log_dir} of broker {node}")
        partitions = [
            LogDirPartition(node, result.log_dir, topic.name, one.partition_index, one.partition_size,
                            one.offset_lag, one.is_future_key)
            for topic in result.topics for one in topic.partitions
        ]  # fmt: skip
        found.append(LogDir(node, result.log_dir, result.total_bytes, result.usable_bytes, sorted(partitions)))
    return found
