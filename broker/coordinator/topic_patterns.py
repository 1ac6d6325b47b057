"""Regular expressions of subscriptions: which topics they name.

Kafka runs them with RE2, which takes time in proportion to the text; Python's engine may take exponential time. So
what RE2 does not know (look-around, back references) and what makes backtracking explode (a repetition inside a
repetition) is refused, and patterns have a limit. Source: KIP-848, ConsumerGroupHeartbeat v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parse  # type: ignore[attr-defined]
from typing import Any

from protocol.errors import InvalidRegularExpressionError

MAX_PATTERN_LENGTH = 1_024
MAX_UNBOUNDED_REPEATS = 3
"""Each multiplies the worst case by the 249 characters of a topic's name."""

_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", sre.MAX_REPEAT))
_FOREIGN = (sre.ASSERT, sre.ASSERT_NOT, sre.GROUPREF, sre.GROUPREF_EXISTS)


def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern, safe to run. Raises InvalidRegularExpressionError."""
    if len(text) > MAX_PATTERN_LENGTH:
        raise InvalidRegularExpressionError(f"a pattern has at most {MAX_PATTERN_LENGTH} characters")
    try:
        if _check(sre_parse.parse(text), inside_repeat=False) > MAX_UNBOUNDED_REPEATS:
            raise InvalidRegularExpressionError(f"more than {MAX_UNBOUNDED_REPEATS} open repetitions are not served")
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRegularExpressionError(f"SubscribedTopicRegex `{text}` is not valid: {error}") from error


def matching_topics(text: str, topics: Iterable[str]) -> tuple[str, ...]:
    """The names that the whole pattern matches, sorted. Raises InvalidRegularExpressionError."""
    fullmatch = compile_pattern(text).fullmatch
    return tuple(sorted(name for name in topics if fullmatch(name)))


def _check(parsed: Any, *, inside_repeat: bool) -> int:
    """The number of repetitions without an upper bound."""
    unbounded = 0
    for code, argument in parsed:
        if code in _FOREIGN:
            raise InvalidRegularExpressionError("look-around and back references are not served")
        if code in _REPEATS:
            _, highest, repeated = argument
            is_open = highest is sre.MAXREPEAT
            if is_open and inside_repeat:
                raise InvalidRegularExpressionError("a repetition inside a repetition is not served")
            unbounded += is_open + _check(repeated, inside_repeat=inside_repeat or is_open)
        elif code is sre.SUBPATTERN:
            unbounded += _check(argument[-1], inside_repeat=inside_repeat)
        elif code is sre.BRANCH:
            if inside_repeat:
                raise InvalidRegularExpressionError("a choice inside a repetition is not served")
            unbounded += max(_check(branch, inside_repeat=False) for branch in argument[1])
    return unbounded
