"""Rules that turn a certificate's subject into a principal's name: ``ssl.principal.mapping.rules``.

    DEFAULT                          the subject as it is
    RULE:pattern/replacement/[LU]    if the pattern matches the whole subject, the replacement, in lower or upper case

The first matching rule wins; a subject that no rule matches is refused. Source: Kafka's SslPrincipalMapper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidelog.broker.security.patterns import compile_pattern, replace
from tidelog.protocol.config_def import ConfigError

DEFAULT_RULE = "DEFAULT"
RULES_KEY = "ssl.principal.mapping.rules"
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<new>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*"
)


class NoRuleMatchesError(Exception):
    """No rule matches this subject, so the client is not authenticated."""


class Rule(NamedTuple):
    """One rule; without a pattern it is DEFAULT."""

    pattern: Any = None
    """An RE2 pattern; the module ``re2`` has no type hints."""
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        """Return the name, None if the rule does not match this subject."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = replace(self.pattern, self.replacement, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class PrincipalRules:
    """All rules of a listener, in their order."""

    def __init__(self, rules: Sequence[str]) -> None:
        """Raises ConfigError for a malformed rule, or one whose pattern RE2 does not support."""
        self._rules = parse_rules(",".join(rules) or DEFAULT_RULE)

    def name_of(self, subject: str) -> str:
        """Return the principal's name. Raises NoRuleMatchesError."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoRuleMatchesError("no rule of ssl.principal.mapping.rules matches the client's certificate")


def parse_rules(text: str) -> list[Rule]:
    """Parse the rules of a text, separated by commas. Raises ConfigError."""
    rules, position = [], 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise _refuse(text[position:], "DEFAULT and RULE:pattern/replacement/[LU], separated by commas")
        if match["default"]:
            rules.append(Rule())
        else:
            rules.append(Rule(compile_pattern(match["pattern"], RULES_KEY), match["new"], match["case"]))
        position = match.end() + 1
    return rules


def _refuse(value: str, allowed: str) -> ConfigError:
    return ConfigError(f"Invalid value {value!r} for configuration {RULES_KEY}; allowed: {allowed}")
