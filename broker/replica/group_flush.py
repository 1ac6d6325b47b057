"""``flush.messages``: the high watermark waits for the disk, one fdatasync for all appends that came meanwhile.

    append -> fewer than flush.messages unsynced, no sync under way -> committed at once, as without flush.messages
           -> else wait: a sync runs in a thread, up to the log end of its start -> what lies below is committed

Appends that arrive while a sync runs wait for the next one, which begins when this one ends and covers them all: at any
number of producers a disk has one sync at a time per log, and an acknowledgement waits for two at most. The partition
settles those who wait for its high watermark; this is the source that moves it. Kafka syncs within the append, so
neither there nor here a consumer is shown a record that a power loss could take back (faults.md I2). A failed sync
takes the directory offline (``UnifiedLog.flush``) and fails all who wait: nothing is acknowledged (F9). Where the log
was cut within a sync, because leadership went and came back, what was appended in place of that waits for the next one;
where it was deleted or closed, all who wait fail.
Loop thread only; ``run_in_thread`` is the loop's executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.protocol.errors import KafkaError, KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

NEVER = 2**63 - 1
"""The value of ``flush.messages`` that asks for nothing."""

InThread = Callable[[Callable[[], None]], Deferred[None]]


class GroupFlush:
    """Syncs of one partition's log. ``synced`` is told up to which offset, ``failed`` why a sync did not work."""

    __slots__ = ("_failed", "_in_thread", "_log", "_running", "_synced")

    def __init__(
        self,
        log: UnifiedLog,
        in_thread: InThread,
        synced: Callable[[int], object],
        failed: Callable[[KafkaError], object],
    ) -> None:
        self._log = log
        self._in_thread = in_thread
        self._synced = synced
        self._failed = failed
        self._running = False

    def appended(self) -> None:
        """Commit what needs no sync, and begin one where it is due: the log got longer, or a reader waits for its
        end.
        """
        log = self._log
        if self._running:
            return
        if log.log_end_offset - log.recovery_point < log.config.flush_messages:
            self._synced(log.log_end_offset)
        else:
            self._start()

    def _start(self) -> None:
        self._running = True
        log, end = self._log, self._log.log_end_offset
        self._in_thread(lambda: log.flush(end)).on_done(lambda done: self._finish(end, done))

    def _finish(self, end: int, done: Deferred[None]) -> None:
        self._running = False
        failure = error_of(done)
        if failure is not None:
            self._failed(failure)
            return
        synced = min(end, self._log.recovery_point)  # less than asked for where the log was cut meanwhile
        try:
            self._synced(synced)
        finally:  # also if a callback failed: appends that came meanwhile need a sync
            if self._log.log_end_offset > synced:
                self._go_on()

    def _go_on(self) -> None:
        """Care for what the last sync did not cover. A log that was deleted or closed promises nothing, at no sync."""
        if self._log.is_serving:
            self.appended()
        else:
            self._failed(self._log.failure or KafkaStorageError("the log was closed within a sync"))
