"""Patterns and replacements of principals' rules: those of Java's Matcher, in linear time."""

from __future__ import annotations

import pytest

from tidelog.broker.security.patterns import compile_pattern, replace
from tidelog.protocol.config_def import ConfigError

KEY = "the.key"


@pytest.mark.parametrize(
    ("pattern", "replacement", "text", "everywhere", "once"),
    [
        ("n", "m", "banana", "bamama", "bamana"),
        ("(b)(a)", "$2$1", "baba", "abab", "abba"),
        ("a", "$1", "a", "$1", "$1"),
        ("(a)", "$12", "a", "a2", "a2"),
        ("(a)|b", "<$1>", "ab", "<a><>", "<a>b"),
        ("a", r"\$1\\", "a", "$1\\", "$1\\"),
    ],
)
def test_a_replacement_is_that_of_java(pattern: str, replacement: str, text: str, everywhere: str, once: str) -> None:
    compiled = compile_pattern(pattern, KEY)
    assert replace(compiled, replacement, text) == everywhere
    assert replace(compiled, replacement, text, is_repeated=False) == once


def test_a_pattern_that_would_take_exponential_time_does_not() -> None:
    assert compile_pattern("(a*)*b", KEY).fullmatch("a" * 10_000) is None


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "a**"])
def test_a_pattern_with_syntax_unknown_to_re2_refuses_the_start(pattern: str) -> None:
    with pytest.raises(ConfigError, match=KEY):
        compile_pattern(pattern, KEY)
