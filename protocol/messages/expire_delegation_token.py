"""ExpireDelegationToken (key 40): set a token's expiry time, or delete it with a negative period (KIP-48). v2
is flexible."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, binary, int16, int32, int64
from tidelog.protocol.types import Buffer


class ExpireDelegationTokenRequest(Message, api_key=40, versions="0-2", flexible="2+"):
    hmac: Buffer = binary()
    expiry_time_period_ms: int = int64()


class ExpireDelegationTokenResponse(Message, api_key=40, versions="0-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
