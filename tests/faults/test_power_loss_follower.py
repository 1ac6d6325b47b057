"""A power loss at any moment of appends, truncations and restarts of a follower's log. Any of its unsynced directory
entries may be lost (fault F4 of docs/internals/faults.md).

A start refuses no log, has all that was synced and not cut, and nothing that was cut and synced. The disks are those of
``tests/faults/test_power_loss.py``: ``TIDELOG_POWER_STATES`` for each recording, ``TIDELOG_POWER_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.log_lines import no_log_lines
from tests.support.power.crash import Crash, draw, smaller
from tests.support.power.disk import Disk
from tests.support.power.follower import FollowerStory, examine, record
from tests.support.power.trace import Step
from tidelog.protocol.errors import KafkaError

STATES = int(os.environ.get("TIDELOG_POWER_STATES", "60"))
SEED = int(os.environ.get("TIDELOG_POWER_SEED", "1"))
RECORDINGS = 2
SEEN_WITHIN = 300
"""Disks within which a missing sync shows."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Damaged disks are reported in hundreds of lines."""
    with no_log_lines():
        yield


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory, in memory where there is such a file system."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("power")
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="tidelog-power-") as directory:
        yield Path(directory)


def _within_cuts(steps: list[Step]) -> Iterator[int]:
    """Yield the moments of cuts, and those of retention: each loses several names."""
    is_within = False
    for point, step in enumerate(steps, 1):
        if step.operation == "N":
            is_within = step.note["what"] in ("cut", "starts at")
        if is_within:
            yield point


class Trial:
    """One recording, and what is made of its crashes."""

    def __init__(self, steps: list[Step], scratch: Path, *, durable: bool) -> None:
        self._steps = steps
        self._root = scratch / "crashed"
        self._durable = durable

    def first_failure(self, count: int, seed: str) -> str | None:
        """Find the first of so many crashes that a start does not survive, with as few losses as can be."""
        chance = random.Random(seed)
        disk, story, position = Disk(), FollowerStory(), 0
        points = [chance.randrange(1, len(self._steps) + 1) for _ in range(count - count // 2)]
        points += chance.choices(list(_within_cuts(self._steps)), k=count // 2)
        for point in sorted(points):
            for step in self._steps[position:point]:
                story.take(step.note) if step.operation == "N" else disk.step(step)
            position = point
            crash = draw(disk, point, chance, loose=True)
            if self.failure(crash, disk, story) is not None:
                return self._explain(crash, disk, story)
        return None

    def failure(self, crash: Crash, disk: Disk, story: FollowerStory) -> str | None:
        shutil.rmtree(self._root, ignore_errors=True)
        crash.write(disk, self._root)
        try:
            examine(self._root / "data", story, durable=self._durable)
        except (AssertionError, KafkaError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _explain(self, crash: Crash, disk: Disk, story: FollowerStory) -> str:
        crash = smaller(crash, lambda candidate: self.failure(candidate, disk, story) is not None)
        return f"{self.failure(crash, disk, story)}\n{crash.describe(disk)}"


@pytest.mark.timeout(120 + STATES)
@pytest.mark.parametrize("durable", [True, False], ids=["flush.messages=1", "unsynced"])
def test_synced_records_stay_and_truncated_ones_do_not_return(scratch: Path, durable: bool) -> None:
    for number in range(RECORDINGS):
        seed = SEED * 1000 + number
        steps = record(Path(tempfile.mkdtemp(dir=scratch)), seed, durable=durable)
        failure = Trial(steps, scratch, durable=durable).first_failure(STATES, f"{seed}")
        assert failure is None, f"recording {seed}: {failure}"


@pytest.mark.parametrize(
    "forgets",
    [
        lambda step: step.operation == "S" and step.path.endswith(".log"),
        lambda step: step.operation == "D" and step.path == "data/t-0",
    ],
    ids=["of records and cuts", "of segments' names"],
)
def test_a_missing_sync_would_be_found(scratch: Path, forgets: Callable[[Step], bool]) -> None:
    steps = record(Path(tempfile.mkdtemp(dir=scratch)), SEED, durable=True)
    kept = [step for step in steps if not (step.operation in "SD" and forgets(step))]
    assert len(kept) < len(steps), "there is no such sync"
    assert Trial(kept, scratch, durable=True).first_failure(SEEN_WITHIN, "unsynced") is not None
