"""A soak of a real broker: clients of every kind beside kills, deletions and changes; no record is lost, and in a soak
of about 140 s or more memory, descriptors and threads do not grow.

``TIDELOG_SOAK_SECONDS`` lengthens it from 8 s (``make soak MINUTES=15``). ``TIDELOG_SOAK_SEED`` chooses another order
of kills and requests.
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
@pytest.mark.timeout(5 * SECONDS + 900)  # the soak waits for its parties as long as they make progress
@pytest.mark.filterwarnings("ignore")  # the clients cause warnings
def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    """Growth is judged only if it can be (``SHORTEST_JUDGED_S``): not in the 8 s of an ordinary run of the tests."""
    soak = Soak(tmp_path, SEED, SECONDS)
    faults = soak.run()
    gc.collect()  # sockets that clients left open cause their warnings here, where they are ignored
    assert not faults, "\n".join(faults)
    assert soak.kills
    command = [sys.executable, "-m", "tidelog.cli", "check", str(soak.broker.data_directory)]
    patience_s = 600 + patience_for(soak.broker.data_directory)
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def samples(**growth: float) -> list[Sample]:
    """Build samples of ten minutes, one a second; ``growth`` has what a figure grows by in each second."""
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
