"""Depth of property tests: `make fuzz-deep` tries twenty times the examples, each night, not with each change."""

from __future__ import annotations

import os

DEPTH = 20 if os.environ.get("TIDELOG_FUZZ_DEEP") else 1
