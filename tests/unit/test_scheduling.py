"""Division of the tests among workers, and the order of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]

from tests.support.scheduling import LONGEST, OWN_SPARK, FamilyScheduling, place_of, scope_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = [f"tests/{family}/test_{number}.py" for family in ("clients", "unit") for number in range(8)]
NAMES = [f"{module}::test_{number}" for module in MODULES for number in range(3)]


class Worker:
    """A worker of pytest-xdist that keeps the tests it is given."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(workers: int) -> list[list[str]]:
    """Return the tests that each worker runs, in order, where all take equally long."""
    config = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=True), getvalue=lambda _: ["popen"] * workers, hook=SimpleNamespace()
    )
    scheduling = FamilyScheduling(cast(pytest.Config, config), Producer("quiet", enabled=False))
    nodes = [Worker(f"gw{number}") for number in range(workers)]
    for node in nodes:
        scheduling.add_node(cast(Any, node))
        scheduling.add_node_collection(cast(Any, node), NAMES)
    scheduling.schedule()
    done = [0] * workers
    while not all(node.shutting_down and done[place] == len(node.given) for place, node in enumerate(nodes)):
        for place, node in enumerate(nodes):
            if done[place] < len(node.given):
                done[place] += 1
                scheduling.mark_test_complete(cast(Any, node), node.given[done[place] - 1])
    return [[NAMES[index] for index in node.given] for node in nodes]


def test_a_module_stays_on_one_worker() -> None:
    assert scope_of("tests/faults/test_soak.py::test_long[a::b]") == "tests/faults/test_soak.py"


def test_modules_that_share_a_spark_session_stay_together() -> None:
    modules = ["tests/spark/test_sink.py", "tests/spark/test_stream.py", "tests/spark/test_cluster.py"]
    assert len({scope_of(f"{module}::test_rows") for module in modules}) == 2


def test_tests_that_wait_begin_and_unit_tests_come_last() -> None:
    names = ["tests/unit/test_tidy.py::a", "tests/clients/test_tls.py::b", "tests/spark/test_sink.py::c"]
    assert sorted(names, key=place_of) == names[::-1]


def test_long_modules_begin_before_their_family() -> None:
    assert all(place_of(f"{module}::a") < place_of("tests/clients/test_tls.py::b") for module in LONGEST)


def test_modules_with_a_place_of_their_own_are_there() -> None:
    assert [module for module in (*LONGEST, *OWN_SPARK) if not (ROOT / module).exists()] == []


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_each_test_runs_once_and_its_module_on_one_worker(workers: int) -> None:
    ran = run(workers)
    assert sorted(name for names in ran for name in names) == sorted(NAMES)
    modules = [{scope_of(name) for name in names} for names in ran]
    assert sum(map(len, modules)) == len(MODULES)


def test_one_of_many_workers_begins_with_the_unit_tests() -> None:
    begun = [scope_of(names[0]) for names in run(5)]
    assert begun == [*MODULES[:4], MODULES[-1]]


def test_two_workers_keep_the_order() -> None:
    assert [scope_of(names[0]) for names in run(2)] == MODULES[:2]
