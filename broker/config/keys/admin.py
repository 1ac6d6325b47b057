"""Configuration keys of the HTTP interface and of the schema registry."""

from __future__ import annotations

from tidelog.broker.config.keys.security import OAUTHBEARER_KEYS, TLS_KEYS
from tidelog.protocol.config_def import Check, ConfigKey, ConfigType, Importance, between, each_of

ADMIN_LISTENER = "admin.listener"
SCHEMA_REGISTRY_LISTENER = "schema.registry.listener"
ADMIN_ALLOWED_HOSTS = "admin.allowed.hosts"
ADMIN_MAX_CONNECTIONS = "admin.max.connections"
ADMIN_AUTHENTICATION = "admin.authentication"
ADMIN_TOKENS_FILE = "admin.tokens.file"
ADMIN_TOKEN_KEYS = "admin.sasl.oauthbearer.jwks.endpoint.url"


def _is_address(text: str) -> bool:
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isascii() and port.isdigit() and int(port) <= 65535


HTTP_ADDRESS = Check(lambda text: not text or _is_address(text), "HOST:PORT with a port from 0 to 65535, or nothing")


def _of_interface(key: ConfigKey) -> ConfigKey:
    """Return the HTTP interface's counterpart of a listener's key."""
    return ConfigKey(
        f"admin.{key.name}",
        key.type,
        key.default,
        key.validator,
        key.importance,
        f"As {key.name}, but for the HTTP interface, which does not use {key.name} itself. Tidelog's own key.",
    )


ADMIN_TLS_KEYS = tuple(
    _of_interface(key)
    for key in TLS_KEYS
    if key.name.startswith(("ssl.keystore.", "ssl.truststore.", "ssl.principal.", "ssl.store.", "ssl.allow."))
    or key.name in ("ssl.key.password", "ssl.enabled.protocols", "ssl.cipher.suites")
)

ADMIN_BEARER_KEYS = tuple(
    _of_interface(key)
    for key in OAUTHBEARER_KEYS
    if key.name.startswith("sasl.") and not key.name.endswith("validator.class")
)

ADMIN_KEYS = (
    ConfigKey(
        ADMIN_LISTENER,
        ConfigType.STRING,
        "127.0.0.1:9644",
        HTTP_ADDRESS,
        Importance.MEDIUM,
        "HOST:PORT of the HTTP interface with the console, /healthz, /readyz, /metrics and /compaction; port 0 takes "
        "any free one, as does the default where its port is taken; an empty value switches it off. "
        "admin.authentication says who may ask.",
    ),
    ConfigKey(
        ADMIN_AUTHENTICATION,
        ConfigType.LIST,
        (),
        each_of("none", "basic", "bearer", "mtls"),
        Importance.MEDIUM,
        "How users of the HTTP interface log in: basic (users of PLAIN and SCRAM), bearer (tokens of "
        "admin.tokens.file, and signed ones by admin.sasl.oauthbearer.*), mtls (certificates); or none. Default: none "
        "while only this machine reaches it and no listener authenticates, else basic. Logins over the network need "
        "admin.ssl.keystore.*. Tidelog's own key.",
    ),
    ConfigKey(
        ADMIN_TOKENS_FILE,
        ConfigType.STRING,
        None,
        None,
        Importance.LOW,
        "The file of bearer tokens that `tidelog admin token create` writes. Tidelog's own key.",
    ),
    ConfigKey(
        ADMIN_ALLOWED_HOSTS,
        ConfigType.LIST,
        (),
        None,
        Importance.LOW,
        "Further host names that requests to the HTTP interface may use (the Host header), separated by commas. Its "
        "own address, localhost and the advertised hosts are always allowed; other names get 421. Tidelog's own key.",
    ),
    ConfigKey(
        ADMIN_MAX_CONNECTIONS,
        ConfigType.INT,
        100,
        between(1),
        Importance.LOW,
        "The most connections of the HTTP interface. A further one closes the oldest that has sent no complete "
        "request; else one whose client does not read its answer; else an idle one; else it is closed itself. "
        "Tidelog's own key.",
    ),
    ConfigKey(
        SCHEMA_REGISTRY_LISTENER,
        ConfigType.STRING,
        "",
        HTTP_ADDRESS,
        Importance.MEDIUM,
        "HOST:PORT of the schema registry, with Confluent's HTTP interface; port 0 takes any free one, an empty value "
        "switches it off. Logins, TLS, hosts and the limit of connections are those of the HTTP interface (admin.*). "
        "Needs `pip install tidelog[registry]`. Tidelog's own key.",
    ),
    *ADMIN_TLS_KEYS,
    *ADMIN_BEARER_KEYS,
)
