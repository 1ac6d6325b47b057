"""DescribeQuorum: the metadata quorum of a lone node, its leader and only voter (KIP-595, KIP-836).

Versions: 1+ times of the last fetch; 2 directory ids, listeners of the voters and error messages (KIP-853).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.network.advertised_address import address_for_client
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)

API_KEY = ApiKey.DESCRIBE_QUORUM
MIN_VERSION = 0
MAX_VERSION = 2
Request = DescribeQuorumRequest

METADATA_TOPIC = "__cluster_metadata"


def handle(broker: Broker, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Describe ``__cluster_metadata-0``, the quorum's only partition; other partitions are unknown."""
    host, port = address_for_client(broker.config, context)
    topics = []
    for topic in request.topics:
        partitions = [
            quorum(broker)
            if topic.topic_name == METADATA_TOPIC and partition.partition_index == 0
            else unknown_partition(partition.partition_index)
            for partition in topic.partitions
        ]
        topics.append(TopicDataResponse(topic_name=topic.topic_name, partitions=partitions))
    listener = Listener(name=context.listener_name, host=host, port=port)
    nodes = [Node(node_id=broker.node_id, listeners=[listener])]
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes)


def quorum(broker: Broker) -> PartitionDataResponse:
    """Describe this node as leader and only voter."""
    now = broker.time.milliseconds()
    end = broker.controller.end_offset
    voter = ReplicaState(
        replica_id=broker.node_id, log_end_offset=end, last_fetch_timestamp=now, last_caught_up_timestamp=now
    )
    return PartitionDataResponse(
        partition_index=0,
        error_message=None,
        leader_id=broker.node_id,
        leader_epoch=broker.controller.epoch,
        high_watermark=end,
        current_voters=[voter],
    )


def unknown_partition(index: int) -> PartitionDataResponse:
    """Build the answer for a partition that is not the quorum's."""
    error = UnknownTopicOrPartitionError()
    return PartitionDataResponse(partition_index=index, error_code=error.code, error_message=error.message)


def error_response(request: DescribeQuorumRequest, error: KafkaError) -> DescribeQuorumResponse:
    """Build an answer that has only the error."""
    return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
