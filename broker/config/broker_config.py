"""The broker's configuration: the tables of keys of all parts, and the values that were read for them.

Sources, later ones win: defaults; the files of ``TIDELOG_CONFIG_FILES``; ``server.properties``; ``KAFKA_*`` variables;
``--override``; other options of ``tidelog serve``; then what the admin API has set, for the whole cluster and after
that for this node. An unknown key is logged once, without its name if it may be a line of a secret. An invalid static
value, or an unknown key of ``--override``, ends the start: ``ConfigError`` names the key and what is wrong, in one
line. For an invalid value that the admin API has stored, the former value stays in force.

The loop's thread changes a ``BrokerConfig``, after the start only by ``set_dynamic``; other threads read it, too.
Readers ask for a value whenever they need it, so a change takes effect at once.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.broker.config.cordoned import ALL_DIRECTORIES, CORDONED_KEY, find_cordoned, find_uncordonable
from tidelog.broker.config.keys.admin import ADMIN_KEYS
from tidelog.broker.config.keys.authorizer import AUTHORIZER_KEYS
from tidelog.broker.config.keys.broker import BROKER_KEYS, DEFAULT_LISTENERS, NO_EFFECT
from tidelog.broker.config.keys.security import (
    AUTHENTICATION_KEYS,
    KERBEROS_KEYS,
    OAUTHBEARER_KEYS,
    SASL_KEYS,
    TLS_KEYS,
    is_listener_key,
)
from tidelog.broker.config.keys.token import TOKEN_KEYS
from tidelog.broker.config.secrets import NOTHING, PROVIDERS_KEY, ResolvedTexts, resolve
from tidelog.broker.config.sources import (
    PropertiesError,
    parse_properties,
    properties_from_environment,
    properties_from_overrides,
)
from tidelog.cleaner.config import CLEANER_CONFIG_DEF
from tidelog.log.config import SYNONYMS, TOPIC_CONFIG_DEF, topic_defaults
from tidelog.protocol.config_def import ConfigDef, ConfigError

logger = logging.getLogger(__name__)

BROKER_CONFIG_DEF = ConfigDef(
    (
        *BROKER_KEYS,
        *CLEANER_CONFIG_DEF,
        *ADMIN_KEYS,
        *AUTHORIZER_KEYS,
        *TLS_KEYS,
        *SASL_KEYS,
        *OAUTHBEARER_KEYS,
        *KERBEROS_KEYS,
        *AUTHENTICATION_KEYS,
        *TOKEN_KEYS,
    )
)
UNROUTABLE = ("0.0.0.0", "::")
"""Hosts that stand for every interface. A listener may have one, an advertised listener may not."""
MAX_PORT = 65535
KEY_FORM = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,31}(?:\.[a-zA-Z0-9_-]{1,32})+")
"""Words joined by dots, each shorter than the parts of a signed token."""
_LONGEST_KEY = 100
CLUSTER_ID_VARIABLE = "CLUSTER_ID"  # the one variable of Apache's image that has no prefix
FILES_VARIABLE = "TIDELOG_CONFIG_FILES"
"""Environment variable with paths of properties files, separated by colons; all other sources win over them, and
missing files are skipped. A container image sets its defaults this way: a user's own settings win over them, and the
image's health check, ``tidelog ping``, reads them, too.
"""
SERVED_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN_PROTOCOLS = frozenset({"PLAINTEXT", "SASL_PLAINTEXT"})
"""Protocols that do not encrypt."""
SASL_PROTOCOLS = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
"""Protocols that authenticate by SASL."""


class Endpoint(NamedTuple):
    """One listener, or one advertised address. An empty host of a listener means all interfaces; that of an advertised
    address means the address at which the client reached the broker."""

    listener_name: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


class ServeOptions(NamedTuple):
    """Settings for which ``tidelog serve`` has options of its own; None leaves the value of the key."""

    data_dir: str | None = None
    host: str | None = None
    port: int | None = None

    def apply(self, texts: dict[str, str]) -> None:
        """Set the keys of these options; host and port change the first listener."""
        if self.data_dir is not None:
            texts["log.dirs"] = self.data_dir
        if self.host is None and self.port is None:
            return
        first, comma, rest = texts.get("listeners", DEFAULT_LISTENERS).partition(",")
        name, _, address = first.partition("://")
        host, _, port = address.rpartition(":")
        host = host if self.host is None else self.host
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        texts["listeners"] = f"{name}://{host}:{port if self.port is None else self.port}{comma}{rest}"


class BrokerConfig:
    """Values by Kafka's key names; attributes hold the few values that need more than a look-up."""

    __slots__ = (
        "_given",
        "_listener_texts",
        "_values",
        "advertised_listeners",
        "listeners",
        "log_dirs",
        "node_id",
        "resolved",
        "security_protocols",
        "static_texts",
        "unknown_keys",
    )

    def __init__(self, texts: Mapping[str, str], resolved: ResolvedTexts = NOTHING) -> None:
        """Parse texts that are already merged; ``resolved`` says which are secrets. Raises ConfigError."""
        self.resolved = resolved
        self.static_texts: dict[str, str] = dict(texts)
        self._given: dict[str, str] = select_known_texts(texts)
        self._listener_texts: dict[str, str] = select_listener_texts(texts)
        self._values: dict[str, Any] = parse_texts(self._given)
        check_group_bounds(self._given, self._values)
        self.unknown_keys: list[str] = sorted(key for key in texts if not is_known(key))
        self.node_id: int = self._node_id()
        self.log_dirs: list[str] = self._log_dirs()
        if (wrong := find_uncordonable(self.get_list(CORDONED_KEY), self.log_dirs)) is not None:
            raise invalid_value_error(CORDONED_KEY, wrong, f"directories of log.dirs, or {ALL_DIRECTORIES} alone")
        protocols = self.security_protocols = self._security_protocols()
        """Security protocols by the names of listeners, in upper case."""
        self.listeners: list[Endpoint] = self._parse_listeners(protocols)
        self.advertised_listeners: dict[str, Endpoint] = self._parse_advertised_listeners(protocols)

    @classmethod
    def load(
        cls,
        path: str | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Iterable[str] = (),
        options: ServeOptions | None = None,
    ) -> BrokerConfig:
        """Merge file, environment, overrides and options, in this order, and resolve references to secrets.

        Raises ConfigError.
        """
        overrides = list(overrides)
        texts = merge_texts(path, environment, overrides)
        if options is not None:
            options.apply(texts)
        resolved = resolve(texts, environment or {})
        try:
            config = cls(resolved.texts, resolved)
        except ConfigError as error:
            raise ConfigError(resolved.hide(error.message)) from None
        check_override_keys(properties_from_overrides(overrides))
        return config

    def get(self, name: str) -> Any:
        """Return the value of any declared key, None where it has no value."""
        return self._values[name]

    def get_int(self, name: str) -> int:
        """Return the value of a key of type int, short or long."""
        value: int = self._values[name]
        return value

    def get_bool(self, name: str) -> bool:
        """Return the value of a key of type boolean."""
        value: bool = self._values[name]
        return value

    def get_str(self, name: str) -> str:
        """Return the value of a key of type string that has one."""
        value: str = self._values[name]
        return value

    def get_list(self, name: str) -> list[str]:
        """Return the value of a key of type list; empty where it has none."""
        return list(self._values[name] or ())

    def listener_texts(self) -> dict[str, str]:
        """Return the given texts, with the keys of single listeners; see ``keys.security.listener_values``."""
        return {**self._given, **self._listener_texts}

    def listener_texts_with(self, dynamic: Mapping[str, str]) -> dict[str, str]:
        """Return ``listener_texts`` as they would be if ``dynamic`` replaced the texts that the admin API has set."""
        merged = {**self.static_texts, **dynamic}
        return {**select_known_texts(merged), **select_listener_texts(merged)}

    @property
    def values(self) -> Mapping[str, Any]:
        """All declared keys with their values, for parts that build their own config from them."""
        return self._values

    @property
    def cordoned_log_dirs(self) -> list[str]:
        """The entries of ``log.dirs`` that are cordoned now."""
        return find_cordoned(self.get_list(CORDONED_KEY), self.log_dirs)

    def check_change(self, texts: Mapping[str, str]) -> None:
        """Raise ConfigError unless the admin API may set these texts, beside those in force."""
        changed = select_known_texts(texts)
        check_group_bounds(changed, parse_texts({**self._given, **changed}))

    def set_dynamic(self, texts: Mapping[str, str]) -> None:
        """Apply the texts that the admin API has set, which win over the static ones. Raises ConfigError, with nothing
        changed.

        A group's value beyond its bound is accepted: the bound may be newer, and groups are held within it.
        """
        merged = {**self.static_texts, **texts}
        given = select_known_texts(merged)
        self._values = parse_texts(given)
        self._given = given
        self._listener_texts = select_listener_texts(merged)

    def settle(self, name: str, text: str) -> None:
        """Replace a static value by the one in force, such as an address whose port 0 has become a free port."""
        self.static_texts[name] = self._given[name] = text
        self._values[name] = BROKER_CONFIG_DEF[name].parse(text)

    def topic_defaults(self) -> dict[str, Any]:
        """Return the defaults of topic-level keys that the given server keys set; a topic's own values win over
        them.
        """
        return topic_defaults({key: self._values[key] for key in self._given})

    def log_unknown_keys(self) -> None:
        """Log which given keys are unknown or have no effect here."""
        without_effect = [key for key in self.static_texts if has_no_effect(key)]
        if without_effect:
            logger.info("configuration keys without effect here: %s", ", ".join(sorted(without_effect)))
        unnamed = 0
        for key in self.unknown_keys:
            if may_be_shown(key):
                logger.warning("unknown configuration key %s, ignored%s", key, nearest_key(key))
            else:
                unnamed += 1
        if unnamed:
            logger.warning(
                "unknown configuration keys, ignored: %d that are not shown, as they may be lines of a secret", unnamed
            )

    def _node_id(self) -> int:
        if "node.id" not in self.static_texts and self.get_int("broker.id") >= 0:
            return self.get_int("broker.id")
        return self.get_int("node.id")

    def _log_dirs(self) -> list[str]:
        directories = self.get_list("log.dirs") if "log.dirs" in self._given else [self.get_str("log.dir")]
        if not directories or not all(directories):
            raise invalid_value_error(
                "log.dirs", self._given.get("log.dirs", ""), "at least one directory, separated by commas"
            )
        paths = [os.path.join(os.path.abspath(directory), "") for directory in directories]
        if any(one.startswith(other) for one, other in itertools.permutations(paths, 2)):
            expected = "different directories, none of which lies in another, separated by commas"
            raise invalid_value_error("log.dirs", self._given["log.dirs"], expected)
        return directories

    def _security_protocols(self) -> dict[str, str]:
        """Map listener names to security protocols."""
        protocols = {}
        for entry in self.get_str("listener.security.protocol.map").split(","):
            name, separator, protocol = entry.strip().partition(":")
            if not separator:
                raise invalid_value_error(
                    "listener.security.protocol.map", entry, "NAME:PROTOCOL entries separated by commas"
                )
            protocols[name.strip().upper()] = protocol.strip().upper()
        return protocols

    def _parse_listeners(self, protocols: Mapping[str, str]) -> list[Endpoint]:
        """Parse the listeners to open."""
        text = self.get_str("listeners")
        endpoints = self._parse_without_controllers("listeners", text, protocols)
        if not endpoints:
            raise invalid_value_error("listeners", text, "at least one NAME://HOST:PORT that is not the controller's")
        check_listeners(text, endpoints)
        return endpoints

    def _parse_advertised_listeners(self, protocols: Mapping[str, str]) -> dict[str, Endpoint]:
        """Return the advertised listeners by name; like Kafka, refuse those that no client could reach."""
        names = [endpoint.listener_name for endpoint in self.listeners]
        text = self._values["advertised.listeners"] or ""
        endpoints = self._parse_without_controllers("advertised.listeners", text, protocols)
        for endpoint in endpoints:
            if endpoint.listener_name not in names:
                raise invalid_value_error(
                    "advertised.listeners", str(endpoint), f"names that listeners has: {', '.join(names)}"
                )
            if endpoint.host in UNROUTABLE:
                raise invalid_value_error("advertised.listeners", str(endpoint), "an address that clients can reach")
        return {endpoint.listener_name: endpoint for endpoint in endpoints}

    def _parse_without_controllers(self, key: str, text: str, protocols: Mapping[str, str]) -> list[Endpoint]:
        """Parse all endpoints but those of controllers' listeners, none of which is opened here."""
        controllers = {name.upper() for name in self.get_list("controller.listener.names")}
        protocols = {**protocols, **dict.fromkeys(controllers, SERVED_PROTOCOLS[0])}
        endpoints = parse_endpoints(key, text, protocols)
        return [endpoint for endpoint in endpoints if endpoint.listener_name not in controllers]


