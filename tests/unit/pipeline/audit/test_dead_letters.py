"""Records that could not be decoded to rows: each has a dead letter with its topic, partition and offset; otherwise the
audit reports it as missing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.audit import latest
from tidelog.pipeline.audit.dead_letters import look_for_letters
from tidelog.pipeline.audit.table import ComparePlan, Comparison
from tidelog.pipeline.export.file import dead_letter_schema


def letters(path: Path, *places: tuple[str, int, int]) -> str:
    rows = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in places]
    pq.write_table(pa.Table.from_pylist(rows, dead_letter_schema()), path)
    return str(path)


def test_a_record_without_a_row_and_a_dead_letter_is_missing(tmp_path: Path) -> None:
    one = letters(tmp_path / "one", ("t", 0, 5), ("t", 1, 6), ("u", 0, 7))
    other = letters(tmp_path / "other", ("t", 0, 8), ("t", 0, 5))
    plan = ComparePlan("t", 0, 0, 10, None, (), letters=(one, other))
    found = Comparison("t", 0, 0, 10, missing=1, shown={"missing": [9]}, no_rows=[np.array([5, 6]), np.array([7, 8])])
    look_for_letters(plan, found)
    assert (found.missing, found.shown) == (3, {"missing": [6, 7, 9]})


def test_dead_letters_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    plan = ComparePlan("t", 0, 0, 10, None, (), letters=(str(tmp_path / "gone"),))
    with pytest.raises(FileNotFoundError):
        look_for_letters(plan, Comparison("t", 0, 0, 10, no_rows=[np.array([5])]))


def test_a_range_that_cannot_be_compared_reports_no_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Comparison("t", 0, 0, 10, unreadable="the log's records cannot be read", no_rows=[np.array([5])])
    monkeypatch.setattr(latest, "compare", lambda _: found)
    for path in (letters(tmp_path / "one"), str(tmp_path / "gone")):
        compared = latest.compare_plan(ComparePlan("t", 0, 0, 10, None, (), letters=(path,)))
        assert (compared.unreadable, compared.missing) == ("the log's records cannot be read", 0)
