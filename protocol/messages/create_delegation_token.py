"""CreateDelegationToken (key 38): a token that authenticates its bearer (KIP-48).

v2 is flexible; v3 adds tokens for another owner (KIP-373).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, Struct, array, binary, int16, int32, int64, string
from tidelog.protocol.types import Buffer


class CreatableRenewers(Struct):
    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(Message, api_key=38, versions="0-3", flexible="2+"):
    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, api_key=38, versions="0-3", flexible="2+"):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: Buffer = binary()
    throttle_time_ms: int = int32()
