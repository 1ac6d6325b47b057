"""Weak settings of listeners and HTTP interfaces, which are logged but do not prevent the start.

Each finding is one log line; with ``tidelog serve --strict`` any of them prevents the start. Apache Kafka starts with
such settings of its listeners, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tidelog.broker.config.broker_config import PLAIN_PROTOCOLS, SASL_PROTOCOLS, BrokerConfig, Endpoint
from tidelog.broker.config.keys.admin import (
    ADMIN_AUTHENTICATION,
    ADMIN_LISTENER,
    ADMIN_TOKEN_KEYS,
    SCHEMA_REGISTRY_LISTENER,
)
from tidelog.broker.config.keys.security import UNSECURED_HANDLER, listener_values, mechanism_values

OAUTHBEARER, GSSAPI = "OAUTHBEARER", "GSSAPI"
_READABLE_BY_OTHERS = 0o004
HTTP_INTERFACES = {ADMIN_LISTENER: "the admin interface", SCHEMA_REGISTRY_LISTENER: "the schema registry"}
"""Key of an interface's address -> its name in findings."""


def find_weaknesses(config: BrokerConfig) -> list[str]:
    """Return the findings for a configuration. It reads the file modes of keystores and keytabs. Raises ConfigError."""
    found = [finding for endpoint in config.listeners for finding in _findings(config, endpoint)]
    return [*found, *_http_findings(config)]


def _findings(config: BrokerConfig, endpoint: Endpoint) -> Iterator[str]:
    name, protocol = endpoint.listener_name, endpoint.security_protocol
    if protocol == "PLAINTEXT":
        if not is_loopback(endpoint.host) and any(one.security_protocol != protocol for one in config.listeners):
            yield f"listener {name} is open to the network without any security, beside listeners that have some"
        return
    values = listener_values(config.listener_texts(), name)
    client_auth = values["ssl.client.auth"] if protocol not in PLAIN_PROTOCOLS else "none"
    if (protocol in SASL_PROTOCOLS or client_auth != "none") and not config.get("authorizer.class.name"):
        yield f"listener {name} authenticates, but without authorizer.class.name every client may do everything"
    if protocol == "SASL_PLAINTEXT" and not is_loopback(endpoint.host):
        yield f"listener {name} is open to the network without TLS: what clients log in with can be read on the way"
    if protocol in SASL_PROTOCOLS and OAUTHBEARER in values["sasl.enabled.mechanisms"]:
        yield from _token_findings(config, name)
    if protocol in SASL_PROTOCOLS and GSSAPI in values["sasl.enabled.mechanisms"]:
        yield from _keytab_findings(config, name)
    if client_auth == "requested" and protocol not in SASL_PROTOCOLS:
        yield f"listener {name} lets clients without a certificate in, as User:ANONYMOUS (ssl.client.auth=requested)"
    location = values["ssl.keystore.location"]
    if protocol not in PLAIN_PROTOCOLS and location and is_readable_by_others(location):
        yield f"the private key of listener {name} can be read by every user of this machine: chmod 600 {location}"


def _keytab_findings(config: BrokerConfig, name: str) -> Iterator[str]:
    from tidelog.broker.security.sasl.jaas import JAAS_KEY, parse_jaas  # imported late: few listeners have a keytab
    from tidelog.broker.security.sasl.kerberos.system_keytab import system_keytab

    jaas = mechanism_values(config.listener_texts(), name, GSSAPI)[JAAS_KEY]
    named = None if jaas is None else parse_jaas(jaas).options.get("keyTab")
    path = system_keytab(os.environ) if named is None else named.removeprefix("file:")
    if path and is_readable_by_others(path):
        yield f"the keytab of listener {name} can be read by every user of this machine: chmod 600 {path}"


def _token_findings(config: BrokerConfig, name: str) -> Iterator[str]:
    values = mechanism_values(config.listener_texts(), name, OAUTHBEARER)
    if values["sasl.server.callback.handler.class"] == UNSECURED_HANDLER:
        yield f"listener {name} takes unsecured tokens: every client may be every user"
        return
    for claim in ("audience", "issuer"):
        if not values[f"sasl.oauthbearer.expected.{claim}"]:
            yield f"listener {name} takes tokens of any {claim} (sasl.oauthbearer.expected.{claim} is not set)"


def _http_findings(config: BrokerConfig) -> Iterator[str]:
    """Yield the findings for the HTTP interfaces, which share their logins and their TLS (``admin.*``)."""
    served = {name: config.get_str(key) for key, name in HTTP_INTERFACES.items() if config.get_str(key)}
    names = " and ".join(served)
    for name, address in served.items():
        host = address.rpartition(":")[0].strip("[]")
        if config.get_list(ADMIN_AUTHENTICATION) == ["none"] and not is_loopback(host):
            yield f"{name} is open to the network, and requires no login (admin.authentication=none)"
    location = config.get("admin.ssl.keystore.location")
    if served and location and is_readable_by_others(str(location)):
        yield f"the private key of {names} can be read by every user of this machine: chmod 600 {location}"
    if served and "bearer" in config.get_list(ADMIN_AUTHENTICATION) and config.get(ADMIN_TOKEN_KEYS):
        for claim in ("audience", "issuer"):
            key = f"admin.sasl.oauthbearer.expected.{claim}"
            if not config.get(key):
                yield f"{names}: tokens of any {claim} are accepted ({key} is not set)"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host. Names other than localhost are not looked up."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return True
    import ipaddress  # takes 0.3 MB; a broker on its default address does not need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_readable_by_others(path: str) -> bool:
    """Return whether users other than the owner and the group may read a file."""
    try:
        return bool(os.stat(path).st_mode & _READABLE_BY_OTHERS)
    except OSError:
        return False
