"""DescribeCluster: the brokers, the controller and the cluster's id, for admin clients (KIP-700).

Versions: 0; 1+ the client says whether it wants brokers (1) or controllers (2) (KIP-919); 2 fenced brokers, of which a
lone node has none.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, MismatchedEndpointTypeError, UnsupportedEndpointTypeError
from tidelog.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

API_KEY = ApiKey.DESCRIBE_CLUSTER
MIN_VERSION = 0
MAX_VERSION = 2
Request = DescribeClusterRequest

BROKERS, CONTROLLERS = 1, 2
"""Types of endpoints that a client may ask for."""


def handle(broker: Broker, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Describe the brokers. Raises MismatchedEndpointTypeError if the client wants controllers, and
    UnsupportedEndpointTypeError for an unknown type."""
    if request.endpoint_type == CONTROLLERS:
        raise MismatchedEndpointTypeError(
            "The request was sent to an endpoint of type BROKER, but the client wants CONTROLLER."
        )
    if request.endpoint_type != BROKERS:
        raise UnsupportedEndpointTypeError(f"Unsupported endpoint type {request.endpoint_type}")
    nodes = broker.nodes.alive_nodes(context)
    if request.include_fenced_brokers:
        nodes += broker.nodes.fenced_nodes(context)
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.nodes.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=node.is_fenced
            )
            for node in nodes
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def error_response(request: DescribeClusterRequest, error: KafkaError) -> DescribeClusterResponse:
    """Build an answer that has only the error."""
    return DescribeClusterResponse(
        error_code=error.code, error_message=error.message, endpoint_type=request.endpoint_type
    )
