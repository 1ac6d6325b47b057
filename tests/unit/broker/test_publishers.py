"""Publishers, the parts of a broker that apply committed metadata records: their order, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import AdminBroker
from tidelog.broker.broker import Broker
from tidelog.broker.config.keys.authorizer import AUTHORIZER_CLASS, STANDARD_AUTHORIZER
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.controller.metadata_controller import Publisher
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.delta import _REPLAY, MetadataDelta
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import TOPIC_RESOURCE, MetadataImage
from tidelog.broker.publishers import publishers_of
from tidelog.protocol.errors import TopicAlreadyExistsError
from tidelog.protocol.metadata_records import records
from tidelog.protocol.schema.fields import Message

GROUP_RESOURCE, NODE_RESOURCE = 32, 4
"""Kafka's numbers of config resources: a group, a broker."""
TOPIC_ID, ACL_ID = b"t" * 16, b"a" * 16
NAMES = ["ACLs", "features", "configs", "directories", "quotas", "topics"]
"""All publishers of a broker in the order of their calls."""
ONE_OF_EACH_KIND: list[Message] = [
    records.TopicRecord(name="orders", topic_id=TOPIC_ID),
    records.PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1),
    records.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1),
    records.ClearElrRecord(topic_name="orders"),
    records.ConfigRecord(
        resource_type=GROUP_RESOURCE, resource_name="readers", name="consumer.session.timeout.ms", value="46000"
    ),
    records.ClientQuotaRecord(
        entity=[records.QuotaEntityData(entity_type="user", entity_name=None)], key="producer_byte_rate", value=5e6
    ),
    records.FeatureLevelRecord(name="metadata.version", feature_level=26),
    records.ProducerIdsRecord(broker_id=1, next_producer_id=9000),
    records.RegisterBrokerRecord(broker_id=9, broker_epoch=4, fenced=True),
    records.UnfenceBrokerRecord(id=9, epoch=4),
    records.FenceBrokerRecord(id=9, epoch=4),
    records.BrokerRegistrationChangeRecord(broker_id=9, broker_epoch=4, fenced=-1),
    records.UnregisterBrokerRecord(broker_id=9, broker_epoch=4),
    records.RegisterControllerRecord(controller_id=9),
    records.UserScramCredentialRecord(name="ann", mechanism=1, iterations=4096),
    records.RemoveUserScramCredentialRecord(name="ann", mechanism=1),
    records.AccessControlEntryRecord(
        id=ACL_ID, resource_type=2, resource_name="orders", pattern_type=3, principal="User:ann", host="*",
        operation=3, permission_type=3,
    ),
    records.RemoveAccessControlEntryRecord(id=ACL_ID),
    records.DelegationTokenRecord(token_id="token", owner="User:ann"),
    records.RemoveDelegationTokenRecord(token_id="token"),
    records.NoOpRecord(),
    records.ZkMigrationStateRecord(),
    records.RemoveTopicRecord(topic_id=TOPIC_ID),
]  # fmt: skip


def config(kind: int, resource: str, key: str, value: str | None) -> VersionedRecord:
    return VersionedRecord(records.ConfigRecord(resource_type=kind, resource_name=resource, name=key, value=value))


def test_acls_come_first_and_topics_last(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {AUTHORIZER_CLASS: STANDARD_AUTHORIZER})
    assert [publisher.name for publisher in publishers_of(admin.broker)] == NAMES


