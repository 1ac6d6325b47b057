"""The length of a run of faults: CI runs a few faults, ``make cluster-faults`` as many as its variables say."""

from __future__ import annotations

import os

import pytest

_CYCLES = os.environ.get("TIDELOG_CLUSTER_CYCLES", "")
MIXES = os.environ.get("TIDELOG_CLUSTER_MIXES", "TTJ").split(",")
MINUTES = float(os.environ.get("TIDELOG_CLUSTER_MINUTES", "0.3"))
"""How long the controllers are away."""
CUTS = os.environ.get("TIDELOG_CLUSTER_CUTS", "")
"""Names of the cuts to make, with commas; empty for all."""

at_length = pytest.mark.skipif(not _CYCLES, reason="make cluster-faults runs it")


def cycles(in_ci: int) -> int:
    """Return how many faults a test makes."""
    return int(_CYCLES or in_ci)
