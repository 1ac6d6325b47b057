"""UnregisterBroker (key 64): remove the registration of a broker (KIP-500)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, int16, int32, string


class UnregisterBrokerRequest(Message, api_key=64, versions="0", flexible="0+"):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
