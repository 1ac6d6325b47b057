"""User, password and mechanism of a client, configured with the keys of Kafka's clients.

sasl.mechanism                  PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or OAUTHBEARER, whose keys are in ``bearer``
sasl.jaas.config                Kafka's PlainLoginModule or ScramLoginModule with username and password
sasl.username, sasl.password    the same, as librdkafka names them
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidelog.broker.security.sasl.client.exchange import HASHES, MECHANISMS, PLAIN, Credentials
from tidelog.client.sasl.bearer import KEYS as BEARER_KEYS
from tidelog.client.sasl.bearer import OAUTHBEARER, BearerCredentials, read_bearer_credentials
from tidelog.client.wire import SettingsError

MECHANISM_KEY, JAAS_KEY = "sasl.mechanism", "sasl.jaas.config"
USER_KEY, PASSWORD_KEY = "sasl.username", "sasl.password"
KEYS = frozenset({MECHANISM_KEY, JAAS_KEY, USER_KEY, PASSWORD_KEY, *BEARER_KEYS})
"""All supported keys of SASL."""
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that this client refuses in a user's name: NUL separates the fields of PLAIN, Tidelog's SCRAM takes no
control characters, UTF-8 no surrogates."""
_NOT_IN_PASSWORDS = re.compile("[\x00\ud800-\udfff]")


def read_credentials(properties: Mapping[str, str]) -> Credentials | BearerCredentials:
    """Read the credentials from client properties. Raises SettingsError, whose message has no password."""
    mechanism = properties.get(MECHANISM_KEY, "").upper()
    jaas = properties.get(JAAS_KEY)
    if mechanism == OAUTHBEARER:
        return read_bearer_credentials(properties, {} if jaas is None else _options_of(jaas, mechanism))
    if mechanism not in MECHANISMS:
        found = f"{MECHANISM_KEY}={mechanism}" if mechanism else f"{MECHANISM_KEY} is missing"
        raise SettingsError(f"{found}: expected {PLAIN}, {', '.join(HASHES)} or {OAUTHBEARER}")
    return _read_password(properties, mechanism, jaas)


def _read_password(properties: Mapping[str, str], mechanism: str, jaas: str | None) -> Credentials:
    """Read a user and a password. Raises SettingsError."""
    if jaas is None:
        given, user_key, password_key = properties, USER_KEY, PASSWORD_KEY
    elif USER_KEY in properties or PASSWORD_KEY in properties:
        raise SettingsError(f"{JAAS_KEY} is given with {USER_KEY} or {PASSWORD_KEY}: expected one way, not both")
    else:
        given, user_key, password_key = _options_of(jaas, mechanism), "username", "password"
    user, password = given.get(user_key, ""), given.get(password_key, "")
    if not user or not password:
        raise SettingsError(f"no user or no password: expected {USER_KEY} and {PASSWORD_KEY}, or both in {JAAS_KEY}")
    if _NOT_IN_NAMES.search(user):
        raise SettingsError(f"the user {user!r} has a control character or is not UTF-8")
    if _NOT_IN_PASSWORDS.search(password):
        raise SettingsError("the password has a NUL or is not UTF-8")
    return Credentials(mechanism, user, password)


def _options_of(text: str, mechanism: str) -> Mapping[str, str]:
    """Parse the options of a JAAS text for the mechanism. Raises SettingsError."""
    from tidelog.broker.security.sasl.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas
    from tidelog.protocol.config_def import ConfigError

    try:
        module = parse_jaas(text)
    except ConfigError as error:
        raise SettingsError(str(error)) from error
    expected = {PLAIN: PLAIN_MODULE, OAUTHBEARER: OAUTHBEARER_MODULE}.get(mechanism, SCRAM_MODULE)
    if module.name != expected:
        raise SettingsError(f"{JAAS_KEY} is for {module.name}: {MECHANISM_KEY}={mechanism} expects {expected}")
    if module.options.get("tokenauth", "").lower() == "true":
        raise SettingsError(f"{JAAS_KEY} has tokenauth=true: expected a user and a password, no delegation token")
    return module.options
