"""A real Tidelog process for the tests that need one."""

from __future__ import annotations

from benchmarks.rivals.process import BrokerError, free_port
from benchmarks.rivals.tidelog_broker import TidelogProcess

__all__ = ["BrokerError", "TidelogProcess", "free_port"]
