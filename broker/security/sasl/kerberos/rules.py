"""Rules that turn a Kerberos principal into a user's name: ``sasl.kerberos.principal.to.local.rules``.

    DEFAULT                              the first component, if the realm is the machine's default one
    RULE:[n:format](pattern)s/old/new/g  for principals of n components: ``format`` is written with $0, the realm, and
                                         $1, $2, the components; if the whole of it matches, ``old`` is replaced by
                                         ``new``, once or (g) everywhere. /L and /U at the end: lower and upper case

The first rule that applies wins. A principal to which none applies is refused, and so is a name that has / or @ in it.
Source: Kafka's KerberosShortNamer, KerberosRule, KerberosName.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidelog.broker.security.patterns import compile_pattern, replace
from tidelog.protocol.config_def import ConfigError

RULES_KEY = "sasl.kerberos.principal.to.local.rules"
_PRINCIPAL = re.compile(r"(?P<first>[^/@]*)(?:/(?P<second>[^/@]*))?@(?P<realm>[^/@]*)")
_RULE = re.compile(
    r"(?P<default>DEFAULT)|RULE:\[(?P<components>\d+):(?P<format>[^\]]*)\](?:\((?P<pattern>[^)]*)\))?"
    r"(?:s/(?P<old>[^/]*)/(?P<new>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER = re.compile(r"\$(\d*)")
_GRAMMAR = "DEFAULT and RULE:[n:format](pattern)s/old/new/g, separated by commas"


class NoRuleAppliesError(Exception):
    """No rule applies to this principal, or the name that a rule makes is not a user's."""


class KerberosRule(NamedTuple):
    """One rule. If ``components`` is None the rule is DEFAULT, and ``format`` is the default realm."""

    components: int | None
    format: str
    pattern: Any = None
    """The rule applies if this RE2 pattern matches the whole formatted text; None matches every text. The module
    ``re2`` has no type hints.
    """
    old: Any = None
    new: str = ""
    is_repeated: bool = False
    case: str = ""

    def apply(self, realm: str, components: Sequence[str]) -> str | None:
        """Return the name, None if the rule does not apply to this principal. Raises NoRuleAppliesError."""
        name = self._name_of(realm, components)
        if name is None:
            return None
        if "/" in name or "@" in name:
            raise NoRuleAppliesError("a rule leaves / or @ in the name")
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _name_of(self, realm: str, components: Sequence[str]) -> str | None:
        if self.components is None:
            return components[0] if realm == self.format else None
        if self.components != len(components):
            return None
        values = (realm, *components)
        text = _PARAMETER.sub(lambda found: values[int(found[1])], self.format)
        if self.pattern is not None and self.pattern.fullmatch(text) is None:
            return None
        return text if self.old is None else replace(self.old, self.new, text, is_repeated=self.is_repeated)


class KerberosRules:
    """All rules of a listener, in their order."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Raises ConfigError for a malformed rule, or one whose pattern RE2 does not support."""
        self._rules = [parse_rule(rule, default_realm) for rule in rules]

    def name_of(self, principal: str) -> str:
        """Return the user's name. Raises NoRuleAppliesError."""
        match = _PRINCIPAL.fullmatch(principal)
        if match is None:
            raise NoRuleAppliesError("the principal is not FIRST/SECOND@REALM or FIRST@REALM")
        components = [part for part in (match["first"], match["second"]) if part is not None]
        for rule in self._rules:
            name = rule.apply(match["realm"], components)
            if name is not None:
                if not name:
                    break
                return name
        raise NoRuleAppliesError(f"no rule of {RULES_KEY} is for the principal")


def parse_rule(text: str, default_realm: str) -> KerberosRule:
    """Parse one rule. Raises ConfigError."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise _refuse(text, _GRAMMAR)
    if match["default"]:
        return KerberosRule(None, default_realm)
    components = int(match["components"])
    if any(not number or int(number) > components for number in _PARAMETER.findall(match["format"])):
        raise _refuse(text, f"references from $0 to ${components} in the format")
    return KerberosRule(
        components,
        match["format"],
        None if match["pattern"] is None else compile_pattern(match["pattern"], RULES_KEY),
        None if match["old"] is None else compile_pattern(match["old"], RULES_KEY),
        match["new"] or "",
        bool(match["repeat"]),
        match["case"] or "",
    )


def _refuse(value: str, allowed: str) -> ConfigError:
    return ConfigError(f"Invalid value {value!r} for configuration {RULES_KEY}; allowed: {allowed}")
