"""ListGroups: all groups of this node. v3 flexible; v4 filter by state (KIP-518); v5 filter by type (KIP-848)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

API_KEY = ApiKey.LIST_GROUPS
MIN_VERSION, MAX_VERSION = 0, 5
Request = ListGroupsRequest


def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Steps[ListGroupsResponse]:
    """List the groups. Raises CoordinatorLoadInProgressError while some of them load, and NotCoordinatorError if
    records of a group cannot be committed."""
    groups = yield from coordinators_of(broker).groups.list_groups(request.states_filter, request.types_filter)
    return ListGroupsResponse(groups=groups)


def error_response(request: ListGroupsRequest, error: KafkaError) -> ListGroupsResponse:
    """Answer with the error."""
    return ListGroupsResponse(error_code=error.code)
