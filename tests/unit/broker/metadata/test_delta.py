"""Metadata records: each changes the image as in Kafka's MetadataDelta, and the records of an image rebuild it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import METADATA_VERSION, records_of_image
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, TOPIC_RESOURCE, MetadataImage, PartitionState
from tidelog.broker.metadata.replay import SnapshotId
from tidelog.broker.metadata.snapshot import build_snapshot, read_snapshot
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.metadata_records import records
from tidelog.protocol.metadata_records.frames import decode_metadata_record, encode_metadata_record
from tidelog.protocol.record.record_batch import RecordBatch
from tidelog.protocol.schema.fields import Message

ORDERS, BILLS = bytes([1] * 16), bytes([2] * 16)
NEWEST_LEVEL = 30


def after(*given_records: Message, image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in given_records:
        delta.replay(record)
    return delta.build(offset=image.offset + len(given_records), epoch=1, timestamp_ms=1000)


def topic(name: str, topic_id: bytes, partitions: int = 1) -> list[Message]:
    return [
        records.TopicRecord(name=name, topic_id=topic_id),
        *(
            records.PartitionRecord(
                partition_id=number, topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0,
                partition_epoch=0,
            )
            for number in range(partitions)
        ),
    ]  # fmt: skip


def test_topic_has_its_partitions_whatever_order_they_came_in() -> None:
    record, first, second = topic("orders", ORDERS, partitions=2)
    image = after(record, second, first)
    orders = image.topic_by_name("orders")
    assert orders is not None
    assert orders.partitions == (PartitionState((1, 2), (1, 2), 1),) * 2


def test_partition_change_keeps_fields_that_it_does_not_name() -> None:
    image = after(*topic("orders", ORDERS), records.PartitionChangeRecord(partition_id=0, topic_id=ORDERS, isr=[1]))
    assert image.topics[ORDERS].partitions[0] == PartitionState((1, 2), (1,), 1, leader_epoch=0, partition_epoch=1)


def test_named_leader_begins_an_epoch_even_if_it_is_the_same() -> None:
    image = after(*topic("orders", ORDERS), records.PartitionChangeRecord(partition_id=0, topic_id=ORDERS, leader=1))
    assert image.topics[ORDERS].partitions[0][2:5] == (1, 1, 1)


def test_deleted_topic_takes_its_configs_along_and_its_name_can_be_used_at_once() -> None:
    config = records.ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="orders", name="a", value="b")
    image = after(*topic("orders", ORDERS), config)
    image = after(records.RemoveTopicRecord(topic_id=ORDERS), *topic("orders", BILLS), image=image)
    assert image.topic_ids == {"orders": BILLS}
    assert image.configs == {}


def test_image_shares_unchanged_parts() -> None:
    old = after(*topic("orders", ORDERS))
    new = after(records.FeatureLevelRecord(name="share.version", feature_level=1), image=old)
    assert new.topics is old.topics
    assert old.features == {}


def test_clear_elr_of_one_topic_and_of_all() -> None:
    def elr_record(topic_id: bytes) -> Message:
        return records.PartitionChangeRecord(partition_id=0, topic_id=topic_id, eligible_leader_replicas=[2])

    image = after(*topic("orders", ORDERS), *topic("bills", BILLS), elr_record(ORDERS), elr_record(BILLS))
    one = after(records.ClearElrRecord(topic_name="orders"), image=image)
    assert [one.topics[key].partitions[0].elr for key in (ORDERS, BILLS)] == [(), (2,)]
    none = after(records.ClearElrRecord(), image=image)
    assert [none.topics[key].partitions[0].elr for key in (ORDERS, BILLS)] == [(), ()]


def test_clear_elr_raises_the_epochs_of_the_partitions_that_had_one() -> None:
    """Kafka's controller counts it as a change: it would refuse ISRs that a leader proposes with the old epoch."""
    image = after(
        *topic("orders", ORDERS, partitions=2),
        records.PartitionChangeRecord(partition_id=0, topic_id=ORDERS, last_known_elr=[2]),
    )
    cleared = after(records.ClearElrRecord(topic_name="orders"), image=image)
    before, now = ([state.partition_epoch for state in one.topics[ORDERS].partitions] for one in (image, cleared))
    assert now == [before[0] + 1, before[1]]


@pytest.mark.parametrize(
    "record",
    [
        records.PartitionChangeRecord(partition_id=0, topic_id=ORDERS),
        records.PartitionRecord(partition_id=0, topic_id=ORDERS),
        records.RemoveTopicRecord(topic_id=ORDERS),
        records.ClearElrRecord(topic_name="orders"),
        records.FenceBrokerRecord(id=1, epoch=1),
        records.UnfenceBrokerRecord(id=1, epoch=1),
        records.UnregisterBrokerRecord(broker_id=1, broker_epoch=1),
        records.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1),
    ],
    ids=lambda record: type(record).__name__,
)
def test_record_about_a_missing_topic_or_partition_is_an_error(record: Message) -> None:
    with pytest.raises(CorruptMessageError):
        after(record)


@pytest.mark.parametrize(("name", "topic_id"), [("orders", BILLS), ("bills", ORDERS)])
def test_second_topic_of_a_name_or_id_is_an_error(name: str, topic_id: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="exists already"):
        after(*topic("orders", ORDERS), *topic(name, topic_id))


def test_partitions_with_a_hole_are_an_error() -> None:
    record, _, third = topic("orders", ORDERS, partitions=2)
    with pytest.raises(CorruptMessageError, match="orders has no partition 0"):
        after(record, third)


