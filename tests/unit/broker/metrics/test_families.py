"""The table of metrics: promtool's rules for names and types, and the page that is generated from it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tidelog.broker.metrics.families import COUNTER, FAMILIES, HISTOGRAM, Family, page

ROOT = Path(__file__).resolve().parents[4]
ABBREVIATED = re.compile(r"_(ms|us|secs?|kb|mb|mib|kib)(_|$)|(us|ms)$")
NAMED = re.compile(r'(?:Sample|\.add_gauge|\.counter)\(\s*"((?:kafka|tidelog|process)_\w+)"')


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_metric_is_named_by_the_rules_of_prometheus(family: Family) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
    assert (family.kind == COUNTER) == family.name.endswith("_total")
    assert not family.name.endswith(("_count", "_sum", "_bucket"))
    assert not ABBREVIATED.search(family.name)
    assert family.kind != HISTOGRAM or family.name.endswith("_seconds")
    assert re.fullmatch(r"[A-Z1][^\\\n]*\.", family.help)


def test_a_name_is_declared_once() -> None:
    names = Counter(family.name for family in FAMILIES.values())
    assert [name for name, count in names.items() if count > 1] == []


def test_each_metric_that_the_broker_names_is_declared() -> None:
    named = {name for path in (ROOT / "broker").rglob("*.py") for name in NAMED.findall(path.read_text())}
    assert len(named) > 20
    assert named - set(FAMILIES) == set()


@pytest.mark.parametrize("file", ["dashboard.json", "rules.yml"])
def test_metrics_of_the_dashboard_and_the_alerts_are_declared(file: str) -> None:
    text = (ROOT / "docker" / "monitoring" / file).read_text()
    asked = set(re.findall(r"\b(?:kafka|tidelog|process)_[a-z_]+", text))
    declared = {family.name for family in FAMILIES.values()}
    assert len(asked) > 10
    assert {name.removesuffix("_bucket") for name in asked} - declared == set()


def test_the_page_of_the_documentation_is_rebuilt() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "make docs"
