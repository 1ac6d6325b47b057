"""A strict reader of Prometheus' text format 0.0.4: it refuses any page that a scraper may refuse."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_HELP = re.compile(rf"# HELP ({_NAME}) \S.*")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_ONE_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]


class Page(NamedTuple):
    """A parsed page: the type of each metric family, and every sample by name and labels."""

    types: dict[str, str]
    samples: dict[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float:
        """Return one sample's value. Raises KeyError."""
        return self.samples[name, frozenset(labels.items())]


def parse(text: str) -> Page:
    """Parse a page. Raises ValueError at the first line that the format does not allow."""
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    page = Page({}, {})
    finished: set[str] = set()
    family = helped = ""
    for line in text.splitlines():
        if help_line := _HELP.fullmatch(line):
            helped = help_line[1]
            continue
        if declared := _TYPE.fullmatch(line):
            finished.add(family)
            family, kind = declared.groups()
            if helped != family:
                raise ValueError(f"{family} has no help")
            if family in finished or family in page.types:
                raise ValueError(f"{family} comes twice")
            page.types[family] = kind
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a sample: {line!r}")
        name, labels, value = found.groups()
        check_name(page, family, name)
        key = name, frozenset(_ONE_LABEL.findall(labels or ""))
        if key in page.samples:
            raise ValueError(f"{line!r} comes twice")
        page.samples[key] = float(value)
    return page


def check_name(page: Page, family: str, name: str) -> None:
    """Raise ValueError for a sample that does not belong to the family before it, and for a counter's wrong name."""
    if name != family and re.sub("_(count|sum|bucket)$", "", name) != family:
        raise ValueError(f"{name} stands in the family {family}")
    if page.types.get(family) == "counter" and not name.endswith("_total"):
        raise ValueError(f"the counter {name} is not called _total")
