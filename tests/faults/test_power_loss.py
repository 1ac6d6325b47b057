"""A power loss at any moment of a real broker's work on its files (fault F4 of docs/internals/faults.md; the method is
that of ALICE, OSDI 2014).

A broker is recorded while a client uses it; then disks are made that a power loss could have left, and a broker started
over each must have everything that was acknowledged. ``TIDELOG_POWER_STATES`` says how many disks for each workload
(``make power-loss STATES=5000``), ``TIDELOG_POWER_SEED`` draws others. A failure says what was lost, as little as can
be. The model of the disk is in ``tests/support/power/disk.py``; docs/internals/faults.md says how to add a workload.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.log_lines import no_log_lines
from tests.support.power.trace import Step
from tests.support.power.trial import Recorded, record
from tests.support.power.workloads import WORKLOADS, Workload
from tidelog.log.files.checkpoints import PARTITION_METADATA_FILE, read_partition_metadata
from tidelog.log.recovery.loader import LogLoader

STATES = int(os.environ.get("TIDELOG_POWER_STATES", "30"))
SEED = int(os.environ.get("TIDELOG_POWER_SEED", "1"))
PROCESS_SHARE = 30
"""One in so many disks is given to ``tidelog serve`` too."""
KILLED_SHARE = 6
"""Look-ups wait for indices that catch up: one kill at a call that writes for so many power losses."""
SEEN_WITHIN = 100
"""Disks within which a missing sync shows."""
LIMIT_S = 300 + 3 * STATES
"""A disk takes 70 ms of CPU, and a second and more beside twenty busy processes."""
RUNS = [(each, durable) for each in WORKLOADS for durable in (True, False) if durable or each.lazy]
NAMES = [f"{each.name}, {'flush.messages=1' if durable else 'unsynced'}" for each, durable in RUNS]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Damaged disks are reported in hundreds of lines."""
    with no_log_lines():
        yield


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Makes directories, in memory where there is such a file system: thousands of disks are written, none is kept."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="tidelog-power-") as directory:
        yield lambda name: Path(tempfile.mkdtemp(dir=directory, prefix=name.replace(" ", "-")))


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(("workload", "durable"), RUNS, ids=NAMES)
def test_everything_acknowledged_survives_a_power_loss(
    scratch: Callable[[str], Path], workload: Workload, durable: bool
) -> None:
    recorded = record(workload, scratch(workload.name), durable=durable)
    failure = recorded.first_failure(STATES, SEED)
    assert failure is None, failure
    failure = recorded.first_failure(STATES // PROCESS_SHARE, SEED + 1, in_process=False)
    assert failure is None, failure


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("name", "writes"),
    [
        ("share groups", lambda step: "__share_group_state" in step.path or step.path.endswith("-snapshot")),
        ("indexing", lambda step: "/keys/" in step.path or "/tags/" in step.path),
    ],
    ids=["share state", "indices"],
)
def test_a_kill_at_every_call_that_writes(
    scratch: Callable[[str], Path], name: str, writes: Callable[[Step], bool]
) -> None:
    recorded = record(workload_named(name), scratch(name), durable=True)
    failure = recorded.first_failure_of(recorded.killed(writes, STATES // KILLED_SHARE, SEED))
    assert failure is None, failure


def workload_named(name: str) -> Workload:
    return next(each for each in WORKLOADS if each.name == name)


@pytest.fixture(scope="module")
def recorded_topics(scratch: Callable[[str], Path]) -> Recorded:
    return record(workload_named("topics"), scratch("topics"), durable=True)


@pytest.mark.parametrize(
    "forgets",
    [
        lambda step: "__cluster_metadata-0/0" in step.path,
        lambda step: step.path.endswith(".log") and "__cluster_metadata" not in step.path,
        lambda step: step.operation == "D" and step.path == "data",
        lambda step: step.operation == "D" and step.path == "data/kept-2",
        lambda step: step.operation == "D" and step.path == "",
    ],
    ids=["of the metadata", "of records", "of partitions' names", "of segments' names", "of the data directory's name"],
)
def test_a_missing_sync_would_be_found(recorded_topics: Recorded, forgets: Callable[[Step], bool]) -> None:
    assert recorded_topics.forgetting(forgets).first_failure(SEEN_WITHIN, SEED) is not None


def test_topic_ids_that_are_lost_would_be_found(recorded_topics: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged ``partition.metadata`` is written again from the metadata, so that its missing sync loses nothing. A
    log whose first sync has not come yet needs that, too: without it brokers do not start."""
    unsynced = recorded_topics.forgetting(lambda step: step.path.endswith(PARTITION_METADATA_FILE))
    assert unsynced.first_failure(SEEN_WITHIN, SEED) is None
    read = lambda loader: read_partition_metadata(loader._file_system, loader._directory)  # noqa: E731
    monkeypatch.setattr(LogLoader, "_read_topic_id", read)
    failure = unsynced.first_failure(SEEN_WITHIN, SEED)
    assert failure is not None
    assert PARTITION_METADATA_FILE in failure


def test_a_missing_sync_of_share_state_would_be_found(scratch: Callable[[str], Path]) -> None:
    recorded = record(workload_named("share groups"), scratch("shares"), durable=True)
    unsynced = recorded.forgetting(lambda step: "__share_group_state" in step.path and step.path.endswith(".log"))
    assert any(unsynced.failure(*crashed) is not None for crashed in unsynced.draw(SEEN_WITHIN, SEED))
