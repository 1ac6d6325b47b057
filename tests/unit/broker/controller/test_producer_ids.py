"""Producer ids: their blocks are durable before use, no id is given twice, and the next block is fetched before the
present one is used up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.admin_broker import AdminBroker
from tests.unit.broker.controller.test_topic_changes import Steps
from tidelog.broker.controller.producer_ids import BLOCK_SIZE, PREFETCH_LEFT, ProducerIdManager
from tidelog.broker.loop.deferred import error_of
from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaStorageError


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path)


@pytest.fixture
def steps(admin: AdminBroker) -> Steps:
    steps = Steps()
    admin.set_listener(admin.listener, steps)
    return steps


def test_the_first_id_waits_until_its_block_is_durable(admin: AdminBroker, steps: Steps) -> None:
    ids = ProducerIdManager(admin.controller)
    waiting = [ids.when_available() for _ in range(3)]
    with pytest.raises(CoordinatorLoadInProgressError):
        ids.take()
    assert not any(deferred.done for deferred in waiting)
    assert admin.controller.image.producer_ids == BLOCK_SIZE, "one block serves all that wait"
    steps.all()
    assert all(deferred.has_value for deferred in waiting)
    assert [ids.take() for _ in range(3)] == [0, 1, 2]


def test_the_next_block_comes_before_the_present_one_is_used_up(admin: AdminBroker, steps: Steps) -> None:
    ids = ProducerIdManager(admin.controller)
    ids.when_available()
    steps.all()
    taken = [ids.take() for _ in range(BLOCK_SIZE - PREFETCH_LEFT - 1)]
    assert not steps.waiting
    taken.append(ids.take())
    assert len(steps.waiting) == 1
    taken += [ids.take() for _ in range(PREFETCH_LEFT)]
    with pytest.raises(CoordinatorLoadInProgressError):
        ids.take()
    steps.all()
    taken += [ids.take() for _ in range(BLOCK_SIZE)]
    steps.all()
    taken.append(ids.take())
    assert taken == list(range(2 * BLOCK_SIZE + 1))


def test_a_block_is_never_given_twice(admin: AdminBroker) -> None:
    ids = ProducerIdManager(admin.controller)
    ids.when_available()
    first = ids.take()
    restarted = ProducerIdManager(admin.reopen().controller)
    restarted.when_available()
    taken = [restarted.take() for _ in range(BLOCK_SIZE + 1)]
    assert taken[0] == first + BLOCK_SIZE
    assert len(set(taken)) == BLOCK_SIZE + 1


def test_a_failed_sync_fails_all_waiting_requests(
    admin: AdminBroker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ProducerIdManager(admin.controller)
    waiting = [ids.when_available() for _ in range(2)]
    (_, synced), steps.waiting = steps.waiting[0], []
    synced.fail(OSError("no thread"))
    assert all(error_of(deferred) for deferred in waiting)
    again = ids.when_available()
    steps.all()
    assert (again.has_value, ids.take()) == (True, BLOCK_SIZE), "the first block may be durable or not"


def test_ids_left_in_a_block_are_given_when_no_new_block_can_be_written(
    admin: AdminBroker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ProducerIdManager(admin.controller)
    ids.when_available()
    steps.all()

    def refuse(_records: object) -> None:
        raise KafkaStorageError("full")

    monkeypatch.setattr(type(admin.controller), "commit", lambda _self, records: refuse(records))
    assert [ids.take() for _ in range(BLOCK_SIZE)] == list(range(BLOCK_SIZE))
    with pytest.raises(KafkaStorageError, match="full"):
        ids.take()
    assert isinstance(error_of(ids.when_available()), KafkaStorageError)
