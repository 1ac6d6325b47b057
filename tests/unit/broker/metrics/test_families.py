"""The table of metrics: promtool's rules for names and types, and the page that is generated from it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tidelog.broker.metrics.families import COUNTER, FAMILIES, HISTOGRAM, Family, page

ROOT = Path(__file__).resolve().parents[4]
ABBREVIATED = re.compile(r"_(ms|us|secs?|kb|mb|mib|kib)(_|$)|(us|ms)$")
TEXTS = re.compile(r"""(?<=["'}])[a-z0-9_]+(?=["'{])""")
FIELDS = re.compile(r"^ +([a-z_]+): ", re.MULTILINE)
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


def is_composed(words: list[str], texts: set[str]) -> bool:
    """Return whether a name can be put together from these texts, with underscores between them."""
    if not words:
        return True
    return any(
        "_".join(words[:count]) in texts and is_composed(words[count:], texts) for count in range(len(words), 0, -1)
    )


def test_each_declared_metric_is_named_where_it_is_recorded() -> None:
    """Names are often composed, as f"kafka_server_socket_{what}_total": each part is a text or a field."""
    paths = [path for room in ("broker", "cleaner") for path in (ROOT / room).rglob("*.py")]
    code = "\n".join(path.read_text() for path in paths if path.name != "families.py")
    texts = {text.strip("_") for text in TEXTS.findall(code)} | set(FIELDS.findall(code))
    assert [name for name, one in FAMILIES.items() if not is_composed((one.source or name).split("_"), texts)] == []
    assert not is_composed(["tidelog", "rotten", "total"], texts)


@pytest.mark.parametrize("file", ["dashboard.json", "rules.yml"])
def test_metrics_of_the_dashboard_and_the_alerts_are_declared(file: str) -> None:
    text = (ROOT / "docker" / "monitoring" / file).read_text()
    asked = set(re.findall(r"\b(?:kafka|tidelog|process)_[a-z_]+", text))
    declared = {family.name for family in FAMILIES.values()}
    assert len(asked) > 10
    assert {name.removesuffix("_bucket") for name in asked} - declared == set()


def test_the_page_of_the_documentation_is_rebuilt() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "make docs"
