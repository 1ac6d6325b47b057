"""The number and kinds of faults in a run: few in CI, as many as its variables say with ``make cluster-faults``."""

from __future__ import annotations

import os

import pytest

_CYCLES = os.environ.get("TIDELOG_CLUSTER_CYCLES", "")
MIXES = os.environ.get("TIDELOG_CLUSTER_MIXES", "TTJ").split(",")
MINUTES = float(os.environ.get("TIDELOG_CLUSTER_MINUTES", "0.3"))
"""Minutes for which the controllers are stopped."""
CUTS = os.environ.get("TIDELOG_CLUSTER_CUTS", "")
"""Names of the cuts to make, with commas; empty for all."""

at_length = pytest.mark.skipif(not _CYCLES, reason="make cluster-faults runs it")


def cycles(in_ci: int) -> int:
    """Return the number of faults that a test causes."""
    return int(_CYCLES or in_ci)
