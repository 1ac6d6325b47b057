"""Runtime of a coordinator over an internal topic: it loads shards, appends their records, and replays the records.

    request -> shard of its key -> CoordinatorResult -> append its records as one batch -> replay them
            -> the high watermark passes them -> response

A shard is the state machine of one partition of the topic. The hash of a key (a group id, a transactional id or the key
of a share partition) selects the partition.

A partition is loaded by its first request. At a start, and when leaders change, all partitions with records that this
broker leads are loaded one after the other: timeouts of sessions and transactions must run without requests. Loading
reads ``LOAD_CHUNK_BYTES`` per turn of the loop; until it is complete, requests are answered
COORDINATOR_LOAD_IN_PROGRESS, which clients retry. A small partition (``FIRST_TURN_CHUNKS``) is loaded in the turn of
its first request, so that clients do not notice a quick restart.

A lone node creates the topic with its first record, and reads do not need it. In a cluster the topic exists before a
broker leads its partitions. Records are replayed when they are appended. No client sees their effect before the high
watermark has passed them, neither in the response to a change nor in a read. With one replica the high watermark passes
them at once, or if ``flush.messages`` is set, after the sync. If an append fails, nothing is replayed, so the state
always agrees with the log. Classic groups are the exception: they change their state themselves, and their records are
replayed only when a partition is loaded.

After an unexpected error (MemoryError, a defect) between an append and the end of its effects, the state may not agree
with the log. Then the shard is given up: requests that wait for it, and those that come before the next load, are
answered NOT_COORDINATOR; the partition is loaded again from the log after ``RETRY_MS``. If a load fails with an
unexpected error, it is tried again after longer and longer pauses. Loop thread only.

Source: KIP-848 (coordinator runtime).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import length_hint
from typing import Generic, TypeVar

from tidelog.broker.coordinator.runtime.execution import (
    ExecutedInAll,
    LongDecision,
    execute_decisions,
    execute_timed,
    ignore_execution,
    refusal_of,
    refuse_uncommitted,
)
from tidelog.broker.coordinator.runtime.internal_topic import TopicLog
from tidelog.broker.coordinator.runtime.key_hash import java_string_hash
from tidelog.broker.coordinator.runtime.loading import (
    FIRST_TURN_CHUNKS,
    LOAD_CHUNK_BYTES,
    MAX_RETRY_MS,
    RETRY_MS,
    Loading,
)
from tidelog.broker.coordinator.runtime.replay import (
    Serde,
    Shard,
    encode_batch,
    replay_chunk,
    replay_control,
    replay_result,
)
from tidelog.broker.coordinator.runtime.result import CoordinatorResult, Parts
from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
from tidelog.broker.loop.deferred import Deferred, NotReadyError, deferred_error, deferred_value, when_all
from tidelog.broker.loop.steps import ITEMS_PER_STEP, StepRunner, Steps, wait_for
from tidelog.log.system.time import Time
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    KafkaError,
    KafkaStorageError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    UnknownServerError,
)
from tidelog.protocol.record.record_batch import RecordBatch

logger = logging.getLogger(__name__)


T = TypeVar("T")
S = TypeVar("S", bound=Shard)


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic. ``call_soon`` and ``call_later(ms, callback)`` schedule on the loop. ``close``
    answers the waiting requests of a shard that is given up or that ``unload`` removes.
    """

    def __init__(
        self,
        name: str,
        *,
        log: TopicLog,
        serde: Serde,
        new_shard: Callable[[int, CoordinatorTimer], S],
        time: Time,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        close: Callable[[S], object] = lambda _: None,
    ) -> None:
        self.name = name
        self._log = log
        self._serde = serde
        self._new_shard = new_shard
        self._time = time
        self._call_soon = call_soon
        self._call_later = call_later
        self._close = close
        self._shards: dict[int, S] = {}
        self._loading: dict[int, Loading[S]] = {}
        self._opening: dict[int, Deferred[None]] = {}
        """Partitions whose logs are being opened by a thread."""
        self._round: Iterator[int] = iter(())  # partitions that ``load_all`` has not looked at yet
        self._empty: set[int] = set()
        """Partitions whose logs were empty when they were opened, and that have had no request since."""
        self._epochs: dict[int, int] = {}
        """Leader epoch of each loaded, loading or empty partition, when its loading began or it was found empty."""
        self._failed: dict[int, KafkaError] = {}
        """Errors of partitions that could not be loaded or were given up, until the next try, if any (``_fail``)."""
        self._pauses: dict[int, float] = {}
        """Next pause of a partition after an unexpected error, in milliseconds, until a load succeeds."""
        self._reported: dict[int, str] = {}
        """Error of a partition that was logged last: the same error is not logged again."""
        self.steps = StepRunner(call_soon, time.monotonic_ms)
        self._when_loaded: dict[int, list[Callable[[S, int], Parts]]] = {}
        """Long decisions (``execute_in_all``) that a partition's shard must execute before it is served."""
        self._partition_of: dict[str, int] = {}
        """Partition of each key that was looked up, at most MAX_REMEMBERED_KEYS."""

    # -- finding ------------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """Return the partition of a key."""
        partition = self._partition_of.get(key)
        if partition is None:
            if len(self._partition_of) >= MAX_REMEMBERED_KEYS:
                self._partition_of.clear()
            partition = java_string_hash(key) % self._log.partition_count()
            if self._log.exists():  # the topic may be created with another number of partitions
                self._partition_of[key] = partition
        return partition

    def is_here(self, key: str) -> bool:
        """Return whether this broker leads the key's partition."""
        return self._log.is_led(self.partition_for(key))

    def leader_epoch(self, key: str) -> int:
        """Return the leader epoch of the key's partition, which is its coordinator epoch."""
        return self._log.leader_epoch(self.partition_for(key))

    def shard_for(self, key: str) -> S:
        """Return the loaded shard of a key. If its partition is not loaded, begin to load it.

        Raises NotReadyError while the partition's log is being opened, CoordinatorLoadInProgressError while it is
        replayed. Raises NotCoordinatorError if another broker leads the partition, its log cannot be read, or its shard
        was given up.
        """
        partition = self._partition_of.get(key)
        return self.shard(self.partition_for(key) if partition is None else partition)

    def shard(self, partition: int) -> S:
        """Return the loaded shard of a partition. If it is not loaded, begin to load it. Raises what ``shard_for``
        raises.
        """
        shard = self._shards.get(partition)
        if shard is not None and self.is_served(partition, shard):
            return shard
        if shard is not None or partition in self._failed or not self._log.is_led(partition):
            raise NotCoordinatorError
        if partition not in self._loading:
            self._check_open((partition,))
            self._begin_loading(partition)
            for _ in range(FIRST_TURN_CHUNKS):
                if self._load_chunk(partition):
                    break
            else:
                self._call_soon(lambda: self._load_then(partition, iter(())))
        shard = self._shards.get(partition)
        if shard is None:
            raise NotCoordinatorError if partition in self._failed else CoordinatorLoadInProgressError
        return shard

    def loaded_shards(self) -> list[S]:
        """Return the shards of this broker, after all its partitions with records are loaded. Partitions whose log
        cannot be read, or whose shard was given up, are left out. Raises NotReadyError, CoordinatorLoadInProgressError.
        """
        if self._log.exists():
            partitions = range(self._log.partition_count())
            self._check_open(partitions)
            for partition in partitions:
                if self._is_to_be_loaded(partition):
                    with suppress(NotCoordinatorError):  # its log cannot be read
                        self.shard(partition)
        return list(self._shards.values())

    @property
    def loaded(self) -> list[tuple[int, S]]:
        """The shards that are loaded, with their partitions."""
        return list(self._shards.items())

    def load_all(self) -> None:
        """Load all partitions that have records, one after the other, in the background."""
        if self._log.exists():
            deque(self._round, maxlen=0)  # the round before looks at no further partition
            self._round = iter(range(self._log.partition_count()))
            self._load_next(self._round)

    def resign_lost(self) -> list[S]:
        """Unload the partitions that this broker no longer leads, or leads in another epoch, because other leaders may
        have written to them. Returns their shards; ``close`` is not called for them."""
        for by_partition in (self._failed, self._reported, self._when_loaded, self._pauses):
            for partition in [one for one in by_partition if not self._log.is_led(one)]:
                del by_partition[partition]
        lost = {one for one, epoch in self._epochs.items() if not self._is_led_in(one, epoch)}
        self._empty -= lost
        for partition in lost:
            del self._epochs[partition]
            self._loading.pop(partition, None)
        return [self._shards.pop(partition) for partition in lost if partition in self._shards]

    def _is_led_in(self, partition: int, epoch: int) -> bool:
        return self._log.is_led(partition) and self._log.leader_epoch(partition) == epoch

    def unload(self) -> None:
        """Unload all partitions, because the topic was deleted or the broker stops. Waiting requests are answered."""
        shards, self._shards = self._shards, {}
        self._loading.clear()
        self._empty.clear()
        self._epochs.clear()
        self._failed.clear()
        self._pauses.clear()
        self._opening.clear()
        deque(self._round, maxlen=0)  # the round looks at no further partition
        self._when_loaded.clear()
        self._partition_of.clear()
        for partition, shard in shards.items():
            self._answer_waiting(partition, shard)

    # -- writing ------------------------------------------------------------------------------------------------

    def execute(self, key: str, result: CoordinatorResult[T], decided_by: S | None = None) -> Deferred[T]:
        """Append the records, replay them, and call ``on_append``. The Deferred gets the response once the high
        watermark has passed all records of the partition.

        ``decided_by`` is the shard of a result that was not decided in this turn; no other shard executes it. Raises
        NotCoordinatorError after an unexpected error, and if the partition has no shard, or another one, unless the
        result has neither records nor ``on_append``. If the append fails, raises its KafkaError, or what ``on_append``
        raises for it. The Deferred fails with NotCoordinatorError if the records are not committed.
        """
        return self.execute_in(self.partition_for(key), result, decided_by)

    def execute_in(self, partition: int, result: CoordinatorResult[T], decided_by: S | None = None) -> Deferred[T]:
        """Do what ``execute`` does, for a partition, which must be loaded."""
        if result.records or result.on_append is not None:
            self.write(partition, self._find_served(partition, decided_by), result)
        return self._answer_committed(partition, result.response)

    def _find_served(self, partition: int, decided_by: S | None = None) -> S:
        """Return the shard of a partition. Raises NotCoordinatorError if there is none, or ``decided_by`` was given up
        meanwhile.
        """
        shard = self._shards.get(partition)
        if shard is None or decided_by not in (None, shard):
            raise NotCoordinatorError
        return shard

    def execute_waiting(self, key: str, result: CoordinatorResult[Deferred[T]]) -> Deferred[T]:
        """Do what ``execute`` does, for a response that other requests complete later. The returned Deferred gets the
        response once all records that were appended before the response was complete are committed.
        """
        partition = self.partition_for(key)
        if result.records or result.on_append is not None:
            self.write(partition, self._find_served(partition), result)
        response = result.response
        if response.done and self._log.when_committed(partition) is None:
            return response
        committed: Deferred[T] = Deferred()
        committed.on_abandon(response.abandon)

        def wait_for_commit(done: Deferred[T]) -> None:
            try:
                self._answer_committed(partition, done.result()).pass_to(committed)
            except KafkaError:
                done.pass_to(committed)

        response.on_done(wait_for_commit, committed.refuse)
        return committed

    def when_committed(self, key: str, answer: T, read_from: S | None = None) -> Deferred[T]:
        """Return a Deferred of ``answer``, which was read from the key's shard, once the shard's records are committed.

        ``read_from`` is the shard of an answer that was read in several turns. The Deferred fails with
        NotCoordinatorError if that shard is no longer served, or its records are not committed. If the partition has no
        shard, the answer is an error, and is returned at once: another broker leads the partition, it is being loaded,
        or its log cannot be read. Only if its shard was given up, the answer may come from that shard, and waits.
        """
        partition = self.partition_for(key)
        if read_from is not None and not self.is_served(partition, read_from):
            return deferred_error(NotCoordinatorError())
        is_readable = partition in self._shards or isinstance(self._failed.get(partition), UnknownServerError)
        return self._answer_committed(partition, answer) if is_readable else deferred_value(answer)

    def when_open(self, key: str) -> Deferred[None] | None:
        """Begin to open the log of a key's partition. Returns None if there is nothing to wait for. Once the log is
        open, the next ``shard_for`` loads a small partition at once.
        """
        partition = self.partition_for(key)
        return None if self._is_loaded_or_failed(partition) else self._opening_of(partition)

    def wait_until_open(self, key: str) -> Steps[None]:
        """Wait until the log of a key's partition is open."""
        opening = self.when_open(key)
        if opening is not None:
            yield opening

    def wait_until_committed(self, keys: Iterable[str]) -> Steps[None]:
        """Wait until all records of these keys' shards are committed. Raises NotCoordinatorError."""
        for number, key in enumerate(keys):
            yield from wait_for(self.when_committed(key, None))
            if not number % ITEMS_PER_STEP:
                yield None

    def when_all_committed(self, answer: T) -> Deferred[T]:
        """Return a Deferred of ``answer``, which was read from all shards, once the records of all are committed."""
        return when_all([self._answer_committed(partition, None) for partition in self._shards], answer)

    def _answer_committed(self, partition: int, answer: T) -> Deferred[T]:
        """Return a Deferred of ``answer`` once all records of the partition are committed."""
        waiting = self._log.when_committed(partition)
        if waiting is None:
            return deferred_value(answer)
        return waiting.map(lambda _: answer).recover(refuse_uncommitted)

    def write(self, partition: int, shard: S, result: CoordinatorResult[T]) -> None:
        """Append the records of a result, replay them, and call ``on_append``. Raises what ``execute`` raises, and
        NotCoordinatorError for a shard that was given up or is not served any longer."""
        if not self._is_current(partition, shard):
            raise NotCoordinatorError
        try:
            refusal = self._write(partition, shard, result)
        except Exception as error:
            self._give_up(partition)
            raise NotCoordinatorError from error
        if refusal is not None:
            raise refusal

    def _write(self, partition: int, shard: S, result: CoordinatorResult[T]) -> KafkaError | None:
        """Do what ``write`` does. If the append fails, returns its error, or if there is an ``on_append``, the error
        that it raises, or None.
        """
        if result.records:
            try:
                batch = encode_batch(self._serde, result.records, result.stamp, self._time.milliseconds())
                first_offset = self._log.append(partition, batch)
            except KafkaError as error:
                logger.warning("%s-%d: append failed: %s", self.name, partition, error)
                return error if result.on_append is None else refusal_of(result.on_append, error)
            if result.replay:
                replay_result(shard, result, first_offset)
        if result.on_append is not None:
            result.on_append(None)
        return None

    def execute_in_all(
        self, decide: Callable[[S, int], Parts], on_executed: Callable[[], None] = ignore_execution
    ) -> Deferred[None]:
        """Have each shard decide, and execute its decision in parts. Shards that are not loaded do so before they are
        served.

        ``decide(shard, end_offset)`` gets the current end of the shard's log: records that are written between two
        parts have offsets from there on. The Deferred completes when all loaded shards have executed their decision, or
        were given up: then the decision is executed when the partition is loaded again. The Deferred fails with the
        KafkaError of an append, after the other shards have executed theirs; that shard decides again after RETRY_MS.
        If the end of a loaded shard's log cannot be read, the Deferred fails at once, and no loaded shard decides.

        ``on_executed`` is called once all partitions have executed the decision, also those that do so later. It is not
        called if another broker leads one of them, nor after ``unload``.
        """
        partitions = [one for one in range(self._log.partition_count()) if one not in self._empty]
        executed = ExecutedInAll(decide, partitions, on_executed)
        for partition in partitions:
            if partition not in self._shards:
                self._execute_when_loaded(partition, executed.decide_in(partition))
        try:
            decisions = [
                self._build_decision(partition, shard, executed.decide_in(partition), self._log.end_offset(partition))
                for partition, shard in self.loaded
            ]
        except KafkaError as error:
            return deferred_error(error)
        if len(decisions) < len(partitions) and not length_hint(self._round):
            self.load_all()
        return self._execute_long(decisions)

    def _execute_long(self, decisions: list[LongDecision[S]]) -> Deferred[None]:
        try:
            job = self.steps.run(execute_decisions(self, decisions))
        except KafkaError as error:
            return deferred_error(error)
        return deferred_value(None) if job is None else job.done

    def _build_decision(
        self, partition: int, shard: S, decide: Callable[[S, int], Parts], end_offset: int
    ) -> LongDecision[S]:
        """Have a loaded shard decide. If it is given up, its successor decides for the same ``end_offset``."""

        def begin_again() -> None:
            self._execute_when_loaded(partition, lambda loaded, _: decide(loaded, end_offset))

        postpone = partial(self._postpone, partition, decide, end_offset)
        return LongDecision(partition, shard, decide(shard, end_offset), begin_again, postpone)

    def _execute_when_loaded(self, partition: int, decide: Callable[[S, int], Parts]) -> None:
        """Have the next shard of a partition decide before it is served, if this broker leads the partition."""
        if self._log.exists() and self._log.is_led(partition):
            self._when_loaded.setdefault(partition, []).append(decide)

    def append_end_transaction(self, partition: int, batch: bytearray, transaction_version: int = 0) -> Deferred[None]:
        """Append a transaction marker (a control batch), and replay it if the partition is loaded. The Deferred
        completes when the marker is committed.

        Raises KafkaError. If the partition is being loaded, the marker is replayed with the rest of its log.
        """
        marker = RecordBatch(batch)
        self._log.append(partition, batch, transaction_version)
        shard = self._shards.get(partition)
        if shard is not None:
            try:
                replay_control(shard, marker)
            except Exception:  # noqa: BLE001 - logged by _give_up; the marker is in the log, and is loaded from it
                self._give_up(partition)
        return self._answer_committed(partition, None)

    # -- loading ------------------------------------------------------------------------------------------------

    def _check_open(self, partitions: Iterable[int]) -> None:
        """Raise NotReadyError unless the logs of these partitions are open. Threads open those that are not."""
        openings = [self._opening_of(partition) for partition in partitions if not self._is_loaded_or_failed(partition)]
        waits = [opening for opening in openings if opening is not None]
        if waits:
            raise NotReadyError(when_all(waits, None))

    def _is_loaded_or_failed(self, partition: int) -> bool:
        return partition in self._shards or partition in self._failed

    def _opening_of(self, partition: int) -> Deferred[None] | None:
        """Begin to open a partition's log. Returns a Deferred that never fails, or None if the log is open or another
        broker leads the partition.
        """
        under_way = self._opening.get(partition)
        if under_way is None:
            opening = self._log.when_open(partition) if self._log.is_led(partition) else None
            if opening is None:
                return None
            under_way = self._opening[partition] = opening.recover(lambda error: self._fail(partition, error))
            under_way.on_done(lambda _: self._end_opening(partition))
        return under_way

    def _end_opening(self, partition: int) -> None:
        self._opening.pop(partition, None)

    def _load_next(self, partitions: Iterator[int]) -> None:
        """Load those of these partitions that have records, one after the other. One is checked in each turn."""
        partition = next(partitions, None)
        if partition is None:
            return
        opening = None if self._is_loaded_or_failed(partition) else self._opening_of(partition)
        if opening is None:
            self._load_opened(partition, partitions)
        else:
            opening.on_done(lambda _: self._load_opened(partition, partitions))

    def _load_opened(self, partition: int, partitions: Iterator[int]) -> None:
        """Load a partition whose log is open, then the others. If it cannot be loaded, the others still are."""
        if not self._log.exists():
            return  # the topic was deleted meanwhile
        try:
            self._begin_opened(partition, partitions)
        except Exception:  # noqa: BLE001 - logged by _give_up
            self._give_up(partition)
            self._call_soon(lambda: self._load_next(partitions))

    def _begin_opened(self, partition: int, partitions: Iterator[int]) -> None:
        """Begin to load a partition if it has records that are not loaded, else note that it is empty."""
        if not self._is_to_be_loaded(partition):
            if not self._is_loaded_or_failed(partition) and self._log.is_led(partition):
                self._empty.add(partition)
                self._epochs[partition] = self._log.leader_epoch(partition)
            self._call_soon(lambda: self._load_next(partitions))
            return
        if partition not in self._loading:
            self._begin_loading(partition)
        self._call_soon(lambda: self._load_then(partition, partitions))

    def _is_to_be_loaded(self, partition: int) -> bool:
        """Return whether this broker leads the partition, which is neither loaded nor failed, and has records or a
        decision to execute."""
        if self._is_loaded_or_failed(partition) or not self._log.is_led(partition):
            return False
        try:
            return partition in self._when_loaded or self._log.end_offset(partition) > self._log.start_offset(partition)
        except KafkaError as error:
            self._fail(partition, error)
            return False

    def _load_then(self, partition: int, partitions: Iterator[int]) -> None:
        """Load one chunk of a partition in each turn, then the other partitions."""
        if partition in self._loading and not self._load_chunk(partition):
            self._call_soon(lambda: self._load_then(partition, partitions))
        else:
            self._load_next(partitions)

    def _begin_loading(self, partition: int) -> None:
        shard = self._new_shard(partition, CoordinatorTimer(self._time))
        self._epochs[partition] = self._log.leader_epoch(partition)
        start, end = 0, 0
        try:
            if self._log.exists():
                start, end = self._log.start_offset(partition), self._log.end_offset(partition)
        except KafkaError as error:
            self._fail(partition, error)
            return
        self._loading[partition] = Loading(partition, shard, start, end)

    def _load_chunk(self, partition: int) -> bool:
        """Replay one chunk. Returns True when the partition is loaded, or loading has failed."""
        loading = self._loading.get(partition)
        if loading is None:
            return True
        try:
            return self._replay_chunk_of(loading)
        except KafkaError as error:
            self._fail(partition, error)
        except Exception:  # noqa: BLE001 - logged by _give_up
            self._give_up(partition)
        return True

    def _replay_chunk_of(self, loading: Loading[S]) -> bool:
        """Replay one chunk, and return whether the partition is loaded. Raises KafkaError."""
        partition = loading.partition
        if loading.next_offset < loading.end_offset:
            chunk = self._log.read(partition, loading.next_offset, LOAD_CHUNK_BYTES)
            name = f"{self.name}-{partition}"
            replayed_to = replay_chunk(loading.shard, self._serde, chunk, loading.next_offset, name)
            # Compaction may have removed all batches below the end offset: then nothing more can be read.
            loading.next_offset = replayed_to if replayed_to > loading.next_offset else loading.end_offset
        if loading.next_offset >= loading.end_offset and self._log.exists():
            loading.end_offset = self._log.end_offset(partition)  # markers may have been appended meanwhile
        if loading.next_offset < loading.end_offset or self._execute_part(loading):
            return False
        if self._is_current(partition, loading.shard):  # the shard may have been given up in its last part
            self._finish_loading(loading)
        return True

    def _execute_part(self, loading: Loading[S]) -> bool:
        """Execute the next part of the decisions that this shard must execute before it is served. Returns False when
        all are done. The log was read to its end in this turn."""
        decisions = self._when_loaded.get(loading.partition)
        while decisions:
            if loading.parts is None:
                loading.parts = decisions[0](loading.shard, loading.end_offset)
            part = next(loading.parts, None)
            if part is not None and self._try_part(loading, part):
                loading.next_offset = loading.end_offset = self._log.end_offset(loading.partition)
                return True
            if part is not None:
                self._postpone(loading.partition, decisions[0], loading.end_offset)
            loading.parts = None
            del decisions[0]
        self._when_loaded.pop(loading.partition, None)
        return False

    def _try_part(self, loading: Loading[S], part: CoordinatorResult[None]) -> bool:
        """Execute a part. Returns False if its records cannot be appended. Returns True also if the shard was given up
        meanwhile: the decision begins again when the partition is loaded again."""
        try:
            self.write(loading.partition, loading.shard, part)
        except KafkaError:
            return not self._is_current(loading.partition, loading.shard)
        return True

    def _postpone(self, partition: int, decide: Callable[[S, int], Parts], end_offset: int) -> None:
        """Have a partition's shard decide again after RETRY_MS, because its log cannot be written, such as on a full
        disk. Meanwhile the shard is served."""

        def decide_again() -> None:
            shard = self._shards.get(partition)
            if shard is None:
                self._execute_when_loaded(partition, lambda loaded, _: decide(loaded, end_offset))
                return
            self._execute_long([self._build_decision(partition, shard, decide, end_offset)])

        self._call_later(RETRY_MS, decide_again)

    def _finish_loading(self, loading: Loading[S]) -> None:
        partition, shard = loading.partition, loading.shard
        del self._loading[partition]
        self._shards[partition] = shard
        self._empty.discard(partition)
        self._reported.pop(partition, None)
        for result in shard.on_loaded():
            execute_timed(self, partition, shard, result)
        if not self.is_served(partition, shard):
            return
        self._pauses.pop(partition, None)
        shard.timer.wake_up = lambda deadline: self._arm(partition, shard, deadline)
        deadline_ms = shard.timer.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(partition, shard, deadline_ms)

    def _fail(self, partition: int, error: KafkaError) -> None:
        """Refuse requests for a partition that cannot be loaded. Loading is tried again later after an error of the
        disk or an unexpected error, or if the replica does not lead yet, although the metadata say so. After other
        errors, requests are refused until another broker leads the partition, or the topic is deleted.
        """
        if self._reported.get(partition) != str(error):
            logger.error("%s-%d cannot be loaded, requests for it are refused: %s", self.name, partition, error)
        self._reported[partition] = str(error)
        self._loading.pop(partition, None)
        self._failed[partition] = error
        # A full disk may get space again. A replica whose log could not be opened leads once a later try has opened it.
        if isinstance(error, KafkaStorageError | NotLeaderOrFollowerError):
            self._try_again_later(partition, RETRY_MS)
        elif isinstance(error, UnknownServerError):  # not the log's fault: no thread could be started, or no memory
            self._try_again_later(partition, self._next_pause_ms(partition))

    def _next_pause_ms(self, partition: int) -> float:
        """Return the pause before the next load, and double the one after it."""
        pause_ms = self._pauses.get(partition, RETRY_MS)
        self._pauses[partition] = min(2 * pause_ms, MAX_RETRY_MS)
        return pause_ms

    def _try_again_later(self, partition: int, delay_ms: float) -> None:
        def try_again() -> None:
            if self._failed.pop(partition, None) is not None:
                self._load_next(iter((partition,)))

        self._call_later(delay_ms, try_again)

    def _give_up(self, partition: int) -> None:
        """Drop the shard after an unexpected error, because its state may not agree with the log, and load it again
        later. To be called within an ``except`` block.
        """
        logger.exception("%s-%d is unloaded after an unexpected error, and is loaded again later", self.name, partition)
        shard = self._shards.pop(partition, None)
        self._loading.pop(partition, None)
        self._failed[partition] = UnknownServerError()
        self._try_again_later(partition, self._next_pause_ms(partition))
        if shard is not None:
            self._answer_waiting(partition, shard)

    def _answer_waiting(self, partition: int, shard: S) -> None:
        try:
            self._close(shard)
        except Exception:
            logger.exception("%s-%d: waiting requests could not be answered", self.name, partition)

    # -- timers -------------------------------------------------------------------------------------------------

    def is_served(self, partition: int, shard: S) -> bool:
        """Return whether this is the partition's current shard. A shard of an earlier leader epoch is not, although
        ``resign_lost`` has not removed it yet: another leader may have written to the partition."""
        return self._shards.get(partition) is shard and self._is_led_in(partition, self._epochs[partition])

    def _is_current(self, partition: int, shard: S) -> bool:
        """Return whether this is the partition's current shard, or the one that is being loaded."""
        loading = self._loading.get(partition)
        return self.is_served(partition, shard) or (loading is not None and loading.shard is shard)

    def _arm(self, partition: int, shard: S, deadline_ms: float) -> None:
        """Have the loop call ``_run_timer`` at the deadline, unless an earlier call is scheduled: that one
        arms the next deadline.
        """
        armed = shard.timer.armed
        if armed and armed[-1] <= deadline_ms:
            return
        armed.append(deadline_ms)
        delay_ms = max(0.0, deadline_ms - self._time.monotonic_ms())
        self._call_later(delay_ms, lambda: self._run_timer(partition, shard))

    def _run_timer(self, partition: int, shard: S) -> None:
        if not self.is_served(partition, shard):
            return  # unloaded meanwhile
        shard.timer.armed.pop()
        try:
            shard.timer.run_due(lambda result: execute_timed(self, partition, shard, result))
        except Exception:  # noqa: BLE001 - logged by _give_up
            self._give_up(partition)
        deadline_ms = shard.timer.next_deadline_ms()
        if deadline_ms is not None and self.is_served(partition, shard):
            self._arm(partition, shard, deadline_ms)


MAX_REMEMBERED_KEYS = 100_000
"""Largest number of keys whose partition is remembered."""
