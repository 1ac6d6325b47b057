"""References in configuration values to secrets that are stored elsewhere: ``${PROVIDER:...}`` (KIP-297, KIP-421).

    ${file:PATH:KEY}   the value of a key in a properties file
    ${dir:PATH:NAME}   the content of a file in a directory, as container platforms mount secrets
    ${env:NAME}        the value of an environment variable

References are resolved once, at the start. ``config.providers`` may give the providers other names, and limit them to
certain paths or variables, as in Kafka; no class is loaded. DescribeConfigs and the log do not show resolved values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tidelog.broker.config.sources import PropertiesError, parse_properties
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.foreign_text import compile_pattern

PROVIDERS_KEY = "config.providers"
MAX_BYTES = 1024 * 1024
HIDDEN = "[hidden]"
_REFERENCE = re.compile(r"\$\{([^}:]+):(?:([^}]*?):)?([^}]*)\}")
_KINDS = {"FileConfigProvider": "file", "DirectoryConfigProvider": "dir", "EnvVarConfigProvider": "env"}
"""Kafka's class in ``org.apache.kafka.common.config.provider`` -> the provider's usual name."""
_PACKAGE = "org.apache.kafka.common.config.provider."

Provider = Callable[[str, str], str]
"""Path and key -> value. Raises ConfigError, LookupError, OSError, ValueError."""


class ResolvedTexts(NamedTuple):
    """Configuration texts whose references are resolved."""

    texts: dict[str, str]
    keys: frozenset[str]
    """Keys in whose texts a reference was replaced."""
    secrets: frozenset[str]
    """All values that replaced a reference."""

    def hide(self, text: str) -> str:
        """Return a message without the secrets in it; the longest go first, as one may be part of another."""
        forms = {form for secret in self.secrets for form in forms_of(secret)}
        if not forms:
            return text
        found = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        return re.sub(found, lambda _: HIDDEN, text, flags=re.IGNORECASE)


NOTHING = ResolvedTexts({}, frozenset(), frozenset())


def resolve(texts: Mapping[str, str], environment: Mapping[str, str]) -> ResolvedTexts:
    """Replace references by their values. Raises ConfigError, which names the key."""
    if not any("${" in text for text in texts.values()):
        return NOTHING._replace(texts=dict(texts))
    providers = providers_of(texts, environment)
    found: dict[str, str] = {}
    secrets: set[str] = set()
    for key, text in texts.items():
        found[key] = _REFERENCE.sub(partial(_value_of, key, providers, secrets), text)
    changed = frozenset(key for key in texts if found[key] != texts[key])
    return ResolvedTexts(found, changed, frozenset(secrets - {""}))


def forms_of(secret: str) -> Iterator[str]:
    """Yield the forms in which an error may quote a secret: whole, as an element of a list, stripped, and as a Python
    literal.
    """
    for part in (secret, *re.split("[,;\n]", secret)):
        for form in (part, part.strip()):
            yield from filter(None, (form, repr(form)[1:-1], form.replace("\\", "\\\\").replace("'", "\\'")))


def _value_of(key: str, providers: Mapping[str, Provider], secrets: set[str], match: re.Match[str]) -> str:
    """Return the value of a reference. A reference to an unknown provider stays as it is, as in Kafka. Raises
    ConfigError.
    """
    name, path, wanted = match.groups()
    if name not in providers:
        return match[0]
    try:
        value = providers[name](path or "", wanted)
    except ConfigError as error:
        raise ConfigError(f"{key}: {match[0]}: {error.message}") from error
    except OSError as error:
        raise ConfigError(f"{key}: {match[0]}: {error.strerror}") from error
    except LookupError:
        raise ConfigError(f"{key}: {match[0]}: there is no such secret") from None
    except ValueError as error:
        raise ConfigError(f"{key}: {match[0]}: the file cannot be read as text") from error
    secrets.add(value)
    return value


def providers_of(texts: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Provider]:
    """Return the providers by name: those of ``config.providers``, else file, dir and env. Raises ConfigError."""
    if PROVIDERS_KEY not in texts:
        return {kind: make_provider(kind, environment, None) for kind in _KINDS.values()}
    found = {}
    for name in filter(None, map(str.strip, texts[PROVIDERS_KEY].split(","))):
        class_key = f"{PROVIDERS_KEY}.{name}.class"
        kind = _KINDS.get(texts.get(class_key, "").removeprefix(_PACKAGE))
        if kind is None:
            allowed = ", ".join(_PACKAGE + one for one in _KINDS)
            raise ConfigError(
                f"Invalid value {texts.get(class_key)!r} for configuration {class_key}; allowed: {allowed}"
            )
        limit = "allowlist.pattern" if kind == "env" else "allowed.paths"
        found[name] = make_provider(kind, environment, texts.get(f"{PROVIDERS_KEY}.{name}.param.{limit}"))
    return found


def make_provider(kind: str, environment: Mapping[str, str], limit: str | None) -> Provider:
    """Return a provider; ``limit`` is a pattern for variables, a list of paths for files. Raises ConfigError."""
    if kind == "env":
        try:
            pattern = compile_pattern(limit or ".*")
        except ValueError:
            raise ConfigError(f"{PROVIDERS_KEY}: the allowlist.pattern {limit!r} is not a valid pattern") from None
        return partial(read_variable, environment, pattern)
    allowed = None if limit is None else [os.path.realpath(path.strip()) for path in limit.split(",") if path.strip()]
    return partial(read_key if kind == "file" else read_file_of, allowed)


def read_variable(environment: Mapping[str, str], pattern: re.Pattern[str], path: str, name: str) -> str:
    """Read a variable that the pattern allows. Raises LookupError."""
    if path or not pattern.fullmatch(name):
        raise LookupError
    return environment[name]


def read_key(allowed: list[str] | None, path: str, key: str) -> str:
    """Read a key of a properties file. Raises ConfigError, LookupError, OSError, ValueError."""
    try:
        return parse_properties(read_text(allowed, path))[key]
    except PropertiesError:
        raise ConfigError("a malformed escape \\u, or half of a pair of them") from None  # its text quotes the file


def read_file_of(allowed: list[str] | None, path: str, name: str) -> str:
    """Read the text of a file of a directory, without the line break at its end. Raises LookupError for a
    name that is no file's, and what ``read_text`` raises."""
    if name in ("", ".", "..") or "/" in name:
        raise LookupError
    return read_text(allowed, os.path.join(path, name)).removesuffix("\n").removesuffix("\r")


def read_text(allowed: list[str] | None, path: str) -> str:
    """Read a file at an allowed path. Raises ConfigError, OSError, ValueError."""
    real = os.path.realpath(path)
    if allowed is not None and not any(real == one or real.startswith(one.rstrip("/") + "/") for one in allowed):
        raise ConfigError("the path is not below one of allowed.paths")
    with open(real, encoding="utf-8") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the file has more than {MAX_BYTES} bytes")
    return text
