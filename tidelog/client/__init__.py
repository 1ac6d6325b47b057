"""The blocking client with which the commands, the console, the pipeline and tests use any Kafka broker.

``connection`` is one connection to one broker; ``cluster`` finds leaders and coordinators and keeps a connection for
each broker. Applications use a Kafka client of their language.

Imports: tidelog.protocol. ``settings``, ``sasl`` and ``trust`` also import parts of tidelog.broker, such as the parsers
of properties and JAAS, a client's SASL exchanges, and the check of certificates. ``records`` imports ``FoundRecord`` of
tidelog.find.
"""

from tidelog.client.connection import (
    CLIENT_ID,
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    MAX_RESPONSE_BYTES,
    Client,
    ClientError,
    SettingsError,
    parse_bootstrap,
)

__all__ = [
    "CLIENT_ID",
    "DEFAULT_BOOTSTRAP",
    "DEFAULT_TIMEOUT_S",
    "MAX_RESPONSE_BYTES",
    "Client",
    "ClientError",
    "SettingsError",
    "parse_bootstrap",
]
