"""Publishers of the metadata: a committed record takes effect whichever part committed it, in one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker
from tidelog.broker.config.description import ResourceType
from tidelog.broker.config.keys.authorizer import AUTHORIZER_CLASS, STANDARD_AUTHORIZER
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE
from tidelog.broker.publishers import publishers_of
from tidelog.protocol.errors import TopicAlreadyExistsError
from tidelog.protocol.metadata_records import records

GROUP, NODE = 32, 4


def config(kind: int, resource: str, key: str, value: str | None) -> VersionedRecord:
    return VersionedRecord(records.ConfigRecord(resource_type=kind, resource_name=resource, name=key, value=value))


def test_acls_come_first_and_topics_last(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {AUTHORIZER_CLASS: STANDARD_AUTHORIZER})
    told = [getattr(publisher, "func", publisher) for publisher in publishers_of(admin.broker)]
    assert [publisher.__qualname__ for publisher in told] == [
        "Authorizer.publish",
        "publish_features",
        "ConfigManager.publish",
        "publish_quotas",
        "TopicManager.publish",
    ]


def test_records_alone_take_effect(tmp_path: Path) -> None:
    """No service of this broker asked for them, as in a member of a cluster."""
    admin = AdminBroker(tmp_path)
    orders = create_topic(admin, "orders", 1)
    admin.controller.commit(
        [
            VersionedRecord(records.FeatureLevelRecord(name="metadata.version", feature_level=26)),
            config(TOPIC_RESOURCE, "orders", "retention.ms", "5"),
            config(NODE, "", "log.retention.ms", "7"),
            config(GROUP, "readers", "consumer.session.timeout.ms", "46000"),
        ]
    )
    assert admin.metadata.features["metadata.version"] == 26
    assert admin.metadata.topics["orders"].configs == {"retention.ms": "5"}
    assert admin.config.values["log.retention.ms"] == 7
    assert admin.configs.resource_texts(ResourceType.GROUP, "readers") == {"consumer.session.timeout.ms": "46000"}
    admin.controller.commit([VersionedRecord(records.RemoveTopicRecord(topic_id=orders.topic_id))])
    assert not admin.metadata.topics
    with pytest.raises(TopicAlreadyExistsError):  # its logs are there
        create_topic(admin, "orders", 1)


def test_a_topics_config_that_this_version_does_not_know_does_no_harm(tmp_path: Path) -> None:
    """A newer Kafka may have set it; it stays in the metadata."""
    admin = AdminBroker(tmp_path)
    create_topic(admin, "orders", 1, configs={"retention.ms": "5"})
    unknown = config(TOPIC_RESOURCE, "orders", "future.key", "x")
    admin.controller.commit([unknown])
    for value in (5, 6):
        shown = admin.metadata.topics["orders"]
        assert admin.topic_configs.log_config(shown).retention_ms == value
        admin.topics.set_configs("orders", {"retention.ms": "6"})
        assert admin.controller.image.configs[TOPIC_RESOURCE, "orders"]["future.key"] == "x"
        admin = admin.reopen()


def test_a_dynamic_value_that_is_not_accepted_leaves_the_last_one(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path)
    admin.controller.commit([config(NODE, "", "log.retention.ms", "7")])
    admin.controller.commit([config(NODE, "", "log.retention.ms", "soon")])
    assert admin.config.values["log.retention.ms"] == 7