def merge_texts(path: str | None, environment: Mapping[str, str] | None, overrides: Iterable[str]) -> dict[str, str]:
    """Merge files, environment and overrides to one mapping, later ones winning.

    Raises ConfigError for a file that cannot be read and for an override that is not key=value.
    """
    environment = environment or {}
    texts: dict[str, str] = {}
    for default in filter(os.path.exists, environment.get(FILES_VARIABLE, "").split(":")):
        texts.update(read_properties(default, FILES_VARIABLE))
    if path is not None:
        texts.update(read_properties(path))
    if CLUSTER_ID_VARIABLE in environment:
        texts["cluster.id"] = environment[CLUSTER_ID_VARIABLE]
    texts.update(properties_from_environment(environment))
    try:
        texts.update(properties_from_overrides(overrides))
    except PropertiesError as error:
        raise ConfigError(str(error)) from error
    return texts


def read_properties(path: str, origin: str = "--config") -> dict[str, str]:
    """Read the texts of a properties file. Raises ConfigError, which names the file and ``origin``."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read())
    except (OSError, UnicodeDecodeError, PropertiesError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{origin} {path}: {reason}; expected a server.properties file") from error


def parse_endpoints(key: str, text: str, protocols: Mapping[str, str]) -> list[Endpoint]:
    """Parse the endpoints of ``listeners`` or ``advertised.listeners``. Raises ConfigError."""
    endpoints = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, separator, address = entry.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise invalid_value_error(key, entry, "NAME://HOST:PORT with a port from 0 to 65535, separated by commas")
        name = name.upper()
        if name not in protocols:
            raise invalid_value_error(
                key, entry, f"a listener name of listener.security.protocol.map: {', '.join(protocols)}"
            )
        endpoints.append(Endpoint(name, protocols[name], host.strip("[]"), int(port)))
    return endpoints


def check_listeners(text: str, endpoints: Iterable[Endpoint]) -> None:
    """Raise ConfigError for a name or port used twice, and for a protocol that is not served."""
    names: set[str] = set()
    ports: set[tuple[int, bool]] = set()
    for endpoint in endpoints:
        if endpoint.security_protocol not in SERVED_PROTOCOLS:
            raise invalid_value_error(
                "listeners", str(endpoint), f"the security protocols {', '.join(SERVED_PROTOCOLS)}"
            )
        port = (endpoint.port, ":" in endpoint.host)
        if endpoint.listener_name in names or (endpoint.port and port in ports):
            raise invalid_value_error("listeners", text, "each listener name and each port once")
        names.add(endpoint.listener_name)
        ports.add(port)


def invalid_value_error(key: str, value: object, allowed: str) -> ConfigError:
    """Build the error for an invalid value, in one line of the form that ``ConfigKey`` uses."""
    return ConfigError(f"Invalid value {value!r} for configuration {key}; allowed: {allowed}")


def exceeded_bound(name: str, value: Any, values: Mapping[str, Any]) -> str | None:
    """Return the broker's key ``group.*.min.*`` or ``group.*.max.*`` that forbids this value of a group's key, or
    None.
    """
    protocol, _, rest = name.partition(".")
    for bound, sign in (("min", 1), ("max", -1)):
        key = f"group.{protocol}.{bound}.{rest.removeprefix('num.')}"
        if key in values and sign * (value - values[key]) < 0:
            return key
    return None


def check_group_bounds(texts: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first of these texts that is beyond a bound in ``values``, which has all keys."""
    for key, text in texts.items():
        if (bound := exceeded_bound(key.removeprefix("group."), values[key], values)) is not None:
            raise invalid_value_error(key, text, f"nothing beyond {bound}, which is {values[bound]}")


