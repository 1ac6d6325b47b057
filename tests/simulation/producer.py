"""An idempotent client of a simulated cluster: it sends each record again, with the same sequence, until acknowledged.

One record of a producer is in flight at a time, so each is in the log once, after those before it. A leader that was
deposed may lack the record before and refuse the sequence; the client then asks again who leads. After an unclean
election the new leader may lack it for good: then the client continues with another producer id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tests.simulation.clock import Clock
from tidelog.protocol.errors import KafkaError, OutOfOrderSequenceNumberError
from tidelog.protocol.record.record_batch import BatchOptions

TIMEOUT_MS = 700.0
RETRY_MS = 100.0
Settled = Callable[[int | KafkaError], object]
Send = Callable[[bytes, BatchOptions, Settled], object]
"""Sends a record to the leader; the function gets the offset once the record is acknowledged, or an error."""


class IdempotentProducer:
    """A producer of one partition; ``ids`` gives producer ids that no other producer has."""

    def __init__(self, clock: Clock, ids: Iterator[int], send: Send, may_have_lost: Callable[[], bool]) -> None:
        """``may_have_lost`` returns whether an unclean election may have lost acknowledged records."""
        self.waiting: deque[bytes] = deque()
        """Records that are not acknowledged yet; the first one is in flight."""
        self._clock = clock
        self._ids = ids
        self._send = send
        self._may_have_lost = may_have_lost
        self._producer_id = next(ids)
        self._sequence = 0
        self._attempt = 0

    def write(self, value: bytes) -> None:
        """Send a record after those that wait."""
        self.waiting.append(value)
        if len(self.waiting) == 1:
            self._try()

    def _try(self) -> None:
        """Send the first record; after TIMEOUT_MS without an answer send it again."""
        self._attempt += 1
        attempt, value = self._attempt, self.waiting[0]
        options = BatchOptions(producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence)
        self._clock.after(TIMEOUT_MS, lambda: self._try_again(attempt))
        self._send(value, options, lambda answer: self._take(attempt, value, answer))

    def _try_again(self, attempt: int) -> None:
        if attempt == self._attempt and self.waiting:
            self._try()

    def _take(self, attempt: int, value: bytes, answer: int | KafkaError) -> None:
        """Take an answer; an offset may also come from an earlier attempt."""
        if not self.waiting or self.waiting[0] != value:
            return
        if isinstance(answer, int):
            self._sequence += 1
            self._attempt += 1
            self.waiting.popleft()
            if self.waiting:
                self._try()
        elif attempt == self._attempt:
            if isinstance(answer, OutOfOrderSequenceNumberError) and self._may_have_lost():
                self._producer_id, self._sequence = next(self._ids), 0
            self._clock.after(RETRY_MS, lambda: self._try_again(attempt))
