"""SaslHandshake (key 17): the mechanism with which a client wants to authenticate.

v0 is followed by bare tokens, v1 by SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, array, int16, string


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
