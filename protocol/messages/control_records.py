"""control_records."""

from __future__ import annotations

from protocol.schema import Message, Struct, array, int16, int32, uuid


class ControlRecordTypeSchema(Message, versions="0"):
    type: int = int16()


class EndTxnMarker(Message, versions="0"):
    coordinator_epoch: int = int32()


class Voter(Struct):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    version: int = int16()
    leader_id: int = int32()
    voters: list[Voter] = array(Voter)
    granting_voters: list[Voter] = array(Voter)
