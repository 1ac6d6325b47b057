"""Compiled modules: those that were built from other sources than the present ones are detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.support.extensions import ROOT, SUFFIX, stale_modules

SOURCE, TYPES = "log/records/walk.py", "log/records/walk.pxd"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one compiled module, just built."""
    for name in (SOURCE, TYPES, f"log/records/walk{SUFFIX}"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in (SOURCE, TYPES)}
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "extensions.json").write_text(json.dumps({"tidelog.log.records.walk": digests}))
    return tmp_path


def test_a_fresh_build_is_good(checkout: Path) -> None:
    assert stale_modules(checkout) == []


@pytest.mark.parametrize("name", [SOURCE, TYPES])
def test_a_build_of_an_edited_source_is_refused(checkout: Path, name: str) -> None:
    (checkout / name).write_text("edited")
    assert stale_modules(checkout) == [SOURCE]


def test_a_build_of_which_nothing_is_known_is_refused(checkout: Path) -> None:
    (checkout / "build" / "extensions.json").unlink()
    assert stale_modules(checkout) == [SOURCE]


def test_a_compiled_module_whose_source_is_gone_is_refused(checkout: Path) -> None:
    (checkout / SOURCE).unlink()
    assert stale_modules(checkout) == [SOURCE]


def test_a_module_that_is_not_compiled_is_never_stale(checkout: Path) -> None:
    (checkout / f"log/records/walk{SUFFIX}").unlink()
    (checkout / SOURCE).write_text("edited")
    assert stale_modules(checkout) == []


def test_each_listed_module_is_there_once() -> None:
    listed = (ROOT / "extensions.txt").read_text().split()
    assert listed == sorted(set(listed))
    assert [path for path in listed if not (ROOT / path).exists()] == []
