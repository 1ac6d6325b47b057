"""Envelope (key 58): a client's request that a broker forwards to the active controller (KIP-590).

``request_data`` is the client's complete request with its header; ``response_data`` is sent to the client unchanged.
``request_principal`` is a version (int16) and then a ``DefaultPrincipalData``.
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, binary, boolean, int16, string


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    type: str = string()
    name: str = string()
    token_authenticated: bool = boolean()


class EnvelopeRequest(Message, api_key=58, versions="0", flexible="0+"):
    request_data: bytes = binary()
    request_principal: bytes | None = binary(nullable="0+")
    client_host_address: bytes = binary()


class EnvelopeResponse(Message, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = binary(nullable="0+", default=None)
    error_code: int = int16()
