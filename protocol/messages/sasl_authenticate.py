"""SaslAuthenticate."""

from __future__ import annotations

from protocol.schema import Message, binary, int16, int64, string
from protocol.types import Buffer


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: Buffer = binary()


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: Buffer = binary()
    session_lifetime_ms: int = int64("1+")
