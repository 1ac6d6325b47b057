"""Changes of the quorum's voters: a lone node refuses them with Kafka's errors for a static quorum."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.admin_broker import CLUSTER_ID, AdminBroker
from tests.unit.broker.handlers.drive import drive
from tidelog.protocol.errors import (
    InconsistentClusterIdError,
    InvalidRequestError,
    KafkaError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from tidelog.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse

DIRECTORY = b"d" * 16


@pytest.mark.parametrize(
    ("cluster_id", "voter_id", "directory_id", "error"),
    [
        ("another", 3, DIRECTORY, InconsistentClusterIdError),
        (CLUSTER_ID, -1, DIRECTORY, InvalidRequestError),
        (CLUSTER_ID, 3, bytes(16), InvalidRequestError),
        (CLUSTER_ID, 3, DIRECTORY, UnsupportedVersionError),
        (None, 3, DIRECTORY, UnsupportedVersionError),
    ],
)
def test_the_only_voter_stays_the_only_one(
    tmp_path: Path, cluster_id: str | None, voter_id: int, directory_id: bytes, error: type[KafkaError]
) -> None:
    broker = AdminBroker(tmp_path).broker
    adds = AddRaftVoterRequest(cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id)
    removes = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id)
    found = [drive(broker, adds, AddRaftVoterResponse, version).error_code for version in (0, 1)]
    assert [*found, drive(broker, removes, RemoveRaftVoterResponse).error_code] == [error.code] * 3
