"""RemoveRaftVoter on a lone node: refused, because its quorum's only voter cannot be removed (KIP-853). Version 0.

A member of a cluster forwards the request to the controller.
"""

from __future__ import annotations

from typing import NoReturn

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.raft_voters import refuse_voter
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse

API_KEY = ApiKey.REMOVE_RAFT_VOTER
MIN_VERSION = 0
MAX_VERSION = 0
Request = RemoveRaftVoterRequest


def handle(broker: Broker, context: RequestContext, request: RemoveRaftVoterRequest) -> NoReturn:
    """Refuse to remove a voter. Raises InconsistentClusterIdError, InvalidRequestError, UnsupportedVersionError."""
    refuse_voter(broker, request)


def error_response(request: RemoveRaftVoterRequest, error: KafkaError) -> RemoveRaftVoterResponse:
    """Build an answer that has only the error."""
    return RemoveRaftVoterResponse(error_code=error.code, error_message=error.message)
