"""TLS on the client's side: the context with which a broker connects to controllers and other brokers.

Stores and versions come from the listener's keys, as in Kafka. A given keystore is the client's certificate, and the
truststore's certificates verify the server. The server's certificate must name its host unless
``ssl.endpoint.identification.algorithm`` is empty. Changed stores are used from the next connection on; if one cannot
be used, that is logged and the old ones stay. Source: Kafka's DefaultSslEngineFactory.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from tidelog.broker.security.tls.contexts import load_key_store, set_versions_and_suites, trust
from tidelog.broker.security.tls.stores import FileStamp, read_key_store, stamps_of
from tidelog.protocol.config_def import ConfigError

logger = logging.getLogger(__name__)


class TlsClient:
    """The present context, and the values and files last read, which may have failed to give a context. Any thread."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """``values`` are those of the security keys of the listener ``name``. Raises ConfigError."""
        self._name = name
        self._lock = threading.Lock()
        self._read: tuple[Mapping[str, Any], dict[str, FileStamp]] = (values, stamps_of(values))
        self._context = build_client_context(values)

    def context(self, values: Mapping[str, Any]) -> ssl.SSLContext:
        """Return the context of the next connection. It reads changed files: call it in a worker thread."""
        with self._lock:
            found = (values, stamps_of(values))
            if found != self._read:
                self._read = found
                try:
                    self._context = build_client_context(values)
                except ConfigError as error:
                    logger.error("connections to listeners %s keep their stores: %s", self._name, error)
            return self._context


def build_client_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """Build the context of a client with these values. Reads files. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = bool(values["ssl.endpoint.identification.algorithm"])
    set_versions_and_suites(context, values["ssl.enabled.protocols"], values["ssl.cipher.suites"])
    if values["ssl.keystore.location"] or values["ssl.keystore.key"]:
        load_key_store(context, read_key_store(values))
    trust(context, values, ssl.Purpose.SERVER_AUTH)
    return context
