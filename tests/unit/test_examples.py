"""Every example of README.md and docs/ is run by a test, or tests/examples.toml says why it is not."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.support.examples import ROOT, read_examples

TABLE: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "examples.toml").read_text())
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("**/*.md")))]
WITH_EXAMPLES = [page for page in PAGES if read_examples(page)]


def test_the_table_has_every_page_with_examples() -> None:
    assert sorted(TABLE) == sorted(WITH_EXAMPLES)


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_every_example_is_run_or_has_a_reason(page: str) -> None:
    entry = TABLE[page]
    reasons = entry.get("not_run", {})
    examples = read_examples(page)
    left_out = [each for each in examples if each.title.startswith(tuple(reasons))]
    assert [begin for begin in reasons if not any(each.title.startswith(begin) for each in left_out)] == []
    assert all(len(reason.split()) > 1 or reason.startswith("tests/") for reason in reasons.values())
    named = " ".join(entry.get("run", {}).values()).split()
    run = {each.digest: each.title for each in examples if each not in left_out}
    untold = {digest: title for digest, title in run.items() if digest not in named}
    assert named == ["all"] or not untold, f"new or changed: give each a test, by its digits, or a reason: {untold}"
    assert named == ["all"] or sorted(named) == sorted(run), "a block is named that is not there, or twice"


@pytest.mark.parametrize("page", [page for page in WITH_EXAMPLES if "run" in TABLE[page]])
def test_a_module_that_runs_examples_reads_the_page(page: str) -> None:
    for module in TABLE[page]["run"]:
        assert page.rpartition("/")[2] in (ROOT / module).read_text() or page == "README.md", module


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_every_test_that_a_reason_names_is_there(page: str) -> None:
    for reason in TABLE[page].get("not_run", {}).values():
        for name in re.findall(r"(?:tests|benchmarks)/[\w/]+(?:\.py|\.java|/)", reason):
            assert (ROOT / name).exists(), name
