"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines import DataDirectory


@pytest.fixture(scope="session", autouse=True)
def _first_imports() -> None:
    """Import what takes half a second: pandas, by pyarrow's datasets. Else the first test that needs it would."""
    if importlib.util.find_spec("pyarrow") is not None:
        importlib.import_module("pyarrow.dataset")


@pytest.fixture(scope="session")
def imported_matplotlib() -> None:
    """Import matplotlib, and let it find its fonts, for modules that draw: it takes a second."""
    if importlib.util.find_spec("matplotlib") is not None:
        importlib.import_module("matplotlib.backends.backend_agg")
        importlib.import_module("matplotlib.dates")
        importlib.import_module("matplotlib.figure").Figure().add_subplot(title="fonts").figure.savefig(io.BytesIO())


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data")


@pytest.fixture
def catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Catalogs of Iceberg tables, which are closed after the test. The first import of their packages takes half a
    second."""
    importlib.import_module("pyiceberg.catalog.sql")
    importlib.import_module("pyiceberg.io.pyarrow")
    from tests.support.iceberg import closed_catalogs  # late: most tests need no Iceberg

    with closed_catalogs(monkeypatch):
        yield
