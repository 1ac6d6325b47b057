"""A wrapper of a test broker's loop that shows whether the running code is a job for a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.unit.broker.data_broker import InlineLoop


class WatchedLoop:
    """Wrapper of a loop's ``run_in_executor``: ``is_in_worker`` is true while a job for a worker thread runs."""

    def __init__(self, loop: InlineLoop) -> None:
        self.is_in_worker = False
        self._run = loop.run_in_executor
        loop.run_in_executor = self.run_in_executor  # type: ignore[method-assign]

    def run_in_executor(self, executor: object, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        def watched() -> Any:
            self.is_in_worker = True
            try:
                return work(*arguments)
            finally:
                self.is_in_worker = False

        return self._run(executor, watched)
