"""DeleteGroups (key 42): remove groups without members, with their offsets (KIP-229). v2 is flexible."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, string


class DeleteGroupsRequest(Message, api_key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
