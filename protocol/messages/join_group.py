"""JoinGroup (key 11): join a classic group; answered when the rebalance has gathered its members.

Metadata of the protocols are opaque here; for consumers see :mod:`tidelog.protocol.messages.consumer_protocol`.

v1 adds the rebalance timeout (in v0 the session timeout serves as both); v2 adds throttle time; from v4 on a first join
with neither member id nor group instance id gets MEMBER_ID_REQUIRED and an id (KIP-394); v5 adds group instance id
(KIP-345); v6 is flexible; from v7 on the answer names the protocol type, and the protocol name may be null (KIP-559);
v8 adds a reason (KIP-800); v9 adds ``skip_assignment`` (KIP-814).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, binary, boolean, int16, int32, string
from tidelog.protocol.types import Buffer


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: Buffer = binary()


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    metadata: Buffer = binary()


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = int32("2+")
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
