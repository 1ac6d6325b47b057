"""Sources of configuration texts: Java properties files, ``KAFKA_*`` variables, ``key=value`` arguments.

This module handles texts only; ``broker/config/broker_config.py`` parses the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

# Variables ``KAFKA_*`` that the scripts of Apache's image and distribution read themselves: no configuration keys.
EXCLUDED_VARIABLES = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_JMX_HOSTNAME",
    }
)
SYSTEM_PROPERTIES = frozenset(
    {"org.apache.kafka.sasl.oauthbearer.allowed.urls", "org.apache.kafka.sasl.oauthbearer.allowed.files"}
)
"""Kafka's Java system properties that Tidelog reads as configuration keys: the URLs and files from which keys that
verify OAUTHBEARER's tokens may come."""
_PREFIX = "KAFKA_"
_HOST = re.compile(r"://(\[[^]]*]|[^:,]*):")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPACE = " \t\f"


class PropertiesError(ValueError):
    """A malformed text; the message says what is wrong."""


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file: ``key=value``, ``key: value`` or ``key value``; ``#`` and ``!`` start comments.

    A backslash at the end joins lines, elsewhere it escapes (``\\t``, ``\\u00e9``). The last of equal keys wins.
    Raises PropertiesError for a malformed ``\\u``, and for half of a surrogate pair.
    """
    properties = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        properties[_unescape(key)] = _unescape(value)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments, blank lines and leading space, continued ones joined."""
    pending = ""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(_SPACE)
        if not pending and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    """Split a line into key and value: the key ends at the first ``=``, ``:`` or space that is not escaped."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _SPACE:
        position += 2 if line[position] == "\\" else 1
    rest = line[position:].lstrip(_SPACE)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_SPACE)
    return line[:position], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            parts.append(character)
        elif text[position] == "u":
            parts.append(_unicode(text[position + 1 : position + 5]))
            position += 5
        else:
            parts.append(_ESCAPES.get(text[position], text[position]))
            position += 1
    return _join_surrogates("".join(parts))


def _join_surrogates(text: str) -> str:
    """Join the two escapes that Java writes for a character beyond U+FFFF. Raises PropertiesError for one alone."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PropertiesError("half of a pair of \\u escapes: the other half must follow or precede it") from None


def _unicode(digits: str) -> str:
    try:
        if len(digits) == 4:
            return chr(int(digits, 16))
    except ValueError:
        pass
    raise PropertiesError(f"malformed \\u{digits}: four hexadecimal digits must follow \\u")


def properties_from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Collect keys from ``KAFKA_*`` variables as Apache's image reads them.

    The prefix is removed, the rest becomes lower case; then ``___`` means ``-``, ``__`` means ``_`` and ``_`` means
    ``.``: ``KAFKA_LOG_RETENTION_MS`` is ``log.retention.ms``. If advertised listeners are given and listeners are not,
    their ports are opened on all interfaces, as in that image.
    """
    properties = {}
    for name, value in environment.items():
        if name.startswith(_PREFIX) and name not in EXCLUDED_VARIABLES:
            key = name[len(_PREFIX) :].lower().replace("_", ".").replace("...", "-").replace("..", "_")
            properties[key] = value
    properties |= properties_from_options(environment.get("KAFKA_OPTS", ""))
    if properties.get("advertised.listeners") and not properties.get("listeners"):
        properties["listeners"] = _HOST.sub("://0.0.0.0:", properties["advertised.listeners"])
    return properties


def properties_from_options(options: str) -> dict[str, str]:
    """Collect Kafka's system properties from options of a JVM, ``-Dorg.apache.kafka.NAME=VALUE``."""
    words = [word.strip("\"'").removeprefix("-D").partition("=") for word in options.split() if "-D" in word]
    return {key: value for key, _, value in words if key in SYSTEM_PROPERTIES}


def properties_from_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Parse keys from ``key=value`` arguments. Raises PropertiesError for one without ``=`` or key, and does
    not repeat it: it may be a password, cut off from its key."""
    properties = {}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.strip():
            raise PropertiesError("--override: expected key=value, found a text without key or equals sign")
        properties[key.strip()] = value.strip()
    return properties
