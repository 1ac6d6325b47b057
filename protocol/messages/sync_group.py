"""SyncGroup (key 14): the leader of a classic group sends the assignments, and every member gets its own.

v1 adds throttle time; v3 adds group instance id (KIP-345); v4 is flexible; v5 adds protocol type and name, checked
against the group's (KIP-559).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, binary, int16, int32, string
from tidelog.protocol.types import Buffer


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: Buffer = binary()


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignment: Buffer = binary()
