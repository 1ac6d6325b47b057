"""JoinGroup: join a classic group; the answer waits until the rebalance is complete.

v1 adds the rebalance timeout; v4 new dynamic members send the request twice (KIP-394); v5 static members (KIP-345); v6
flexible; v7 answers the protocol type; v8 a reason; v9 the answer may tell the leader to skip the assignment (KIP-814).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import Deferred, NotReadyError
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

API_KEY = ApiKey.JOIN_GROUP
MIN_VERSION, MAX_VERSION = 0, 9
Request = JoinGroupRequest

_FIRST_VERSION_WITH_NULL_PROTOCOL = 7


def handle(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> Deferred[JoinGroupResponse]:
    """Join; request fields that are views of the receive buffer are copied before this returns."""
    try:
        response = coordinators_of(broker).groups.join_group(context, request)
    except NotReadyError:
        raise  # the route waits until the log is open, and handles the request again
    except KafkaError as error:
        response = Deferred()
        response.complete(error_response(request, error))
    if context.api_version >= _FIRST_VERSION_WITH_NULL_PROTOCOL:
        response.on_done(name_no_protocol)
    return response


def name_no_protocol(done: Deferred[JoinGroupResponse]) -> None:
    """Set an error's protocol name to null, which versions from 7 on allow."""
    if done.has_value and done.result().error_code:
        done.result().protocol_name = None


def error_response(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    """Answer with the error; the member keeps its id."""
    return JoinGroupResponse(error_code=error.code, member_id=request.member_id)