def bounded_texts(own: Mapping[str, str], values: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a group's own configs, each within the broker's minimum and maximum: ``values`` are the broker's.

    A config may be older than a bound, or may have been set by a controller with other bounds. Source:
    GroupConfig.evaluate of Kafka 4.3.
    """
    bounded = dict(own)
    for name, text in own.items():
        is_number = text.isascii() and text.removeprefix("-").isdecimal()
        if is_number and (bound := exceeded_bound(name, int(text), values)) is not None:
            bounded[name] = str(values[bound])
    return bounded


def is_known(key: str) -> bool:
    """Return whether the key is known: in a table, of a listener, with the prefix of a provider, or without effect
    here.
    """
    return (
        key in BROKER_CONFIG_DEF.keys
        or has_no_effect(key)
        or is_listener_key(key)
        or key.startswith(f"{PROVIDERS_KEY}.")
    )


def check_override_keys(keys: Iterable[str]) -> None:
    """Raise ConfigError for an unknown key: in a file it may be another version's, on a command line it is a
    mistake.
    """
    for key in keys:
        if not is_known(key):
            raise ConfigError(f"--override {key}: unknown configuration key{nearest_key(key)}")


def has_no_effect(key: str) -> bool:
    """Return whether this is a key of Kafka for something that Tidelog does not have."""
    if key in BROKER_CONFIG_DEF.keys:
        return False
    return key in NO_EFFECT or any(key.startswith(prefix) for prefix in NO_EFFECT if prefix.endswith("."))


def parse_texts(given: Mapping[str, str]) -> dict[str, Any]:
    """Parse the values of all keys. Raises ConfigError, also for a default that no topic may have."""
    values = BROKER_CONFIG_DEF.parse(given)
    for topic_key, synonyms in SYNONYMS.items():
        for server_key in (synonym.server_key for synonym in synonyms if synonym.server_key in given):
            if values[server_key] is not None:
                try:
                    TOPIC_CONFIG_DEF[topic_key].parse(values[server_key])
                except ConfigError:
                    raise invalid_value_error(
                        server_key, given[server_key], TOPIC_CONFIG_DEF[topic_key].allowed
                    ) from None
    return values


def select_known_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Select only the keys that a table declares."""
    return {key: text for key, text in texts.items() if key in BROKER_CONFIG_DEF.keys}


def select_listener_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Select only the security keys of single listeners."""
    return {key: text for key, text in texts.items() if is_listener_key(key)}


def may_be_shown(key: str) -> bool:
    """Return whether an unknown key may be in the log: it has the form of Kafka's keys, or resembles one of them.

    Another key may be a line of a private key, which is in the wrong file or was not joined to the line before it.
    """
    return KEY_FORM.fullmatch(key) is not None or (len(key) <= _LONGEST_KEY and bool(nearest_key(key)))


def nearest_key(key: str) -> str:
    """Return a hint at the most similar known key; an empty text if none is similar."""
    import difflib  # needed only after a mistake

    close = difflib.get_close_matches(key, [known.name for known in BROKER_CONFIG_DEF], n=1, cutoff=0.8)
    return f"; the nearest is {close[0]}" if close else ""
