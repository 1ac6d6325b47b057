"""Schedules drawn from seeds: every invariant holds after every step, and the cluster recovers when all faults end.

``make simulation SEEDS=N`` tries more seeds. The schedule of a seed that fails is shrunk, and printed with its events.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.planted import BUGS
from tests.simulation.scenario import scenario
from tests.simulation.schedule import Schedule, draw, explain, run, shrink, violation_of
from tests.simulation.truth import Acknowledged, ViolationError, is_unclean_election
from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState

SEEDS = int(os.environ.get("TIDELOG_SIMULATION_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("TIDELOG_SIMULATION_FIRST_SEED", "0"))
BLOCK = 25
PLANTED_SEEDS = 2000
"""Number of seeds among which one must find a planted bug, if the seed in BUGS does not."""


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_invariants_hold_in_any_schedule(first: int) -> None:
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        schedule = draw(seed)
        if violation_of(schedule) is not None:
            pytest.fail(explain(schedule))


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.seed is not None])
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed in BUGS is tried first; then all others."""
    BUGS[name].plant(monkeypatch)
    first = BUGS[name].seed or 0
    for seed in [first, *(one for one in range(PLANTED_SEEDS) if one != first)]:
        if violation_of(draw(seed)) is not None:
            return
    pytest.fail(f"no seed below {PLANTED_SEEDS} finds it")


def test_equal_schedules_have_equal_events() -> None:
    first, second = run(draw(11)), run(draw(11))
    assert first.listing == second.listing
    assert first.clock.now_ms == second.clock.now_ms
    assert first.truth.committed == second.truth.committed


def test_a_failing_schedule_shrinks_to_the_actions_that_it_needs() -> None:
    """A failure that needs two of a schedule's actions keeps these two."""
    schedule = draw(5)
    needed = {schedule.actions[3], schedule.actions[-4]}

    def is_failing(tried: Schedule) -> bool:
        return needed <= set(tried.actions)

    assert set(shrink(schedule, is_failing).actions) == needed


def test_a_violation_is_reported_with_the_events_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "truncation by high watermark"
    BUGS[name].plant(monkeypatch)
    explanation = explain(draw(BUGS[name].seed or 0))
    assert explanation.startswith("LeaderCandidateCompleteness: ")
    assert "produce(" in explanation


def test_a_wrong_acknowledgement_is_a_violation() -> None:
    with scenario() as cluster:
        write = cluster.write(1)
        cluster.until(lambda: write.is_acknowledged)
        with pytest.raises(ViolationError, match="acked"):
            cluster.truth.acknowledge(Acknowledged(0, 0, b"another"), 1)


OFFLINE = PartitionState((1, 2, 3), (), NO_LEADER, leader_epoch=5, elr=(3,), is_recovering=True)


@pytest.mark.parametrize(
    ("leader", "is_recovering", "is_unclean"),
    [(3, True, False), (3, False, False), (2, True, True), (NO_LEADER, True, False)],
)
def test_an_election_is_unclean_where_the_leader_was_not_eligible(
    leader: int, is_recovering: bool, is_unclean: bool
) -> None:
    """Broker 3 was elected uncleanly, left the ISR and returned before it could report that it has recovered."""
    elected = OFFLINE._replace(leader=leader, leader_epoch=6, is_recovering=is_recovering)
    assert is_unclean_election(OFFLINE, elected) is is_unclean
