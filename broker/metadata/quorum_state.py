"""Epoch, leader and voters of the metadata's quorum, as a KRaft node keeps them in ``quorum-state`` and in the log.

Version 0 of the file names the voters, as Kafka writes it for a static ``controller.quorum.voters``. From kraft.version
1 on (``kafka-storage format --standalone``) the voters are control records of the log, and version 1 of the file leaves
them out. Each snapshot repeats the records: without them Kafka does not know that its node may vote.

Source: QuorumStateData.json, FileQuorumStateStore and RecordsSnapshotWriter of Kafka 4.3, KIP-595, KIP-853.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.foreign_text import decode_json
from tidelog.protocol.metadata_records.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    VotersRecord,
)
from tidelog.protocol.types import uuid_to_str

QUORUM_STATE_FILE = "quorum-state"
NO_LEADER = -1
_STATIC_VERSION, _DYNAMIC_VERSION = 0, 1
_WRITER = "tidelog"


class QuorumVoters(NamedTuple):
    """Protocol version of the quorum, and its voters where the log names them."""

    kraft_version: int = 0
    voters: VotersRecord | None = None

    @property
    def ids(self) -> set[int]:
        """Ids of the voters that the log names."""
        return set() if self.voters is None else {voter.voter_id for voter in self.voters.voters}

    def records(self) -> Iterator[KRaftVersionRecord | VotersRecord]:
        """Yield the records that a snapshot has to repeat."""
        if self.kraft_version:
            yield KRaftVersionRecord(k_raft_version=self.kraft_version)
        if self.voters is not None:
            yield self.voters


STATIC_VOTERS = QuorumVoters()
"""Voters of a log that does not name them: the configuration does."""


def last_voters(voters: QuorumVoters, controls: Iterable[ControlMessage]) -> QuorumVoters:
    """Return ``voters`` as these later control records change them."""
    for control in controls:
        if isinstance(control, KRaftVersionRecord):
            voters = voters._replace(kraft_version=control.k_raft_version)
        elif isinstance(control, VotersRecord):
            voters = voters._replace(voters=control)
    return voters


class QuorumState(NamedTuple):
    """Leader, its epoch, and the voters that the file names; the vote in the file is not kept."""

    leader_id: int
    leader_epoch: int
    voters: tuple[int, ...] = ()
    is_ours: bool = True
    """True if Tidelog wrote the file: Kafka ignores the field ``writer``, and does not write it."""
    version: int = _STATIC_VERSION
    """Version of the file."""


def read_quorum_state(file_system: FileSystem, directory: str) -> QuorumState | None:
    """Return the content of the file in ``directory``, None if there is no file. Raises KafkaStorageError."""
    path = os.path.join(directory, QUORUM_STATE_FILE)
    if not file_system.exists(path):
        return None
    try:
        state: Any = decode_json(file_system.read_file(path))
        voters = tuple(int(voter["voterId"]) for voter in state.get("currentVoters") or ())
        is_ours, version = state.get("writer") == _WRITER, int(state.get("data_version", _STATIC_VERSION))
        found = QuorumState(int(state["leaderId"]), int(state["leaderEpoch"]), voters, is_ours, version)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise KafkaStorageError(f"{path} is not a valid quorum state: {error!r}") from error
    if version > _DYNAMIC_VERSION:
        raise KafkaStorageError(f"{path} has version {version}, of a newer Kafka")
    return found


def write_quorum_state(file_system: FileSystem, directory: str, state: QuorumState) -> None:
    """Write the file, atomically and durably. Raises KafkaStorageError."""
    text: dict[str, Any] = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": -1,
        "data_version": state.version,
        "writer": _WRITER,
    }
    if state.version == _STATIC_VERSION:
        voters = [{"voterId": voter} for voter in state.voters]
        text |= {"clusterId": "", "appliedOffset": 0, "currentVoters": voters}
    else:
        text["votedDirectoryId"] = uuid_to_str(bytes(16))
    file_system.replace_file(os.path.join(directory, QUORUM_STATE_FILE), json.dumps(text).encode())
