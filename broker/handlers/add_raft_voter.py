"""AddRaftVoter on a lone node: refused, because its quorum takes no other voter (KIP-853). Versions 0 and 1 are refused
alike. A member of a cluster forwards the request to the controller."""

from __future__ import annotations

from typing import NoReturn

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.raft_voters import refuse_voter
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse

API_KEY = ApiKey.ADD_RAFT_VOTER
MIN_VERSION = 0
MAX_VERSION = 1
Request = AddRaftVoterRequest


def handle(broker: Broker, context: RequestContext, request: AddRaftVoterRequest) -> NoReturn:
    """Refuse to add a voter. Raises InconsistentClusterIdError, InvalidRequestError, UnsupportedVersionError."""
    refuse_voter(broker, request)


def error_response(request: AddRaftVoterRequest, error: KafkaError) -> AddRaftVoterResponse:
    """Build an answer that has only the error."""
    return AddRaftVoterResponse(error_code=error.code, error_message=error.message)
