"""Reader of the examples in documents: code blocks between fences, and those that are indented by four spaces."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCED = r"^(?P<margin> *)```(?P<language>\w*)\n(?P<fenced>(?s:.)*?)^(?P=margin)```$"
_INDENTED = r"(?<=\n\n)(?P<indented>(?:    .*\n|\n(?=    ))+)"
_BLOCK = re.compile(f"{_FENCED}|{_INDENTED}", re.MULTILINE)


class Example(NamedTuple):
    """A code block of a page, without its margin; an indented one has no language."""

    language: str
    text: str

    @property
    def title(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0]

    @property
    def digest(self) -> str:
        """The first four digits of its SHA-256, which change with the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:4]

    @property
    def commands(self) -> list[str]:
        """Its shell commands, one each, also those that are continued on further lines by a backslash."""
        return [line for line in self.text.replace("\\\n", "").splitlines() if line.strip()]


def read_examples(page: str) -> list[Example]:
    """Return the code blocks of a page below the root of the repository, in their order."""
    found = _BLOCK.finditer((ROOT / page).read_text())
    return [Example(each["language"] or "", dedent(each["fenced"] or each["indented"] or "")) for each in found]
