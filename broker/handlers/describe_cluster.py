"""DescribeCluster: the brokers, the controller and the cluster's id, for admin clients (KIP-700).

Versions: 0; 1+ the client says whether it asks for brokers (1) or controllers (2) (KIP-919); 2 fenced brokers, of
which there are none here.
"""

from __future__ import annotations

from tidelog.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from tidelog.broker.broker import Broker
from tidelog.broker.network.advertised_address import address_for_client
from tidelog.broker.requests.context import RequestContext
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


def handle(broker: Broker, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Describe the cluster of one. Raises MismatchedEndpointTypeError when asked for controllers."""
    if request.endpoint_type == CONTROLLERS:
        raise MismatchedEndpointTypeError(
            "The request was sent to an endpoint of type BROKER, but CONTROLLER is asked for."
        )
    if request.endpoint_type != BROKERS:
        raise UnsupportedEndpointTypeError(f"Unsupported endpoint type {request.endpoint_type}")
    host, port = address_for_client(broker, context)
    rack = broker.config.get("broker.rack")
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port, rack=rack)],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def error_response(request: DescribeClusterRequest, error: KafkaError) -> DescribeClusterResponse:
    """The error for the whole answer."""
    return DescribeClusterResponse(
        error_code=error.code, error_message=error.message, endpoint_type=request.endpoint_type
    )
