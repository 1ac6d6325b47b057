"""Group sync: one sync at a time, each covers all appends before it, and every waiting append is settled."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.unit.broker.controller.test_topic_changes import Steps
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.loop.group_sync import SETTLED_PER_TURN, GroupSync
from tidelog.broker.loop.threads import Threads
from tidelog.protocol.errors import KafkaError, KafkaStorageError


class Log:
    """A log that knows which of its records are durable, and a loop that the test moves."""

    def __init__(self) -> None:
        self.end = self.synced = 0
        self.failure: Exception | None = None
        self.syncs = 0
        self.steps = Steps()
        self.soon: list[object] = []
        self.group = GroupSync(self.sync, lambda: self.synced >= self.end, Threads(self.steps, self.soon.append))

    def sync(self) -> None:
        self.syncs += 1
        if self.failure is not None:
            raise self.failure
        self.synced = self.end

    def append(self) -> Deferred[None]:
        self.end += 1
        return self.group.when_synced()

    def turn(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            callback()  # type: ignore[operator]


def test_when_everything_is_durable_no_sync_is_needed() -> None:
    log = Log()
    first = log.append()
    assert (first.done, log.group.when_synced().done) == (False, False)
    while log.steps.waiting:
        log.steps.step()
    assert first.has_value
    syncs = log.syncs
    assert log.group.when_synced().has_value
    assert (log.syncs, log.steps.waiting) == (syncs, [])


@pytest.mark.parametrize("seed", range(30))
def test_an_append_is_settled_only_when_it_is_on_disk(seed: int) -> None:
    """Appends, syncs and turns in a random order; some syncs fail, with expected and with unexpected errors."""
    choose, log = random.Random(seed), Log()
    waiting: list[tuple[int, Deferred[None]]] = []
    for _ in range(300):
        log.failure = choose.choice([None, None, None, KafkaStorageError("full"), OSError("gone"), ValueError("odd")])
        step = choose.choice(["append", "append", "sync", "turn"])
        if step == "append":
            end = log.end + 1
            deferred = log.append()
            deferred.on_done(lambda done, end=end: None if error_of(done) else _assert_synced(log, end))  # type: ignore[misc]
            waiting.append((end, deferred))
        elif step == "sync" and log.steps.waiting:
            work, done = log.steps.waiting.pop(0)
            try:
                work()
            except Exception as error:  # noqa: BLE001 - as an executor does
                done.fail(error)
            else:
                done.complete(None)
        else:
            log.turn()
        assert len(log.steps.waiting) <= 1, "one sync at a time"
    log.failure = None
    while log.steps.waiting or log.soon:
        if log.steps.waiting:
            log.steps.step()
        log.turn()
    assert all(deferred.done for _, deferred in waiting)
    assert all(isinstance(error_of(deferred), KafkaError | None) for _, deferred in waiting)


def _assert_synced(log: Log, end: int) -> None:
    assert log.synced >= end


def test_a_callback_that_fails_does_not_keep_other_appends_from_settling() -> None:
    log = Log()
    first = log.append()
    rest = [log.append() for _ in range(2 * SETTLED_PER_TURN)]

    def fail(_: object) -> None:
        raise ZeroDivisionError

    rest[0].on_done(fail)
    log.steps.step()
    assert first.has_value
    log.steps.step()
    for _ in range(4):
        log.turn()
    assert all(deferred.has_value for deferred in rest)


def test_many_appends_are_settled_in_several_turns() -> None:
    log = Log()
    log.append()
    rest = [log.append() for _ in range(SETTLED_PER_TURN + 1)]
    log.steps.step()
    log.steps.step()
    assert [deferred.done for deferred in rest].count(True) == SETTLED_PER_TURN
    log.turn()
    assert all(deferred.has_value for deferred in rest)


def test_appends_of_the_last_sync_are_settled_although_the_next_sync_cannot_begin() -> None:
    log = Log()
    faults: list[Exception] = []

    def begin(work: Callable[[], None]) -> Deferred[None]:
        if faults:
            raise faults.pop()
        return log.steps(work)

    log.group = GroupSync(log.sync, lambda: False, Threads(begin, log.soon.append))
    first, second = log.append(), log.append()
    faults.append(MemoryError())
    log.steps.step()
    assert first.has_value
    log.append()
    log.steps.step()
    assert second.has_value
