"""JoinGroup: become a member of a classic group; the answer waits until the rebalance is through.

v1 adds the rebalance timeout; v4 makes new dynamic members ask twice (KIP-394); v5 static members (KIP-345); v6
flexible; v7 answers the protocol type; v8 a reason; v9 may tell the leader to skip the assignment (KIP-814).
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.coordinator.coordinators import coordinators_of
from broker.coordinator.durability import durably
from broker.deferred import Deferred
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

API_KEY = ApiKey.JOIN_GROUP
MIN_VERSION, MAX_VERSION = 0, 9
Request = JoinGroupRequest


@durably
def handle(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> Deferred[JoinGroupResponse]:
    """Join; what the request holds of its frame is copied before this returns."""
    return coordinators_of(broker).groups.join_group(context, request)


def error_response(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    """The error; the member keeps its id."""
    return JoinGroupResponse(error_code=error.code, member_id=request.member_id)
