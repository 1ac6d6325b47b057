"""The examples of docs/scan.md: its Python blocks are run in one namespace, over a directory named ``data``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, fill, write
from tests.support.requirements import require_packages
from tidelog.protocol.record.record_batch import Record

require_packages("duckdb", "pandas", "polars", "pyarrow")

PAGE = Path(__file__).resolve().parents[4] / "docs" / "scan.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = DataDirectory(tmp_path / "data")
    for partition in (0, 1):
        fill(data.log("orders", partition), 10)
    write(data.log("payments"), [Record(n, NOW_MS, None, b'{"amount": %d}' % n) for n in range(5)])
    data.close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE.read_text())
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert len(blocks) == 7
    assert len(names["frame"]) == 100
    assert names["table"].height == 100
    assert "(10,)" in printed, "the amounts of the payments"
    assert names["pyarrow"].parquet.read_table(here / "orders.parquet").num_rows == 100
