"""Parser of JAAS texts, ``MODULE FLAG name="value" ...;``, which are never run.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret" user_bob="other";

The callers compare a module's name with one of those below; no class is loaded. Source: Kafka's JaasConfig, which reads
these texts with Java's StreamTokenizer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidelog.protocol.config_def import ConfigError

JAAS_KEY = "sasl.jaas.config"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<mark>[=;])|"(?P<double>(?:\\.|[^"\\\n])*)"|'(?P<single>(?:\\.|[^'\\\n])*)'"""
    r"""|(?P<word>[^\s=;"'/]+)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class LoginModule(NamedTuple):
    """One entry of a JAAS text."""

    name: str
    options: dict[str, str]


class _Token(NamedTuple):
    text: str
    is_mark: bool


def parse_jaas(text: str) -> LoginModule:
    """Parse the only entry of a text. Raises ConfigError, which shows nothing of the text, as it holds passwords."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[0].is_mark or tokens[1].text.lower() not in FLAGS:
        raise _refuse("MODULE, a flag such as required, options, and a semicolon")
    options: dict[str, str] = {}
    position = 2
    while tokens[position] != _Token(";", is_mark=True):
        entry = tokens[position : position + 4]
        if len(entry) < 4 or entry[0].is_mark or entry[1] != _Token("=", is_mark=True) or entry[2].is_mark:
            raise _refuse('options as name="value", and a semicolon after the last')
        options[entry[0].text] = entry[2].text
        position += 3
    if position != len(tokens) - 1:
        raise _refuse("one login module")
    return LoginModule(tokens[0].text, options)


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _refuse("a text whose quotes and comments are closed, with values that have a slash in quotes")
        position = match.end()
        if match["mark"] is not None:
            found.append(_Token(match["mark"], is_mark=True))
        quoted = match["double"] if match["single"] is None else match["single"]
        if quoted is not None:
            found.append(_Token(_ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), quoted), is_mark=False))
        if match["word"] is not None:
            found.append(_Token(match["word"], is_mark=False))
    return found


def _refuse(allowed: str) -> ConfigError:
    return ConfigError(f"Invalid value [hidden] for configuration {JAAS_KEY}; allowed: {allowed}")
