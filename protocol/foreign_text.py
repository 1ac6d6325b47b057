"""Parsers of JSON and regular expressions that come from outside this process, with one error for whatever is wrong.

Python's own parsers raise RecursionError for a text that is nested too deeply, such as a few kilobytes of brackets. A
caller that expects ValueError would not catch that error.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOO_DEEP = "it is nested too deeply"


def decode_json(text: str | bytes) -> Any:
    """Decode JSON. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def show_json(value: Any, length: int) -> str:
    """Return the first characters of a decoded value as JSON, for an error."""
    try:
        return json.dumps(value)[:length]
    except RecursionError:  # the caller's stack is deeper than the decoder's was
        return "a deeply nested value"


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ValueError."""
    try:
        return re.compile(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (re.error, OverflowError) as error:  # OverflowError: a number of repetitions that is too large
        raise ValueError(str(error)) from None
