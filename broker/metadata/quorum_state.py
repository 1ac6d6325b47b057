"""The file ``quorum-state``: epoch, leader and voters of the metadata's quorum, as a KRaft node keeps them.

Version 0 names the voters, as Kafka writes it for a static ``controller.quorum.voters``; version 1 leaves them to the
log (KIP-853). Source: QuorumStateData.json and FileQuorumStateStore of Kafka 4.3, KIP-595.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import KafkaStorageError

QUORUM_STATE_FILE = "quorum-state"
NO_LEADER = -1
_STATIC_VERSION = 0
_WRITER = "tidelog"


class QuorumState(NamedTuple):
    """Leader, its epoch, and the voters that the file names; a voter's directory is not kept."""

    leader_id: int
    leader_epoch: int
    voters: tuple[int, ...] = ()
    is_ours: bool = True
    """Whether Tidelog wrote it: Kafka does not read that field, and leaves it out when it writes the file."""


def read_quorum_state(file_system: FileSystem, directory: str) -> QuorumState | None:
    """Return what the file in ``__cluster_metadata-0`` says, None without one. Raises KafkaStorageError."""
    path = os.path.join(directory, QUORUM_STATE_FILE)
    if not file_system.exists(path):
        return None
    try:
        state: Any = json.loads(file_system.read_file(path))
        voters = tuple(int(voter["voterId"]) for voter in state.get("currentVoters") or ())
        return QuorumState(int(state["leaderId"]), int(state["leaderEpoch"]), voters, state.get("writer") == _WRITER)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KafkaStorageError(f"{path} is no quorum state: {error!r}") from error


def write_quorum_state(file_system: FileSystem, directory: str, state: QuorumState) -> None:
    """Write the file for static voters, synced before its name shows. Raises KafkaStorageError."""
    text = {
        "clusterId": "",
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": voter} for voter in state.voters],
        "data_version": _STATIC_VERSION,
        "writer": _WRITER,
    }
    file_system.replace_file(os.path.join(directory, QUORUM_STATE_FILE), json.dumps(text).encode())
