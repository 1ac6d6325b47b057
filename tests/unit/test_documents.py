"""Documents: every link has a target, and every named test and module exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")) if path.is_file()
]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PATH = re.compile(
    r"`((?:tests|protocol|log|cleaner|broker|tidelog|benchmarks|docs)/[\w/.-]+\.(?:py|md|c|sh))(?:::\w+)?`"
)
_TEST = re.compile(r"`(tests/[\w/.-]+\.py)::(?:Test\w+::)?(\w+)")


def text_of(path: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """Return the anchor that a forge makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def api_table() -> list[str]:
    """Return the rows of docs/kips.md for what is served."""
    rows = []
    for key, entry in REGISTRY.items():
        name = "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
        versions = dict.fromkeys((entry.min_version, entry.max_version))
        rows.append(f"| {key} | {name} | {' to '.join(map(str, versions))} |")
    return rows


def test_the_table_of_apis_lists_the_served_ones() -> None:
    found = re.findall(r"^\| \d+ \| .*$", (ROOT / "docs/kips.md").read_text().partition("\n## APIs")[2], re.MULTILINE)
    assert found == api_table(), "the table of docs/kips.md should be:\n" + "\n".join(api_table())


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue  # another site
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target} does not exist"
        if fragment and path.suffix == ".md":
            assert fragment in {anchor(heading) for heading in _HEADING.findall(path.read_text())}, target


def test_every_picture_is_shown() -> None:
    linked = {(page.parent / target).resolve() for page in PAGES for target in _LINK.findall(text_of(page))}
    assert not set((ROOT / "docs/images").iterdir()) - linked


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_file_that_is_named_exists(page: Path) -> None:
    for name in _PATH.findall(text_of(page)):
        assert (ROOT / name).exists(), f"{name} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_test_that_is_named_exists(page: Path) -> None:
    for name, test in _TEST.findall(text_of(page)):
        text = (ROOT / name).read_text()
        assert re.search(rf"^ *(?:async )?def {test}\(", text, re.MULTILINE), f"{name} has no {test}"


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_page_ends_with_a_whole_line(page: Path) -> None:
    """A page that an edit cut off in the middle of a word is found by this."""
    assert page.read_text().endswith("\n")


def test_the_site_has_a_place_for_every_page() -> None:
    """`make site` refuses a page without one; this finds it in every run."""
    placed = re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(placed) == sorted(str(path.relative_to(ROOT)) for path in PAGES)


SUBPACKAGES = [
    path.parent
    for package in ("protocol", "log", "cleaner", "broker", "pipeline")
    for path in sorted((ROOT / package).rglob("__init__.py"))
    if path.parent.name not in ("jobs", "reports") and path.parent != ROOT / "pipeline"
]


@pytest.mark.parametrize("subpackage", SUBPACKAGES, ids=[str(path.relative_to(ROOT)) for path in SUBPACKAGES])
def test_every_subpackage_says_what_it_may_import(subpackage: Path) -> None:
    text = ast.get_docstring(ast.parse((subpackage / "__init__.py").read_text())) or ""
    assert re.search(r"^Imports: ", text, re.MULTILINE), f"{subpackage} does not say what it may import"
