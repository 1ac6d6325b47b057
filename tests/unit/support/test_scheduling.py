"""The division of tests among workers: whole modules, in the order of their families, and Spark's on one worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.scheduling import FamilyScheduling


class Worker:
    """A worker that notes which tests it was told to run."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.told: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        """Note the tests."""
        self.told += indices

    def shutdown(self) -> None:
        """Take no more tests."""
        self.shutting_down = True


MODULES = ("spark/a", "spark/b", "c", "d", "e", "f", "g", "h")
TESTS = [f"tests/{module}.py::test_{number}" for module in MODULES for number in range(4)]


@pytest.fixture
def workers() -> list[Worker]:
    return [Worker(f"gw{number}") for number in range(3)]


@pytest.fixture
def scheduling(workers: list[Worker]) -> FamilyScheduling:
    """A division among three workers that have collected the same tests."""
    option = SimpleNamespace(loadscopereorder=True, maxschedchunk=None, tx=["popen"] * len(workers), px=[], dist="load")
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    division = FamilyScheduling(config)
    for worker in workers:
        division.add_node(worker)
        division.add_node_collection(worker, list(TESTS))
    division.schedule()
    return division


def test_each_test_runs_once_and_modules_are_whole(scheduling: FamilyScheduling, workers: list[Worker]) -> None:
    done: dict[str, str] = {}
    while not scheduling.tests_finished:
        for worker in workers:
            for place in worker.told[:1]:
                done[TESTS[place]] = worker.gateway.id
                scheduling.mark_test_complete(worker, place)
                worker.told.remove(place)
    for worker in workers:
        done |= {TESTS[place]: worker.gateway.id for place in worker.told}
    assert sorted(done) == sorted(TESTS)
    ran_by = {(name.partition("::")[0].replace("/b.py", "/a.py"), worker) for name, worker in done.items()}
    assert len(ran_by) == len(MODULES) - 1


def test_the_last_worker_begins_at_the_end(scheduling: FamilyScheduling, workers: list[Worker]) -> None:
    assert [[TESTS[place].partition("::")[0] for place in worker.told[:1]] for worker in workers] == [
        ["tests/spark/a.py"],
        ["tests/c.py"],
        ["tests/h.py"],
    ]


def test_modules_whose_tests_have_all_run_are_forgotten(scheduling: FamilyScheduling, workers: list[Worker]) -> None:
    second = workers[1]
    for place in second.told:  # it grows
        scheduling.mark_test_complete(second, place)
    assert [TESTS[place].partition("::")[0] for place in second.told[::4]] == [f"tests/{name}.py" for name in "cdefg"]
    assert set(scheduling.assigned_work[second]) == {"tests/f.py", "tests/g.py"}
