"""Division of the tests among the workers of pytest-xdist, and the order of a run.

A family is a group of tests by the beginning of their path (`FIRST`). A module stays on one worker, because its tests
share fixtures. All modules of `LANE` stay on one worker: they share a Spark session, which takes ten seconds to start
and becomes faster with each query. The modules of `LONGEST` are first, then families whose tests wait for other
processes, then the long modules of the other families. Short modules are last, so that no worker has a long one alone
at the end. One worker takes tests from the end of this order: unit tests never wait, and use the processors while the
other workers wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]

LANE = "tests/spark/"
OWN_SPARK = ("tests/spark/test_cluster.py",)
"""Modules that start a session of their own."""
LONGEST = (
    "tests/clients/test_rolling_move.py",
    "tests/clients/test_in_place.py",
    "tests/clients/test_replication.py",
    "tests/clients/test_cluster_start.py",
    "tests/contract/test_kafka_files.py",
    "tests/contract/test_share_answers.py",
    "tests/faults/test_soak.py",
    "tests/clients/test_old_java.py",
    "tests/clients/test_java.py",
    "tests/clients/test_install.py",
    "tests/faults/test_cleaner_crashes.py",
    "tests/faults/test_power_loss.py",
)
"""Modules of more than half a minute, by the table that CI prints; first those that wait for other processes."""
LONG = (
    "tests/faults/test_request_work.py",
    "tests/faults/test_full_disk.py",
    "tests/simulation/test_schedules.py",
    "tests/unit/pipeline/jobs/test_delta_store.py",
    "tests/faults/test_transaction_kills.py",
    "tests/faults/test_follow_kills.py",
    "tests/faults/test_cleaner_kill.py",
    "tests/faults/test_adoption_crashes.py",
    "tests/faults/test_deletion_interleavings.py",
    "tests/faults/test_data_bystander.py",
    "tests/faults/test_group_storm.py",
    "tests/faults/test_broker_disk_errors.py",
    "tests/faults/test_export_readers.py",
    "tests/faults/test_long_requests.py",
    "tests/fuzz/test_messages_fuzz.py",
    "tests/unit/test_tidy.py",
    "tests/unit/pipeline/jobs/test_damaged_tables.py",
)
"""Modules of more than fifteen seconds in the families that come last."""
FIRST = (
    LANE,
    *LONGEST,
    "tests/cluster_faults/",
    "tests/clients/",
    "tests/contract/",
    *LONG,
    "tests/faults/",
    "tests/fuzz/",
    "tests/simulation/",
)
"""The families in the order of a run; all other tests come after these."""
WORKERS_FOR_BOTH_ENDS = 3
"""With fewer workers than this all take tests from the beginning of the order."""


class FamilyScheduling(LoadFileScheduling):  # type: ignore[misc]
    """`LoadFileScheduling` with one lane for Spark, the order of `FIRST`, and one worker that begins at its end.

    A test that ends its worker's process has failed, and does not run again.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # else modules with most tests come first, one long test last

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Store the tests that a worker has collected, so that each is found at once."""
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Collection(collection)

    def remove_node(self, node: Any) -> str | None:
        """Give what a worker has not run to the others. Return the test that ended the worker, None if none did."""
        units: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        crashed = next((nodeid for unit in units.values() for nodeid, is_done in unit.items() if not is_done), None)
        if crashed is not None:
            units[scope_of(crashed)][crashed] = True
            self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
            for other in self.nodes:
                self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a worker more tests if it needs some, but not while it collects them, in place of one that ended."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker its next module, and forget those that it has finished: all are counted after each test."""
        assigned = self.assigned_work[node]
        for scope in [scope for scope, tests in assigned.items() if all(tests.values())]:
            del assigned[scope]
        if self.numnodes >= WORKERS_FOR_BOTH_ENDS and node is self.nodes[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


class Collection(list[str]):
    """The tests of a worker in their order, and the place of each: a list would be searched for each test of a run."""

    def __init__(self, nodeids: Sequence[str]) -> None:
        super().__init__(nodeids)
        self._places = {nodeid: place for place, nodeid in enumerate(nodeids)}

    def index(self, nodeid: str) -> int:  # type: ignore[override]
        """Return the place of a test; raise KeyError if there is none."""
        return self._places[nodeid]


def scope_of(nodeid: str) -> str:
    """Return the module or lane of a test, which stays on one worker."""
    module = nodeid.partition("::")[0]
    return LANE if module.startswith(LANE) and module not in OWN_SPARK else module


def place_of(nodeid: str) -> int:
    """Return the number of a test's family in the order of a run."""
    return next((number for number, family in enumerate(FIRST) if nodeid.startswith(family)), len(FIRST))
