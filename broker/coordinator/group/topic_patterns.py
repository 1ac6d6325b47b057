"""Regular expressions of clients: for topics in subscriptions, and for transactional ids in ListTransactions.

RE2 runs the expressions, as in Apache Kafka. The time of RE2 is linear in the text, so no pattern can block the broker.
RE2 has no look-around and no back references. The package (google-re2) is imported with the first pattern.

Source: KIP-848 (ConsumerGroupHeartbeat v1), KIP-1152 (ListTransactions v2).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

from tidelog.protocol.errors import InvalidRegularExpressionError

MAX_PATTERN_LENGTH = 1_024
MAX_COMPILED_BYTES = 1 << 20
"""Largest size of a compiled pattern; larger ones are refused."""
KEPT_PATTERNS = 256
"""Number of compiled patterns that stay in memory."""


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str) -> object | None:
        """Return a true value if the pattern matches the whole text."""
        ...


@lru_cache(maxsize=KEPT_PATTERNS)
def compile_pattern(text: str) -> Pattern:
    """Compile a pattern. Raises InvalidRegularExpressionError."""
    if len(text) > MAX_PATTERN_LENGTH:
        raise InvalidRegularExpressionError(f"a pattern has at most {MAX_PATTERN_LENGTH} characters, not {len(text)}")
    try:
        re2: Any = import_module("re2")  # imported late: that takes 40 ms, and few clients send patterns
    except ImportError as error:
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{text}` cannot be run: the broker lacks the package google-re2 "
            "(python -m pip install google-re2)"
        ) from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_COMPILED_BYTES
    try:
        compiled: Pattern = re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace") if error.args else "invalid"
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {why}."
        ) from error
    return compiled


def matching_topics(text: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Collect the topics whose whole name the pattern matches, sorted. Raises InvalidRegularExpressionError."""
    fullmatch = compile_pattern(text).fullmatch
    return tuple(sorted(name for name in topics if fullmatch(name)))
