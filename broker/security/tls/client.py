"""TLS of the client's side: the context by which a broker connects to controllers and to other brokers.

Stores and versions are those of the listener's keys, as Kafka has it: a keystore is shown where one is given, the
truststore's certificates check the server, and its certificate names the host unless
``ssl.endpoint.identification.algorithm`` is empty. Changed stores count from the next connection on; one that cannot be
used is logged, and the old ones serve on. Source: Kafka's DefaultSslEngineFactory.
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
    """The present context, and what it was made of. Any thread."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """``values`` are those of the security keys of the listener ``name``. Raises ConfigError."""
        self._name = name
        self._lock = threading.Lock()
        self._read: tuple[Mapping[str, Any], dict[str, FileStamp]] = (values, stamps_of(values))
        self._context = build_client_context(values)

    def context(self, values: Mapping[str, Any]) -> ssl.SSLContext:
        """Return the context of the next connection. Reads files that changed: for a worker thread."""
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
    """Build the context of a client with these values. Reads files; raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = bool(values["ssl.endpoint.identification.algorithm"])
    set_versions_and_suites(context, values["ssl.enabled.protocols"], values["ssl.cipher.suites"])
    if values["ssl.keystore.location"] or values["ssl.keystore.key"]:
        load_key_store(context, read_key_store(values))
    trust(context, values, ssl.Purpose.SERVER_AUTH)
    return context
