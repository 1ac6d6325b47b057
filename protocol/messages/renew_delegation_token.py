"""RenewDelegationToken (key 39): extend a token's life (KIP-48). v2 is flexible."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, binary, int16, int32, int64
from tidelog.protocol.types import Buffer


class RenewDelegationTokenRequest(Message, api_key=39, versions="0-2", flexible="2+"):
    hmac: Buffer = binary()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Message, api_key=39, versions="0-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
