"""docs/spark.md names every option of ``format("tidelog")``, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.pipeline.options import options, sink_options

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text()
READING = {*options._COMMON, *options._BATCH, *options._STREAM}
WRITING = {*sink_options._KNOWN, *sink_options._BATCH_ONLY} - {"checkpointLocation"}


def first_cells(title: str) -> set[str]:
    """Return the names in the first column of a section's table."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize(
    ("title", "known"), [('format("tidelog"), reading', READING), ('format("tidelog"), writing', WRITING)]
)
def test_the_table_has_every_option(title: str, known: set[str]) -> None:
    assert first_cells(title) == known
