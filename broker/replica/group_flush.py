"""``flush.messages``: the high watermark waits for the disk, and one fdatasync serves all appends that arrived during
the one before.

    append -> fewer than flush.messages unsynced, no sync under way -> committed at once, as without flush.messages
           -> else wait: a thread syncs up to the log end of that moment -> records below it are committed

Appends that arrive while a sync runs wait for the next one, which begins when this one ends and covers them all. So
with any number of producers a log has one sync at a time, and an acknowledgement waits for two at most. The end of a
sync moves the partition's high watermark, and so settles the waits for it (``offset_waits``). If the partition has
followers, the high watermark moves only as far as the ISR has the records. Kafka syncs within the append. So with
``flush.messages=1`` neither Kafka nor Tidelog shows a consumer a record that a power loss could take (faults.md I2). A
failed sync fails all waits: nothing is acknowledged. It takes the directory offline (``UnifiedLog.flush``, F9), unless
the disk is full: then the next append, or the next wait for a commit, begins another sync. If the log is truncated
during a sync, because leadership went and came back, the records appended after that wait for the next sync. If the log
is deleted or closed, all waits fail. Loop thread only; ``log.flush`` runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.protocol.errors import KafkaError, KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

NEVER = 2**63 - 1
"""Value of ``flush.messages`` that asks for no syncs."""

InThread = Callable[[Callable[[], None]], Deferred[None]]


class GroupFlush:
    """Syncs of one partition's log. ``synced`` is called with the offset up to which the log is synced or needs no
    sync, ``failed`` with an error."""

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

    def commit_or_sync(self) -> None:
        """Commit records that need no sync, or begin a sync if one is due. To be called after an append, and when
        something begins to wait for a commit."""
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
        synced = min(end, self._log.recovery_point)  # less than ``end`` if the log was truncated meanwhile
        try:
            self._synced(synced)
        finally:  # also if a callback raised: appends that came meanwhile need a sync
            if self._log.log_end_offset > synced:
                self._go_on()

    def _go_on(self) -> None:
        """Commit or sync what the last sync did not cover; if the log was deleted or closed, fail the waits."""
        if self._log.is_serving:
            self.commit_or_sync()
        else:
            self._failed(self._log.failure or KafkaStorageError("the log was closed during a sync"))
