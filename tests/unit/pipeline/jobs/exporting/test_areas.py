"""Files that runs left in an object store: which of them a later run uses or removes, and which names it ignores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from tidelog.pipeline.export.store import ObjectStore
from tidelog.pipeline.jobs.exporting.areas import StoreArea

RUN = "0123456789abcdef" * 2


class FolderStore(ObjectStore):
    """Objects below a folder."""

    def _locate(self, path: str) -> tuple[Any, str]:
        return LocalFileSystem(), path


@pytest.mark.parametrize("ends", [True, False])
def test_only_files_of_runs_are_cleaned_up(tmp_path: Path, *, ends: bool) -> None:
    runs = tmp_path / "_tidelog" / "runs"
    runs.mkdir(parents=True)
    foreign = {".DS_Store", "notes.txt", "00000001-", "00000001", f"x-{RUN}", f"00000001-{RUN}.bak"}
    for name in foreign:
        (runs / name).touch()
    asked: list[tuple[str, str, int | None]] = []

    def finish(run: str, staging: str, version: int | None) -> bool:
        asked.append((run, staging, version))
        return ends

    area = StoreArea(str(tmp_path), FolderStore(), finish)
    area.begin_run(RUN, 7)
    area.open()
    assert asked == [(RUN, str(tmp_path), 7)]
    assert {path.name for path in runs.iterdir()} == (foreign if ends else {*foreign, f"00000007-{RUN}"})
