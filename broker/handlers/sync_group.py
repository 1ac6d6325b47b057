"""SyncGroup: the leader of a classic group sends the assignment of all members, and each member gets its own part.

v3 static members (KIP-345); v4 flexible; v5 checks protocol type and name (KIP-559).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InconsistentGroupProtocolError, KafkaError
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

API_KEY = ApiKey.SYNC_GROUP
MIN_VERSION, MAX_VERSION = 0, 5
Request = SyncGroupRequest

_FIRST_VERSION_WITH_PROTOCOL = 5


def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> Deferred[SyncGroupResponse]:
    """Answer at once in a stable group, else when the leader has sent the assignment.

    Raises InconsistentGroupProtocolError when a request of v5 lacks the protocol's type or name, and what the group's
    coordinator raises.
    """
    if context.api_version >= _FIRST_VERSION_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocolError
    return coordinators_of(broker).groups.sync_group(request)


def error_response(request: SyncGroupRequest, error: KafkaError) -> SyncGroupResponse:
    """Answer with the error and without an assignment."""
    return SyncGroupResponse(error_code=error.code)
