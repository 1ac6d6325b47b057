"""RemoveRaftVoter (key 81): remove a controller from the voters of the metadata quorum (KIP-853)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, int16, int32, string, uuid


class RemoveRaftVoterRequest(Message, api_key=81, versions="0", flexible="0+"):
    cluster_id: str | None = string(nullable="0+")
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()


class RemoveRaftVoterResponse(Message, api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
