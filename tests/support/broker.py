"""A real Tidelog process for the tests that need one."""

from __future__ import annotations

from benchmarks.rivals import tidelog_broker as rival
from benchmarks.rivals.process import BrokerError, ChildProcess, free_port
from tests.support.forked_process import start_or_fork

__all__ = ["BrokerError", "TidelogProcess", "free_port"]


class TidelogProcess(rival.TidelogProcess):
    """`benchmarks.rivals.tidelog_broker.TidelogProcess`, forked where that makes no difference."""

    def start_process(self) -> ChildProcess:
        """Fork the process, or start it."""
        return start_or_fork(self, super().start_process)
