"""``flush.messages``: acknowledgements that wait for the disk, one fdatasync for all appends that came meanwhile.

    append -> fewer than flush.messages unsynced, no sync under way -> committed at once, as without flush.messages
           -> else wait: a sync runs in a thread, up to the log end of its start -> what lies below is committed

Appends that arrive while a sync runs wait for the next one, which begins when this one ends and covers them all: at any
number of producers a disk has one sync at a time per log, and an acknowledgement waits for two at most. The high
watermark moves with the sync, so no consumer is shown a record that a power loss could take back (faults.md I2).
A failed sync takes the directory offline (``UnifiedLog.flush``) and fails every waiter: nothing is acknowledged (F9).
Loop thread only; ``run_in_thread`` is the loop's executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

NEVER = 2**63 - 1
"""The value of ``flush.messages`` that asks for nothing."""

InThread = Callable[[Callable[[], None]], Deferred[None]]


class GroupFlush:
    """Syncs of one partition's log. ``committed`` is called after the high watermark moved."""

    __slots__ = ("_committed", "_in_thread", "_log", "_running", "_waiting")

    def __init__(self, log: UnifiedLog, in_thread: InThread, committed: Callable[[], None]) -> None:
        self._log = log
        self._in_thread = in_thread
        self._committed = committed
        self._running = False
        self._waiting: list[tuple[int, Deferred[None]]] = []

    def appended(self) -> None:
        """The log got longer: commit what needs no sync, begin one where it is due."""
        log = self._log
        if self._running:
            return
        if log.log_end_offset - log.recovery_point < log.config.flush_messages:
            self._commit(log.log_end_offset)
        else:
            self._start()

    def when_durable(self, offset: int) -> Deferred[None]:
        """Settles once the record at ``offset`` is committed; fails with KafkaStorageError when its sync fails."""
        deferred: Deferred[None] = Deferred()
        if offset < self._log.high_watermark:
            deferred.complete(None)
        else:
            self._waiting.append((offset, deferred))
        return deferred

    def _start(self) -> None:
        self._running = True
        log, end = self._log, self._log.log_end_offset
        self._in_thread(lambda: log.flush(end)).on_done(lambda done: self._finished(end, done))

    def _finished(self, end: int, done: Deferred[None]) -> None:
        self._running = False
        try:
            done.result()
        except KafkaError as error:
            self._fail(error)
            return
        self._commit(end)
        if self._log.log_end_offset > end:
            self.appended()

    def _commit(self, offset: int) -> None:
        self._log.update_high_watermark(offset)
        self._committed()
        waiting, self._waiting = self._waiting, []
        for last_offset, deferred in waiting:
            if last_offset >= offset:
                self._waiting.append((last_offset, deferred))
            elif not deferred.abandoned:
                deferred.complete(None)

    def _fail(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        for _, deferred in waiting:
            if not deferred.abandoned:
                deferred.fail(error)
