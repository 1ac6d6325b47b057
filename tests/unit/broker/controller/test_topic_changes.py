"""Creation and deletion of topics in steps: nothing is shown, renamed or answered before it is on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker, NotingListener
from tests.unit.broker.controller.test_topics import FullDisk
from tidelog.broker.controller.topic_changes import NewTopic
from tidelog.broker.controller.topics import TopicManager
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.threads import run_now
from tidelog.broker.metadata.image import UNASSIGNED_DIRECTORY, TopicImage
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.protocol.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    TopicAlreadyExistsError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.metadata_records.records import PartitionChangeRecord


class Steps:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Deferred[None]]] = []

    def __call__(self, work: Callable[[], None]) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        self.waiting.append((work, deferred))
        return deferred

    def step(self) -> None:
        work, deferred = self.waiting.pop(0)
        done = run_now(work)
        done.on_done(lambda _: deferred.complete(None) if done._error is None else deferred.fail(done._error))

    def all(self) -> None:
        while self.waiting:
            self.step()


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path)


@pytest.fixture
def steps(admin: AdminBroker) -> Steps:
    steps = Steps()
    admin.set_listener(admin.listener, steps, steps.all)
    return steps


def test_a_topic_is_shown_once_it_is_durable_and_has_logs(admin: AdminBroker, steps: Steps) -> None:
    change = admin.topics.changes.create(NewTopic("orders", 3))
    assert (change.image.partition_count, change.done.done) == (3, False)
    assert admin.controller.image.topic_by_name("orders") is not None
    steps.step()  # the sync
    assert not admin.metadata.topics
    steps.step()  # the logs
    assert change.done.result() == admin.metadata.topics["orders"]
    assert admin.listener.events == [("created", "orders", 0, 3)]
    assert not steps.waiting


def test_the_name_of_a_topic_that_is_being_created_is_taken(admin: AdminBroker, steps: Steps) -> None:
    admin.topics.changes.create(NewTopic("a.b"))
    with pytest.raises(TopicAlreadyExistsError):
        admin.topics.changes.create(NewTopic("a.b"))
    with pytest.raises(TopicAlreadyExistsError):
        create_topic(admin, "a.b")
    with pytest.raises(InvalidTopicError, match="collides"):
        admin.topics.changes.create(NewTopic("a_b"))
    steps.all()
    assert list(admin.metadata.topics) == ["a.b"]


def test_one_sync_covers_all_changes_committed_before_it(admin: AdminBroker, steps: Steps) -> None:
    changes = [admin.topics.changes.create(NewTopic(name)) for name in ("a", "b", "c")]
    assert len(steps.waiting) == 1, "of a; b and c came later and have the next one"
    steps.step()
    assert len(steps.waiting) == 2, "the logs of a, a sync for b and c"
    steps.all()
    assert [change.done.result().name for change in changes] == ["a", "b", "c"]


def test_a_deleted_topic_is_hidden_at_once_and_its_name_free_at_the_end(admin: AdminBroker, steps: Steps) -> None:
    image = create_topic(admin, "orders")
    del admin.listener.events[:]
    change = admin.topics.changes.delete("orders")
    assert not admin.metadata.topics
    assert not admin.listener.events
    with pytest.raises(TopicAlreadyExistsError):
        admin.topics.changes.create(NewTopic("orders"))
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.topics.changes.delete("orders")
    steps.step()
    assert not change.done.done, "its logs are removed in a thread"
    steps.step()
    assert change.done.result() == image
    assert [event[0] for event in admin.listener.events] == ["deleted"]
    again = admin.topics.changes.create(NewTopic("orders"))
    steps.all()
    assert again.done.result().topic_id != image.topic_id


def test_auto_creation_of_a_topic_that_is_being_created_waits_for_it(admin: AdminBroker, steps: Steps) -> None:
    first = admin.topics.changes.auto_create("orders")
    assert admin.topics.changes.auto_create("orders") is first
    steps.all()
    assert admin.metadata.topics["orders"] == first.done.result()


def test_a_creation_that_is_only_validated_commits_nothing(admin: AdminBroker, steps: Steps) -> None:
    change = admin.topics.changes.create(NewTopic("orders", 3, validate_only=True))
    assert change.done.result().partition_count == 3
    assert admin.controller.image.topic_by_name("orders") is None
    assert not steps.waiting


def test_a_topic_whose_logs_cannot_be_created_is_removed_again(admin: AdminBroker, steps: Steps) -> None:
    admin.set_listener(FullDisk(), steps)
    change = admin.topics.changes.create(NewTopic("orders"))
    steps.all()
    with pytest.raises(KafkaStorageError):
        change.done.result()
    assert admin.controller.image.topic_by_name("orders") is None
    admin.set_listener(admin.listener)
    assert admin.topics.changes.create(NewTopic("orders")).done.result().name == "orders"


def test_a_failed_sync_fails_all_changes_that_wait_for_it(
    admin: AdminBroker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(admin, "old")

    def fail() -> None:
        raise KafkaStorageError("cannot sync")

    monkeypatch.setattr(admin.controller._syncs, "_sync", fail)
    changes = [admin.topics.changes.create(NewTopic("a")), admin.topics.changes.delete("old")]
    steps.all()
    for change in changes:
        with pytest.raises(KafkaStorageError, match="cannot sync"):
            change.done.result()
    assert not admin.metadata.topics


def test_partitions_are_shown_once_they_are_durable_and_have_logs(admin: AdminBroker, steps: Steps) -> None:
    create_topic(admin, "orders", 2)
    del admin.listener.events[:]
    done = admin.topics.changes.widen("orders", 5)
    steps.step()  # the logs
    assert admin.metadata.topics["orders"].partition_count == 2
    assert not done.done
    steps.step()  # the sync
    assert done.result() == admin.metadata.topics["orders"]
    assert admin.listener.events == [("created", "orders", 2, 5)]
    assert admin.reopen().metadata.topics["orders"].partition_count == 5


def test_changes_of_a_topic_wait_for_a_running_increase_of_partitions_in_order(
    admin: AdminBroker, steps: Steps
) -> None:
    create_topic(admin, "orders", 2)
    changes, seen = admin.topics.changes, []
    wider = [changes.widen("orders", count) for count in (3, 5, 4)]
    configs = changes.commit("orders", lambda: admin.topics.set_configs("orders", {"retention.ms": "1"}))
    gone = changes.delete("orders")
    again = changes.delete("orders")
    for name, deferred in (
        ("3", wider[0]),
        ("5", wider[1]),
        ("4", wider[2]),
        ("configs", configs),
        ("gone", gone.done),
    ):
        deferred.on_done(lambda _, name=name: seen.append(name))  # type: ignore[misc]
    assert admin.metadata.topics["orders"].configs == {}
    steps.all()
    assert seen == ["3", "5", "4", "configs", "gone"]
    assert [deferred.result().partition_count for deferred in wider[:2]] == [3, 5]
    with pytest.raises(InvalidPartitionsError):
        wider[2].result()
    assert gone.done.result().partition_count == 5
    with pytest.raises(UnknownTopicOrPartitionError):
        again.done.result()
    assert admin.controller.image.topic_by_name("orders") is None


def test_a_topic_whose_new_logs_cannot_be_made_stays_as_it_was(admin: AdminBroker, steps: Steps) -> None:
    before = create_topic(admin, "orders", 2)
    admin.set_listener(FullDisk(), steps)
    done = admin.topics.changes.widen("orders", 3)
    steps.all()
    with pytest.raises(KafkaStorageError):
        done.result()
    assert admin.metadata.topics["orders"] == admin.reopen().metadata.topics["orders"] == before


def test_a_topic_whose_new_logs_are_refused_by_the_disk_stays_as_it_was(admin: AdminBroker, steps: Steps) -> None:
    class NoRoom(NotingListener):
        def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
            def make() -> None:
                raise KafkaStorageError("no room")

            return make

    before = create_topic(admin, "orders", 2)
    admin.set_listener(NoRoom(), steps)
    done = admin.topics.changes.widen("orders", 3)
    steps.all()
    with pytest.raises(KafkaStorageError, match="no room"):
        done.result()
    assert admin.metadata.topics["orders"] == before


STEPS_OF = {
    "create": ["first_logs", "topic_created", "finish_create"],
    "widen": ["commit_widening", "topic_created", "finish_create"],
    "delete": ["remove_logs", "topic_deleted", "finish_delete"],
}


@pytest.mark.parametrize(("change", "failing"), [(kind, step) for kind, found in STEPS_OF.items() for step in found])
def test_an_unexpected_error_of_a_step_fails_the_change(
    admin: AdminBroker, steps: Steps, monkeypatch: pytest.MonkeyPatch, change: str, failing: str
) -> None:
    """The client gets an error, and later requests are answered as well."""
    begin: dict[str, Callable[[], Deferred[TopicImage]]] = {
        "create": lambda: admin.topics.changes.create(NewTopic("new")).done,
        "widen": lambda: admin.topics.changes.widen("old", 3),
        "delete": lambda: admin.topics.changes.delete("old").done,
    }
    create_topic(admin, "old", 2)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(admin.listener if hasattr(admin.listener, failing) else TopicManager, failing, fail)
        done = begin[change]()
        steps.all()
    assert done.done
    with pytest.raises(UnknownServerError):
        done.result()
    changes = admin.topics.changes
    for name in ("new", "old"):
        for begin_next in (changes.delete, changes.auto_create):
            with suppress(KafkaError):
                next_done = begin_next(name).done
                steps.all()
                assert next_done.done


def test_configs_are_in_force_at_once_and_answered_when_durable(admin: AdminBroker, steps: Steps) -> None:
    create_topic(admin, "orders")
    changes = [
        admin.topics.changes.commit("orders", lambda: admin.topics.set_configs("orders", {"retention.ms": "1"})),
        admin.topics.changes.commit(None, lambda: None),
    ]
    assert admin.listener.events[-1] == ("configs", "orders", {"retention.ms": "1"})
    assert not any(change.done for change in changes)
    steps.all()
    assert [change.result() for change in changes] == [None, None]


def test_a_refused_change_raises_at_once(admin: AdminBroker, steps: Steps) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.topics.changes.commit("orders", lambda: admin.topics.set_configs("orders", {}))
    assert not steps.waiting


def test_partitions_that_are_only_validated_commit_nothing(admin: AdminBroker, steps: Steps) -> None:
    before = create_topic(admin, "orders", 2)
    assert admin.topics.changes.widen("orders", 3, validate_only=True).result().partition_count == 3
    assert admin.metadata.topics["orders"] == admin.reopen().metadata.topics["orders"] == before


def test_a_failed_sync_fails_configs_and_partitions(
    admin: AdminBroker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(admin, "orders", 2)

    def fail() -> None:
        raise KafkaStorageError("cannot sync")

    monkeypatch.setattr(admin.controller._syncs, "_sync", fail)
    texts = {"retention.ms": "1"}
    done = admin.topics.changes.commit("orders", lambda: admin.topics.set_configs("orders", texts))
    wider = admin.topics.changes.widen("orders", 3)
    steps.all()
    for change in (done, wider):
        with pytest.raises(KafkaStorageError, match="cannot sync"):
            change.result()
    assert admin.metadata.topics["orders"].partition_count == 2


def test_new_partitions_are_new_whatever_became_of_the_first(admin: AdminBroker) -> None:
    """The topic was led by Kafka: its partitions have leader epochs, and maybe another directory than the new logs."""
    image = create_topic(admin, "orders", 1)
    kafka = PartitionChangeRecord(
        partition_id=0, topic_id=image.topic_id, leader=admin.config.node_id, directories=[b"d" * 16]
    )
    admin.controller.commit([VersionedRecord(kafka, 2)])
    again = admin.reopen()
    again.topics.changes.widen("orders", 2).result()
    old, new = again.reopen().metadata.topics["orders"].partitions
    assert (old.leader_epoch, old.directories) == (1, (b"d" * 16,))
    assert (new.leader_epoch, new.partition_epoch, new.directories) == (0, 0, (UNASSIGNED_DIRECTORY,))
