"""Depth of property tests: the factor for the number of examples, 20 with `make fuzz-deep`, otherwise 1."""

from __future__ import annotations

import os

DEPTH = 20 if os.environ.get("TIDELOG_FUZZ_DEEP") else 1
