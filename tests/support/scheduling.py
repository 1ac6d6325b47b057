"""Division of the tests among the workers of pytest-xdist, and the order of a run.

A module stays on one worker, for its tests share fixtures. All of `LANE` stay on one: they share a Spark session, which
takes ten seconds to start and becomes faster with each query. Families whose tests wait for other processes begin; the
thousands of short unit tests come last, so that no worker is left alone with a minute's test at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]

LANE = "tests/spark/"
OWN_SPARK = ("tests/spark/test_cluster.py",)
"""Modules that start a session of their own."""
FIRST = (LANE, "tests/faults/", "tests/clients/", "tests/contract/", "tests/fuzz/")
"""What begins; families that are not named come after these."""


class FamilyScheduling(LoadFileScheduling):  # type: ignore[misc]
    """`LoadFileScheduling` with one lane for Spark and the order of `FIRST`."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by number of tests: a module of one long test would come last

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """The module or lane of a test, which stays on one worker."""
    module = nodeid.partition("::")[0]
    return LANE if module.startswith(LANE) and module not in OWN_SPARK else module


def place_of(nodeid: str) -> int:
    """The place of a test's family in the order of a run."""
    return next((place for place, family in enumerate(FIRST) if nodeid.startswith(family)), len(FIRST))
