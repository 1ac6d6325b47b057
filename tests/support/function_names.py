"""The rule for names of functions: verbs for actions, is_ and has_ for booleans, nouns for values."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple


class NamedFunction(NamedTuple):
    """A function as the rule sees it."""

    line: int
    name: str
    returns: str
    """The annotation of the result as text; empty without one."""
    decorators: tuple[str, ...]
    """Names of its decorators, without modules and arguments."""


KEPT = {
    *("main", "command", "between", "startup", "shutdown", "catch_up", "exec_module"),
    *("sanity_check", "transition_to", "init_producer_id", "init_next_generation"),
    *("readable", "writable", "seekable", "sendall"),
}
"""Allowed names that Kafka, Python or a library prescribe; names with capital letters after lower case are, too."""
FREE_DECORATORS = {
    *("property", "cached_property", "setter", "overload", "command", "group"),
    *("fixture", "contextmanager", "asynccontextmanager"),
}
"""Decorators of functions to which the rule does not apply: they are used as values, or are Click's commands."""
ASKING = {"is", "has", "have", "can", "cannot", "may", "are", "was", "were", "do", "does", "should", "must", "would"}
"""Allowed first words of a boolean's name, beside verbs in the third person."""
EVENT = re.compile(
    r"\w+_(created|deleted|changed|updated|made|added|removed|moved|lost|closed|finished|received|expired|renewed|"
    r"(un)?registered|elected)"
)
"""Names of callbacks, which have the event's name, as asyncio's ``connection_lost``."""
PURE = re.compile(r"(\w+_)?of(_\w+)?|(when|on|to|as|from|with)_\w+")
"""Names of look-ups (``error_of``), conversions (``to_json``), builders (``with_leaders``), events (``when_open``)."""
LONELY = re.compile(
    r"(?!feed)[a-z]+ed|kept|held|told|met|shown|taken|written|made|found|given|known|chosen|alone|always|never|alike|beside|"
    r"between|before|after|beyond|below|under|otherwise|only|until|within|without|not|none|in|at|by|then|where|why"
)
"""Participles, adverbs and prepositions that say nothing by themselves."""
LEADING = re.compile(r"(until|within|without|under|beside|between|in|by|no|not|too|those|while|where|why|at)_\w+")
"""Names that begin with a preposition, an adverb or a negation."""


def find_name_fault(function: NamedFunction, verbs: Set[str]) -> str | None:
    """Return what is wrong with the name of a function; None if nothing is. ``verbs`` are in lower case."""
    name = function.name.strip("_")
    first = name.removeprefix("maybe_").split("_")[0]
    if first in verbs or _has_own_rule(name) or set(function.decorators) & FREE_DECORATORS:
        return None
    if function.returns == "bool":
        return None if _asks(name, verbs) else "a boolean begins with is_, has_ or a verb"
    if function.returns == "None":
        return "an action begins with a verb"
    if LONELY.fullmatch(name) or LEADING.fullmatch(name):
        return "a value has the noun's name, an action a verb"
    return None


def _has_own_rule(name: str) -> bool:
    """Return whether a name is Kafka's or a library's, an event's or a look-up's."""
    return name in KEPT or bool(re.search(r"[a-z][A-Z]", name) or EVENT.fullmatch(name) or PURE.fullmatch(name))


def _asks(name: str, verbs: Set[str]) -> bool:
    """Return whether a name suits a boolean: ``is_open``, ``page_is_cached``, ``holds_schemas``, ``crc_matches``."""
    words = name.split("_")
    return words[0] in ASKING or "_is_" in name or any(_verb_of(word) & verbs for word in (words[0], words[-1]))


def _verb_of(word: str) -> set[str]:
    """Return the verbs whose third person a word may be; none if it has no ending of the third person."""
    return {word[: -len(end)] + y for end, y in (("s", ""), ("es", ""), ("ies", "y")) if word.endswith(end)}
