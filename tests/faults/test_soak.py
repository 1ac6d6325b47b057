"""A soak of a real broker: clients of every kind beside kills, deletions and changes; no record is lost, and nothing
leaks.

``TIDELOG_SOAK_SECONDS`` lengthens it (``make soak MINUTES=15``), ``TIDELOG_SOAK_SEED`` chooses another one.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support.soak.patience import patience_for
from tests.support.soak.resources import Sample, growing
from tests.support.soak.soak import Soak

SECONDS = float(os.environ.get("TIDELOG_SOAK_SECONDS", "8"))
SEED = int(os.environ.get("TIDELOG_SOAK_SEED", "1"))


@pytest.mark.slow
@pytest.mark.timeout(5 * SECONDS + 900)  # what is written is checked as long as that goes on
@pytest.mark.filterwarnings("ignore")  # of the clients
def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path, SEED, SECONDS)
    faults = soak.run()
    gc.collect()  # what clients left open is theirs: it goes while their warnings are ignored
    assert not faults, "\n".join(faults)
    assert soak.kills
    command = [sys.executable, "-m", "tidelog.cli", "check", str(soak.broker.data_directory)]
    patience_s = 600 + patience_for(soak.broker.data_directory)
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def samples(**growth: float) -> list[Sample]:
    """Return ten minutes of measurements, some of which grow by a given amount per second."""
    figures = {"rss_bytes": 100e6, "anonymous_bytes": 60e6, "files": 200.0, "descriptors": 80.0}
    figures |= {"deleted_files": 0.0, "threads": 12.0}
    return [
        Sample(
            float(second), *(int(value + second % 7 + second * growth.get(name, 0)) for name, value in figures.items())
        )
        for second in range(600)
    ]


@pytest.mark.parametrize(
    ("growth", "count"),
    [({}, 0), ({"files": 10}, 0), ({"rss_bytes": 200e3}, 1), ({"descriptors": 0.1, "threads": 0.1}, 2),
     ({"deleted_files": 0.1}, 1)],
)  # fmt: skip
def test_growth_is_distinguished_from_noise(growth: dict[str, float], count: int) -> None:
    assert len(growing(samples(**growth))) == count
