"""Topic patterns of clients: RE2's syntax, matches of whole names, and bounded time."""

from __future__ import annotations

import sys
import time

import pytest

from tidelog.broker.coordinator.group.topic_patterns import MAX_PATTERN_LENGTH, compile_pattern, matching_topics
from tidelog.protocol.errors import InvalidRegularExpressionError

TOPICS = ("orders", "orders-eu", "orders-us", "returns")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", ("orders",)),
        ("orders.*", ("orders", "orders-eu", "orders-us")),
        ("(?i)ORDERS-(eu|us)", ("orders-eu", "orders-us")),
        (r"\w+", ("orders", "returns")),
        (r"(\w+-?)+", TOPICS),
        ("", ()),
    ],
)
def test_the_whole_name_must_match(pattern: str, found: tuple[str, ...]) -> None:
    assert matching_topics(pattern, reversed(TOPICS)) == found


@pytest.mark.parametrize(
    "pattern", ["(", "(?=a)", r"(a)\1", "a{2,1}", "x" * (MAX_PATTERN_LENGTH + 1), "((a{100}){100}){100}"]
)
def test_a_pattern_with_syntax_unknown_to_re2_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        compile_pattern(pattern)


def test_no_pattern_takes_long() -> None:
    """Engines that try one way after the other take 2^40 steps for this. The first pattern imports the package, too."""
    began = time.process_time()
    assert matching_topics("(a+)+b", ["a" * 249]) == ()
    assert time.process_time() - began < 5


def test_without_re2_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidRegularExpressionError, match="pip install google-re2"):
        compile_pattern("a-pattern-that-was-not-compiled-before")
