from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.admin_broker import AdminBroker, NotingListener
from tidelog.broker.controller.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    collision_key,
    internal_topic_settings,
    validate_topic_name,
)
from tidelog.broker.metadata.image import TopicImage
from tidelog.protocol.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path)


def test_a_created_topic_is_shown_and_its_logs_are_created(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders", 3, 1, {"retention.ms": "1000"})
    assert admin.metadata.topics == {"orders": image}
    assert admin.metadata.topic_by_id(image.topic_id) is image
    assert (image.partition_count, image.configs, image.is_internal) == (3, {"retention.ms": "1000"}, False)
    assert admin.listener.events == [("created", "orders", 0, 3)]


def test_topics_are_kept_over_a_restart(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders", 3, 1, {"cleanup.policy": "compact"})
    assert admin.reopen().metadata.topics == {"orders": image}


def test_counts_default_to_the_configuration(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"num.partitions": "7"})
    assert create_topic(admin, "orders").partition_count == 7


def test_validate_only_changes_nothing(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders", 2, 1, {}, validate_only=True)
    assert image.partition_count == 2
    assert not admin.metadata.topics
    assert not admin.listener.events
    assert not admin.reopen().metadata.topics


@pytest.mark.parametrize(
    ("partitions", "replicas", "configs", "error"),
    [
        (0, 1, {}, InvalidPartitionsError),
        (-2, 1, {}, InvalidPartitionsError),
        (MAX_PARTITIONS_PER_REQUEST + 1, 1, {}, PolicyViolationError),
        (1, 0, {}, InvalidReplicationFactorError),
        (1, 2, {}, InvalidReplicationFactorError),
        (1, 1, {"no.such.key": "1"}, InvalidConfigError),
        (1, 1, {"retention.ms": "soon"}, InvalidConfigError),
    ],
)
def test_a_topic_with_wrong_partitions_replicas_or_configs_is_refused(
    admin: AdminBroker, partitions: int, replicas: int, configs: dict[str, str], error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        create_topic(admin, "orders", partitions, replicas, configs)
    assert not admin.metadata.topics


def test_an_unknown_config_is_named(admin: AdminBroker) -> None:
    with pytest.raises(InvalidConfigError, match=r"no\.such\.key"):
        create_topic(admin, "orders", configs={"no.such.key": "1"})


def test_a_name_can_be_taken_once(admin: AdminBroker) -> None:
    create_topic(admin, "orders")
    with pytest.raises(TopicAlreadyExistsError):
        create_topic(admin, "orders")


def test_names_that_collide_in_metrics_are_refused(admin: AdminBroker) -> None:
    create_topic(admin, "a.b_c")
    with pytest.raises(InvalidTopicError, match=r"collides with existing topic: a\.b_c"):
        create_topic(admin, "a_b.c")
    delete_topic(admin, "a.b_c")
    create_topic(admin, "a_b.c")


def test_names_that_collide_are_known_after_a_restart(admin: AdminBroker) -> None:
    create_topic(admin, "a.b")
    with pytest.raises(InvalidTopicError):
        create_topic(admin.reopen(), "a_b")


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a/b", "a b", "é", "a\0"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        validate_topic_name(name)


@pytest.mark.parametrize("name", ["t...key.1", "t...tag.a...from.1", "t...key.", "t...key", "a.b...to.5"])
def test_the_spelling_of_a_virtual_topic_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="virtual topic"):
        validate_topic_name(name)


@pytest.mark.parametrize(
    "name", ["a", "a" * 249, "A-b_c.9", "...", "a...b", "...key.1", "t...keys.1", "__consumer_offsets"]
)
def test_valid_names_are_accepted(name: str) -> None:
    validate_topic_name(name)


def test_a_deleted_topic_is_gone_and_its_name_free_at_once(admin: AdminBroker) -> None:
    first = create_topic(admin, "orders", 2)
    assert delete_topic(admin, "orders") == first
    second = create_topic(admin, "orders", 1)
    assert second.topic_id != first.topic_id
    assert admin.metadata.topic_by_id(first.topic_id) is None
    assert [event[0] for event in admin.listener.events] == ["created", "deleted", "created"]
    assert admin.reopen().metadata.topics == {"orders": second}


def test_deleting_a_missing_topic_is_an_error(admin: AdminBroker) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        delete_topic(admin, "orders")


def test_deletion_can_be_disabled(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"delete.topic.enable": "false"})
    create_topic(admin, "orders")
    with pytest.raises(TopicDeletionDisabledError):
        delete_topic(admin, "orders")


def test_partitions_are_added(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders", 2)
    wider = admin.topics.changes.widen("orders", 5).result()
    assert wider == image._replace(partitions=image.partitions[:1] * 5)
    assert admin.listener.events[-1] == ("created", "orders", 2, 5)
    assert admin.reopen().metadata.topics == {"orders": wider}


def test_adding_partitions_can_be_only_validated(admin: AdminBroker) -> None:
    create_topic(admin, "orders", 2)
    assert admin.topics.changes.widen("orders", 5, validate_only=True).result().partition_count == 5
    assert admin.metadata.topics["orders"].partition_count == 2


@pytest.mark.parametrize(
    ("name", "count", "error"),
    [
        ("orders", 2, InvalidPartitionsError),
        ("orders", 1, InvalidPartitionsError),
        ("orders", -1, InvalidPartitionsError),
        ("orders", MAX_PARTITIONS_PER_REQUEST + 3, PolicyViolationError),
        ("other", 5, UnknownTopicOrPartitionError),
    ],
)
def test_wrong_numbers_of_partitions_are_refused(
    admin: AdminBroker, name: str, count: int, error: type[KafkaError]
) -> None:
    create_topic(admin, "orders", 2)
    with pytest.raises(error):
        admin.topics.changes.widen(name, count)


def test_internal_topics_get_their_own_settings(admin: AdminBroker) -> None:
    offsets = admin.topics.changes.auto_create("__consumer_offsets").done.result()
    assert (offsets.partition_count, offsets.is_internal) == (50, True)
    assert offsets.configs["cleanup.policy"] == "compact"
    assert admin.topics.ensure_internal_topic("__consumer_offsets") is offsets
    transactions = admin.topics.changes.auto_create("__transaction_state").done.result()
    assert transactions.configs["min.insync.replicas"] == "1"
    assert admin.reopen().metadata.topics["__transaction_state"] == transactions


def test_there_is_no_other_internal_topic(admin: AdminBroker) -> None:
    with pytest.raises(InvalidRequestError):
        internal_topic_settings(admin.config, "__cluster_metadata")


def test_auto_creation_uses_the_defaults(admin: AdminBroker) -> None:
    assert admin.topics.changes.auto_create("orders").done.result().partition_count == 1


def test_replaced_configs_of_a_topic_are_passed_to_the_listener(admin: AdminBroker) -> None:
    create_topic(admin, "orders", configs={"retention.ms": "1"})
    image = admin.topics.set_configs("orders", {"segment.bytes": "100"})
    assert image.configs == {"segment.bytes": "100"}
    assert admin.listener.events[-1] == ("configs", "orders", {"segment.bytes": "100"})
    assert admin.reopen().metadata.topics["orders"] == image


def test_configs_of_an_unknown_topic_cannot_be_set(admin: AdminBroker) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.topics.set_configs("orders", {})


def test_changed_defaults_are_passed_to_the_listener_for_every_topic(admin: AdminBroker) -> None:
    create_topic(admin, "a")
    create_topic(admin, "b")
    del admin.listener.events[:]
    admin.topics.broker_defaults_changed()
    assert [event[1] for event in admin.listener.events] == ["a", "b"]


def test_a_topic_and_its_partitions_and_configs_are_records(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders", 3, 1, {"retention.ms": "1000"})
    metadata = admin.controller.image
    assert metadata.topic_by_name("orders") == (image.name, image.topic_id, image.partitions)
    assert metadata.configs == {(2, "orders"): {"retention.ms": "1000"}}
    again = admin.reopen()
    assert again.metadata.topics["orders"] == image
    assert again.controller.image.topics == metadata.topics


def test_dots_and_underscores_collide_and_hyphens_do_not() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("a-b")


class FullDisk(NotingListener):
    """A listener that can create no log, and remove none."""

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        raise KafkaStorageError("no space left")

    def remove_logs(self, image: TopicImage) -> Callable[[], None]:
        raise KafkaStorageError("no space left")


def test_a_topic_whose_logs_cannot_be_created_is_removed_again(admin: AdminBroker) -> None:
    admin.set_listener(FullDisk())
    with pytest.raises(KafkaStorageError):
        create_topic(admin, "a.b")
    assert not admin.metadata.topics
    again = admin.reopen()
    create_topic(again, "a_b")
    assert list(again.metadata.topics) == ["a_b"]


def test_partitions_whose_logs_cannot_be_created_are_removed_again(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders", 2)
    admin.set_listener(FullDisk())
    with pytest.raises(KafkaStorageError):
        admin.topics.changes.widen("orders", 5).result()
    assert admin.metadata.topics == {"orders": image}
    assert admin.reopen().metadata.topics == {"orders": image}
