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


def test_a_test_that_ends_its_worker_does_not_run_again(scheduling: FamilyScheduling, workers: list[Worker]) -> None:
    _, second, last = workers
    scheduling.mark_test_complete(second, second.told[0])
    assert scheduling.remove_node(second) == "tests/c.py::test_1"
    assert [TESTS[place] for place in last.told if TESTS[place].startswith("tests/c.py")] == []
    for place in last.told:
        scheduling.mark_test_complete(last, place)
    taken = [TESTS[place] for place in last.told if TESTS[place].startswith("tests/c.py")]
    assert taken == ["tests/c.py::test_2", "tests/c.py::test_3"]


def test_a_worker_in_place_of_another_gets_tests_once_it_has_collected_them(
    scheduling: FamilyScheduling, workers: list[Worker]
) -> None:
    new = Worker("gw3")
    scheduling.add_node(new)
    scheduling.remove_node(workers[1])
    assert new.told == []
    scheduling.add_node_collection(new, list(TESTS))
    scheduling.schedule()
    assert new.told


def test_a_worker_that_has_run_all_its_tests_leaves_none(scheduling: FamilyScheduling, workers: list[Worker]) -> None:
    last = workers[2]
    for place in last.told:
        scheduling.mark_test_complete(last, place)
    assert scheduling.remove_node(last) is None
