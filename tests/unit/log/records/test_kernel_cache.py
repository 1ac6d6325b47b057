"""numba's cache has a directory of its own for each state of the kernels' sources."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.support.requirements import missing

try:
    from tidelog.log.records import intrinsics, kernel_cache
    from tidelog.log.records.kernel_cache import sources
except ImportError:
    missing("numba", "pip install 'tidelog[kernels]'")

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("log", "cleaner", "pipeline")
DECORATORS = {"tidelog.log.records.kernel_cache.njit", "tidelog.log.records.intrinsics.kernel"}


def imported(path: Path) -> set[str]:
    """The names a module imports at its top, with their modules."""
    return {
        f"{node.module}.{alias.name}"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_module_with_kernels_and_all_they_are_made_of_are_sources() -> None:
    kernel_modules = [
        path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if imported(path) & DECORATORS
    ]
    assert kernel_modules
    for path in kernel_modules:
        assert path in sources()
        for name in imported(path) - DECORATORS:
            package, *rest = name.removeprefix("tidelog.").split(".")[:-1]
            module = ROOT.joinpath(package, *rest).with_suffix(".py")
            if package in PACKAGES and module.exists():
                assert module in sources(), f"{path.name} imports {name}"


def test_no_kernel_goes_around_it() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.name not in ("kernel_cache.py", "array_kernels.py"):
                assert not imported(path) & {"numba.njit", "numba.jit"}, path


def test_another_source_means_another_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "layout.py"
    monkeypatch.setattr(kernel_cache, "sources", lambda: [source])
    names = []
    for text in ("SIZE = 1", "SIZE = 2", "SIZE = 1"):
        source.write_text(text)
        names.append(kernel_cache._separate())
    assert names[0] == names[2] != names[1]


def test_kernels_are_cached_there() -> None:
    found: list[Any] = [intrinsics.crc32c]
    for kernel in found:
        assert kernel.stats.cache_path.startswith(kernel_cache._DIRECTORY)
