"""TLS on the client's side: the context with which a broker connects to controllers and other brokers.

Stores and versions come from the listener's keys, as in Kafka. A given keystore is the client's certificate, and the
truststore's certificates verify the server. The server's certificate must name its host unless
``ssl.endpoint.identification.algorithm`` is empty. Changed stores are used from the next connection on; if one cannot
be used, that is logged and the old ones stay, until values or files change again. An error of the system, such as no
free descriptor, may pass: the next connection tries again. Source: Kafka's DefaultSslEngineFactory.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from typing import Any

from tidelog.broker.security.tls.contexts import load_key_store, set_versions_and_suites, trust
from tidelog.broker.security.tls.stores import KEY_STORE_KEYS, FileStamp, read_key_store, stamps_of
from tidelog.protocol.config_def import ConfigError

logger = logging.getLogger(__name__)


class TlsClient:
    """The present context, and the values and files last read, which may have failed to give a context. Any thread."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """``values`` are those of the security keys of the listener ``name``. Raises ConfigError, OSError."""
        self._name = name
        self._lock = threading.Lock()
        self._read: tuple[Mapping[str, Any], dict[str, FileStamp]] = (values, stamps_of(values))
        self._context = build_client_context(values)
        self._complaint = ""
        """The passing error that was logged last, for changes that are not read yet."""

    def context(self, values: Mapping[str, Any]) -> ssl.SSLContext:
        """Return the context of the next connection. It reads changed files: call it in a worker thread."""
        with self._lock:
            found = (values, stamps_of(values))
            if found != self._read:
                self._build(found)
            return self._context

    def _build(self, found: tuple[Mapping[str, Any], dict[str, FileStamp]]) -> None:
        """Build the context of new values or files. After a passing error they count as not read yet."""
        try:
            self._context = build_client_context(found[0])
        except (ConfigError, OSError) as error:
            complaint = str(error)
            if complaint != self._complaint:
                logger.error("connections to listeners %s keep their stores: %s", self._name, complaint)
            if is_passing(error):
                self._complaint = complaint
                return
        self._read, self._complaint = found, ""


def is_passing(error: ConfigError | OSError) -> bool:
    """Return whether the system refused to read a store, so that the next try may succeed with the same files."""
    cause = error.__cause__ if isinstance(error, ConfigError) else error
    return isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)


def build_client_context(values: Mapping[str, Any]) -> ssl.SSLContext:
    """Build the context of a client with these values. Reads files. Raises ConfigError, OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = bool(values["ssl.endpoint.identification.algorithm"])
    set_versions_and_suites(context, values["ssl.enabled.protocols"], values["ssl.cipher.suites"])
    if any(values[key] for key in KEY_STORE_KEYS):
        load_key_store(context, read_key_store(values))
    trust(context, values, ssl.Purpose.SERVER_AUTH)
    return context
