"""ACLs in force, found by resource: by literal name, the wildcard, and prefixes of each length.

At most 2 + n patterns match a resource: its own name, ``*``, and a prefix of each of the n lengths that prefixed ACLs
of its type have. So a look-up costs the same with a hundred ACLs and with a hundred thousand. Matching patterns come in
Kafka's order: the longest name first, the wildcard last. A rule (``AccessRule``) is one ACL. Rules are immutable, and a
change replaces the tuples that it concerns. Loop thread only.

Source: AclCache and the order of StandardAcl of Kafka 4.3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.protocol.acl import WILDCARD, PatternType

_LITERAL, _PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)

Rules = dict[str, tuple[AccessRule, ...]]
"""Rules of one pattern by principal, each principal's in Kafka's order."""


class Acls:
    """The ACLs in force. Loop thread only."""

    __slots__ = ("_by_principal", "_by_resource", "_counts", "_lengths", "_prefixes")

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        self._counts: Counter[AccessRule] = Counter()
        """Rule -> number of ids that it has: a metadata log may hold the same rule twice."""
        self._by_resource: dict[tuple[int, int, str], Rules] = {}
        """(Resource type, pattern type, name), which is a pattern -> its rules."""
        self._by_principal: dict[tuple[int, str], dict[AccessRule, None]] = {}
        """(Resource type, principal) -> the rules that name both."""
        self._prefixes: dict[int, Counter[int]] = {}
        """Resource type -> length -> number of prefixes of that length that have rules."""
        self._lengths: dict[int, tuple[int, ...]] = {}
        """Resource type -> the lengths of its prefixes that have rules, the longest first."""
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, rule: object) -> bool:
        return rule in self._counts

    def __iter__(self) -> Iterator[AccessRule]:
        return iter(self._counts)

    def add(self, rule: AccessRule) -> None:
        """Put a rule in force."""
        self._counts[rule] += 1
        if self._counts[rule] > 1:
            return
        key = (rule.resource_type, rule.pattern_type, rule.resource_name)
        rules = self._by_resource.get(key)
        if rules is None:
            rules = self._by_resource[key] = {}
            self._count_prefix(rule, 1)
        others = rules.get(rule.principal, ())
        place = bisect_left(others, _order(rule), key=_order)
        rules[rule.principal] = (*others[:place], rule, *others[place:])
        self._by_principal.setdefault((rule.resource_type, rule.principal), {})[rule] = None

    def remove(self, rule: AccessRule) -> None:
        """Remove a rule, unless the metadata have it under another id too."""
        self._counts[rule] -= 1
        if self._counts[rule] > 0:
            return
        del self._counts[rule]
        key = (rule.resource_type, rule.pattern_type, rule.resource_name)
        rules = self._by_resource[key]
        others = rules[rule.principal]
        place = bisect_left(others, _order(rule), key=_order)
        left = others[:place] + others[place + 1 :]
        if left:
            rules[rule.principal] = left
        else:
            del rules[rule.principal]
        if not rules:
            del self._by_resource[key]
            self._count_prefix(rule, -1)
        of_principal = self._by_principal[rule.resource_type, rule.principal]
        del of_principal[rule]
        if not of_principal:
            del self._by_principal[rule.resource_type, rule.principal]

    def _count_prefix(self, rule: AccessRule, change: int) -> None:
        if rule.pattern_type != _PREFIXED:
            return
        counted = self._prefixes.setdefault(rule.resource_type, Counter())
        counted[len(rule.resource_name)] += change
        self._lengths[rule.resource_type] = tuple(sorted((n for n in counted if counted[n] > 0), reverse=True))

    def find_matching(self, resource_type: int, name: str) -> Iterator[Rules]:
        """Yield the rules of every pattern that matches a resource, in Kafka's order."""
        by_resource = self._by_resource
        rules = by_resource.get((resource_type, _LITERAL, name))
        if rules is not None and name != WILDCARD:
            yield rules
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                rules = by_resource.get((resource_type, _PREFIXED, name[:length]))
                if rules is not None:
                    yield rules
        rules = by_resource.get((resource_type, _LITERAL, WILDCARD))
        if rules is not None:
            yield rules

    def of_principal(self, resource_type: int, principal: str) -> Iterable[AccessRule]:
        """Return all rules for resources of a type that name this principal."""
        return self._by_principal.get((resource_type, principal), ())


def _order(rule: AccessRule) -> tuple[int, str, int]:
    """Return the place of a rule among those of its pattern and principal, none of which has the same."""
    return rule.operation, rule.host, rule.permission
