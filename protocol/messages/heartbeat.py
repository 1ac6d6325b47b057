"""Heartbeat (key 12): a member of a classic group reports that it is alive; after REBALANCE_IN_PROGRESS it joins again.

v1 adds throttle time; v3 adds group instance id (KIP-345); v4 is flexible.
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, int16, int32, string


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32("1+")
    error_code: int = int16()