IDS = st.sampled_from([ORDERS, BILLS])
BROKERS = st.lists(st.integers(0, 3), max_size=3)
NULLABLE_BROKERS = st.none() | BROKERS
DIRECTORIES = st.lists(st.binary(min_size=16, max_size=16), max_size=2)
NAMES = st.sampled_from(["a", "b", ""])


def built(cls: Any, **fields: Any) -> st.SearchStrategy[Message]:
    return st.builds(cls, **fields)


ANY_RECORD: st.SearchStrategy[Message] = st.one_of(
    built(records.TopicRecord, name=st.sampled_from(["orders", "bills"]), topic_id=IDS),
    built(
        records.PartitionRecord, partition_id=st.integers(0, 1), topic_id=IDS, replicas=BROKERS, isr=BROKERS,
        removing_replicas=BROKERS, adding_replicas=BROKERS, leader=st.integers(-1, 3),
        leader_recovery_state=st.integers(0, 1), leader_epoch=st.integers(0, 5), partition_epoch=st.integers(0, 5),
        directories=DIRECTORIES, eligible_leader_replicas=NULLABLE_BROKERS, last_known_elr=NULLABLE_BROKERS,
    ),
    built(
        records.PartitionChangeRecord, partition_id=st.integers(0, 1), topic_id=IDS, isr=NULLABLE_BROKERS,
        leader=st.integers(-2, 3), replicas=NULLABLE_BROKERS, leader_recovery_state=st.integers(-1, 1),
        directories=st.none() | DIRECTORIES, eligible_leader_replicas=NULLABLE_BROKERS,
    ),
    built(records.RemoveTopicRecord, topic_id=IDS),
    built(
        records.ConfigRecord, resource_type=st.sampled_from([2, 4, 16, 32]), resource_name=NAMES, name=NAMES,
        value=st.none() | st.text(max_size=3),
    ),
    built(
        records.ClientQuotaRecord,
        entity=st.lists(
            built(records.QuotaEntityData, entity_type=st.just("user"), entity_name=st.none() | NAMES), min_size=1,
            max_size=1,
        ),
        key=NAMES, value=st.floats(0, 9), remove=st.booleans(),
    ),
    built(records.FeatureLevelRecord, name=NAMES, feature_level=st.integers(0, 3)),
    built(records.ProducerIdsRecord, broker_id=st.just(1), next_producer_id=st.integers(0, 2**62)),
    built(
        records.RegisterBrokerRecord, broker_id=st.integers(0, 1), broker_epoch=st.integers(0, 2),
        rack=st.none() | NAMES, fenced=st.booleans(), log_dirs=DIRECTORIES, cordoned_log_dirs=st.none() | DIRECTORIES,
        end_points=st.lists(built(records.RegisteredEndpoint, name=NAMES, port=st.integers(0, 65535)), max_size=1),
        features=st.lists(built(records.RegisteredFeature, name=NAMES), max_size=1),
    ),
    built(records.FenceBrokerRecord, id=st.integers(0, 1), epoch=st.integers(0, 2)),
    built(records.UnfenceBrokerRecord, id=st.integers(0, 1), epoch=st.integers(0, 2)),
    built(records.RegisterControllerRecord, controller_id=st.integers(0, 1)),
    built(
        records.UserScramCredentialRecord, name=NAMES, mechanism=st.integers(1, 2), salt=st.binary(max_size=2),
        iterations=st.integers(1, 9),
    ),
    built(records.RemoveUserScramCredentialRecord, name=NAMES, mechanism=st.integers(1, 2)),
    built(records.AccessControlEntryRecord, id=IDS, principal=NAMES, operation=st.integers(0, 4)),
    built(records.RemoveAccessControlEntryRecord, id=IDS),
    built(records.DelegationTokenRecord, token_id=NAMES, owner=NAMES, renewers=st.lists(NAMES, max_size=2)),
    built(records.RemoveDelegationTokenRecord, token_id=NAMES),
    built(records.NoOpRecord),
)  # fmt: skip


def replay_what_fits(given_records: list[Message]) -> MetadataImage:
    """Replay random records; those about missing topics or partitions change nothing. The last one sets the newest
    level."""
    image = EMPTY_IMAGE
    for record in [*given_records, records.FeatureLevelRecord(name=METADATA_VERSION, feature_level=NEWEST_LEVEL)]:
        try:
            image = after(record, image=image)
        except CorruptMessageError:
            continue
    return image


@given(st.lists(ANY_RECORD, max_size=30))
def test_replay_of_an_images_records_makes_it_again(given_records: list[Message]) -> None:
    image = replay_what_fits(given_records)
    batches = [RecordBatch(batch) for batch in build_snapshot(image, now_ms=5000)]
    again = read_snapshot(batches, SnapshotId(image.offset + 1, image.epoch)).image
    assert again == image


@given(st.lists(ANY_RECORD, max_size=30))
def test_one_delta_or_one_for_each_record_make_the_same_image(given_records: list[Message]) -> None:
    image = replay_what_fits(given_records)
    all_records = [record for record, _ in records_of_image(image)]
    at_once = after(*all_records)
    assert at_once[3:] == image[3:]


@given(ANY_RECORD)
def test_framed_record_is_read_again(record: Message) -> None:
    version = record.VERSIONS.highest
    assert decode_metadata_record(encode_metadata_record(record, version)).encode(version) == record.encode(version)
