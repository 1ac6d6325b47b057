"""Log directories of a member over many restarts: they fail, come back, are replaced, removed and added again. Each
leader that is elected has all committed records."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support.depth import DEPTH
from tests.support.directory_lives import Lives
from tidelog.broker.member.connections import directories

STEPS = 50


@pytest.mark.hypothesis  # more seeds at night, by `make fuzz-deep`
@pytest.mark.parametrize("seed", range(12 * DEPTH))
def test_no_election_after_a_directory_failure_loses_committed_records(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "ROUND_S", 0.0)
    with contextlib.closing(Lives(tmp_path, seed)) as lives:
        lives.start()
        for _ in range(STEPS):
            lives.step()
        assert lives.written
