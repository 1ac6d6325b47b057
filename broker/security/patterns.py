"""Patterns and replacements in the rules that name principals: in Java's syntax, run by RE2.

RE2 takes linear time, which matters because clients choose the texts. It has no look-around and no back references.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from typing import Any

from tidelog.protocol.config_def import ConfigError

_REFERENCE = re.compile(r"\\(?P<literal>.)|\$(?P<group>\d+)", re.DOTALL)


def compile_pattern(text: str, key: str) -> Any:
    """Compile a pattern; the module ``re2`` has no type hints. Raises ConfigError, which names the key."""
    re2: Any = import_module("re2")  # takes 40 ms; rules without a pattern do not need it
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ConfigError(
            f"Invalid value {text!r} for configuration {key}; allowed: a pattern that RE2 knows: no look-around, no "
            "back reference"
        ) from error


def replace(pattern: Any, replacement: str, text: str, *, is_repeated: bool = True) -> str:
    r"""Replace every match in the text, or only the first; ``$1`` is the first group, ``\$`` a dollar."""
    replaced: str = pattern.sub(partial(_expand, replacement), text, 0 if is_repeated else 1)
    return replaced


def _expand(replacement: str, match: Any) -> str:
    """Replace references to groups by their texts; a reference to a group that does not exist stays."""

    def expand_one(reference: re.Match[str]) -> str:
        if reference["literal"] is not None:
            return reference["literal"]
        number = reference["group"]
        taken = len(number)
        while taken > 1 and int(number[:taken]) > match.re.groups:
            taken -= 1
        if int(number[:taken]) > match.re.groups:
            return reference[0]
        return (match.group(int(number[:taken])) or "") + number[taken:]

    return _REFERENCE.sub(expand_one, replacement)
