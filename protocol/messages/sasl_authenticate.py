"""SaslAuthenticate (key 36): one step of the SASL exchange that SaslHandshake v1 began (KIP-152).

v1 session lifetime, after which the client must authenticate again (KIP-368); v2 flexible.
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, binary, int16, int64, string
from tidelog.protocol.types import Buffer


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: Buffer = binary()


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: Buffer = binary()
    session_lifetime_ms: int = int64("1+")
