"""Settings of a client: bootstrap addresses, the security keys of Kafka's clients, and the timeout.

A profile is a properties file with Kafka's own client keys. So a file for Kafka's tools (``--command-config``) can be
used here too, if it has only ``bootstrap.servers`` and keys of ``known_keys``: any other key is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from tidelog.broker.config.secrets import resolve
from tidelog.broker.config.sources import PropertiesError, parse_properties
from tidelog.client.connection import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, PLAIN, SettingsError, parse_bootstrap
from tidelog.client.security import Security, known_keys
from tidelog.client.wire import explain_os_error
from tidelog.protocol.config_def import ConfigError

PROFILE_VARIABLE = "TIDELOG_PROFILE"
PROFILE_PATH = "tidelog/profile.properties"
"""Path of the profile below ``$XDG_CONFIG_HOME`` or ``~/.config``."""
BOOTSTRAP_KEY = "bootstrap.servers"


class ClientSettings(NamedTuple):
    """Addresses (``HOST:PORT``, separated by commas), security, and the timeout of each wait for a broker."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    security: Security = PLAIN
    timeout_s: float = DEFAULT_TIMEOUT_S


def load_settings(
    bootstrap: str | None,
    profile: str | None,
    timeout_s: float,
    environment: Mapping[str, str],
    option: str = "--bootstrap",
) -> ClientSettings:
    """Load the settings of a command; its options override the profile.

    ``option`` names where ``bootstrap`` was given, for errors. Raises SettingsError.
    """
    properties = read_profile(profile, environment)
    configured = properties.pop(BOOTSTRAP_KEY, None)
    if bootstrap is not None:
        check_servers(bootstrap, option)
    elif configured is not None:
        check_servers(configured, BOOTSTRAP_KEY)
    chosen = bootstrap or configured or DEFAULT_BOOTSTRAP
    return ClientSettings(chosen, Security(properties), timeout_s)


def check_servers(servers: str, option: str) -> None:
    """Check addresses that are separated by commas. Raises SettingsError, which names the option or key."""
    named = [server.strip() for server in servers.split(",") if server.strip()]
    if not named:
        raise SettingsError(f"{option} {servers!r}: expected HOST:PORT, or several, separated by commas")
    for server in named:
        parse_bootstrap(server, option)


def read_profile(path: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Read the profile at ``path``, else the one that PROFILE_VARIABLE names, else the user's own if it exists.

    Raises SettingsError.
    """
    named = path or environment.get(PROFILE_VARIABLE)
    profile_file = named or default_profile(environment)
    try:
        with open(profile_file, encoding="utf-8") as file:
            properties = parse_properties(file.read())
    except FileNotFoundError:
        if named is None:
            return {}
        raise SettingsError(f"profile {profile_file}: there is no such file") from None
    except OSError as error:
        raise SettingsError(f"profile {explain_os_error(error)}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"profile {profile_file}: expected properties in UTF-8") from None
    except PropertiesError as error:
        raise SettingsError(f"profile {profile_file}: {error}") from error
    for key in properties:
        if key != BOOTSTRAP_KEY and key not in known_keys():
            known = ", ".join(sorted({BOOTSTRAP_KEY, *known_keys()}))
            raise SettingsError(f"profile {profile_file}: unknown key {key!r}; expected {known}")
    try:
        return resolve(properties, environment).texts
    except ConfigError as error:
        raise SettingsError(f"profile {profile_file}: {error.message}") from error


def default_profile(environment: Mapping[str, str]) -> str:
    """Return the path of the user's own profile."""
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config")
    return os.path.join(home, PROFILE_PATH)