def test_committed_records_take_effect_without_a_request(tmp_path: Path) -> None:
    """A member of a cluster gets most of its records like this, from the controllers."""
    admin = AdminBroker(tmp_path)
    orders = create_topic(admin, "orders", 1)
    admin.controller.commit(
        [
            VersionedRecord(records.FeatureLevelRecord(name="metadata.version", feature_level=26)),
            config(TOPIC_RESOURCE, "orders", "retention.ms", "5"),
            config(NODE_RESOURCE, "", "log.retention.ms", "7"),
            config(GROUP_RESOURCE, "readers", "consumer.session.timeout.ms", "46000"),
        ]
    )
    assert admin.metadata.features["metadata.version"] == 26
    assert admin.metadata.topics["orders"].configs == {"retention.ms": "5"}
    assert admin.config.values["log.retention.ms"] == 7
    assert admin.configs.resource_texts(ResourceType.GROUP, "readers") == {"consumer.session.timeout.ms": "46000"}
    admin.controller.commit([VersionedRecord(records.RemoveTopicRecord(topic_id=orders.topic_id))])
    assert not admin.metadata.topics
    with pytest.raises(TopicAlreadyExistsError):  # the directories of its logs are there
        create_topic(admin, "orders", 1)


def test_a_topics_unknown_config_stays_in_the_metadata_and_the_others_apply(tmp_path: Path) -> None:
    """A newer release may have set it."""
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


def test_an_invalid_dynamic_value_leaves_the_last_one_in_effect(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path)
    admin.controller.commit([config(NODE_RESOURCE, "", "log.retention.ms", "7")])
    admin.controller.commit([config(NODE_RESOURCE, "", "log.retention.ms", "soon")])
    assert admin.config.values["log.retention.ms"] == 7
    admin.controller.commit([config(NODE_RESOURCE, "", "log.segment.bytes", "2000000")])
    assert (admin.config.values["log.retention.ms"], admin.config.values["log.segment.bytes"]) == (7, 2_000_000)


class Watched:
    """The publishers of a broker, of which ``broken`` raises an error; ``published`` notes the calls of the others."""

    def __init__(self, broker: Broker, broken: str) -> None:
        self.published: list[str] = []
        self.publishers = [self._watched(one, is_broken=one.name == broken) for one in publishers_of(broker)]

    def _watched(self, publisher: Publisher, *, is_broken: bool) -> Publisher:
        def publish(delta: MetadataDelta, image: MetadataImage) -> None:
            if is_broken:
                raise RuntimeError(publisher.name)
            publisher.publish(delta, image)
            self.published.append(publisher.name)

        return Publisher(publisher.name, publish)

    def take_published(self) -> list[str]:
        """Return the names in ``published``, and empty it."""
        published, self.published = self.published, []
        return published


def test_the_records_of_these_tests_are_of_all_kinds() -> None:
    assert {type(record) for record in ONE_OF_EACH_KIND} == set(_REPLAY)


@pytest.mark.parametrize("broken", NAMES)
def test_after_an_error_of_a_publisher_the_others_are_called(tmp_path: Path, broken: str) -> None:
    """A lone node: the commit does not fail either."""
    admin = AdminBroker(tmp_path, {AUTHORIZER_CLASS: STANDARD_AUTHORIZER})
    watched = Watched(admin.broker, broken)
    controller = admin.controller
    controller.publishers._listed[:] = watched.publishers
    for number, record in enumerate(ONE_OF_EACH_KIND, start=1):
        end = controller.end_offset
        controller.commit([VersionedRecord(record)])
        assert watched.take_published() == [name for name in NAMES if name != broken], record
        assert (controller.publishers.errors_total, controller.image.offset) == (number, end)


@pytest.mark.parametrize("broken", NAMES)
def test_after_an_error_of_a_publisher_of_a_member_the_others_are_called(tmp_path: Path, broken: str) -> None:
    admin = AdminBroker(tmp_path, {AUTHORIZER_CLASS: STANDARD_AUTHORIZER})
    watched = Watched(admin.broker, broken)
    controller = RemoteController(admin.controller.image, 1)
    for publisher in watched.publishers:
        controller.publishers.subscribe(publisher)
    for number, record in enumerate(ONE_OF_EACH_KIND, start=1):
        delta = MetadataDelta(controller.image)
        delta.replay(record)
        image = delta.build(100 + number, 1, 0)
        controller.publish(delta, image)
        assert watched.take_published() == [name for name in NAMES if name != broken], record
        assert (controller.publishers.errors_total, controller.image) == (number, image)
