"""Configuration keys of the HTTP interface."""

from __future__ import annotations

from tidelog.protocol.config_def import ConfigKey, ConfigType, Importance, between

ADMIN_LISTENER = "admin.listener"


ADMIN_ALLOWED_HOSTS = "admin.allowed.hosts"


ADMIN_MAX_CONNECTIONS = "admin.max.connections"


ADMIN_KEYS = (
    ConfigKey(
        ADMIN_LISTENER,
        ConfigType.STRING,
        "127.0.0.1:0",
        None,
        Importance.MEDIUM,
        "HOST:PORT of the HTTP interface with /healthz, /readyz, /metrics and /compaction; port 0 takes any free one, "
        "an empty value switches it off. It does not authenticate: keep it on a private address.",
    ),
    ConfigKey(
        ADMIN_ALLOWED_HOSTS,
        ConfigType.LIST,
        (),
        None,
        Importance.LOW,
        "More names under which the HTTP interface may be asked (the Host header), separated by commas. Its own "
        "address, localhost and the advertised hosts need no mention; other names are answered 421. Tidelog's own key.",
    ),
    ConfigKey(
        ADMIN_MAX_CONNECTIONS,
        ConfigType.INT,
        100,
        between(1),
        Importance.LOW,
        "Most connections of the HTTP interface. One too many closes the oldest whose request has not come, then one "
        "whose client takes no answer, then one that waits for its next request; where all are being answered, itself. "
        "Tidelog's own key.",
    ),
)
