"""PushTelemetry (key 72): a client's metrics, in OTLP and optionally compressed (KIP-714)."""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, binary, boolean, int8, int16, int32, uuid
from tidelog.protocol.types import Buffer


class PushTelemetryRequest(Message, api_key=72, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: Buffer = binary()


class PushTelemetryResponse(Message, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
