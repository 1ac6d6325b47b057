"""Refusal of requests to change the metadata quorum of a lone node: its only voter is the node itself (KIP-853).

Errors are those of Kafka for a static quorum; source: KafkaRaftClient and AddVoterHandler of Kafka 4.3.
"""

from __future__ import annotations

from typing import NoReturn

from tidelog.broker.broker import Broker
from tidelog.protocol.errors import InconsistentClusterIdError, InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.messages.add_raft_voter import AddRaftVoterRequest
from tidelog.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from tidelog.protocol.types import ZERO_UUID


def refuse_voter(broker: Broker, request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> NoReturn:
    """Refuse to change the quorum. Raises InconsistentClusterIdError, InvalidRequestError, UnsupportedVersionError."""
    if request.cluster_id not in (None, broker.cluster_id):
        raise InconsistentClusterIdError(f"This is cluster {broker.cluster_id}, not {request.cluster_id}")
    if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
        raise InvalidRequestError("The request doesn't include a valid voter")
    raise UnsupportedVersionError(f"Node {broker.node_id} is a cluster of one: its quorum does not change")
