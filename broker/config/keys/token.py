"""Configuration keys of delegation tokens. Source: DelegationTokenManagerConfigs."""

from __future__ import annotations

from tidelog.protocol.config_def import ConfigKey, ConfigType, Importance, between

SECRET_KEY = "delegation.token.secret.key"
MAX_LIFETIME_MS = "delegation.token.max.lifetime.ms"
EXPIRY_TIME_MS = "delegation.token.expiry.time.ms"
CHECK_INTERVAL_MS = "delegation.token.expiry.check.interval.ms"
HOUR_MS = 3_600_000

TOKEN_KEYS = (
    ConfigKey(
        SECRET_KEY,
        ConfigType.PASSWORD,
        None,
        None,
        Importance.MEDIUM,
        "The key from which the secrets of tokens are derived; the same on all nodes. Without it there are no "
        "delegation tokens.",
    ),
    ConfigKey(
        MAX_LIFETIME_MS,
        ConfigType.LONG,
        7 * 24 * HOUR_MS,
        between(1),
        Importance.MEDIUM,
        "How long a token may live, however often it is renewed.",
    ),
    ConfigKey(
        EXPIRY_TIME_MS,
        ConfigType.LONG,
        24 * HOUR_MS,
        between(1),
        Importance.MEDIUM,
        "How long a token is valid before it has to be renewed.",
    ),
    ConfigKey(
        CHECK_INTERVAL_MS,
        ConfigType.LONG,
        HOUR_MS,
        between(1),
        Importance.LOW,
        "How often a lone node removes expired tokens; in a cluster the controllers remove them.",
    ),
)
