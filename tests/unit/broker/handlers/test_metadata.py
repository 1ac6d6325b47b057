from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin_broker import CLUSTER_ID, AdminBroker, context_of
from tests.unit.broker.handlers.drive import drive
from tests.unit.broker.stepping import response_of
from tidelog.broker.security.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from tidelog.protocol.errors import (
    InvalidRequestError,
    InvalidTopicError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.types import ZERO_UUID

ALL_VERSIONS = range(14)


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path, {"num.partitions": "2"})


def ask(admin: AdminBroker, version: int, *names: str, allow: bool = True) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=allow if version >= 4 else True)
    return drive(admin.broker, request, MetadataResponse, version)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_topic_is_described_by_name(admin: AdminBroker, version: int) -> None:
    image = create_topic(admin, "orders", 3)
    response = ask(admin, version, "orders")
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (0, "orders")
    assert topic.topic_id == (image.topic_id if version >= 10 else ZERO_UUID)
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert partition.leader_epoch == (0 if version >= 7 else -1)
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, "10.0.0.5", 9092)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_id == (CLUSTER_ID if version >= 2 else None)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_null_or_in_version_0_an_empty_list_asks_for_all_topics(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "a")
    admin.topics.ensure_internal_topic("__consumer_offsets")
    request = MetadataRequest(topics=[] if version == 0 else None)
    topics = drive(admin.broker, request, MetadataResponse, version).topics
    assert [topic.name for topic in topics] == ["a", "__consumer_offsets"]
    assert [topic.is_internal for topic in topics] == [False, version >= 1]


@pytest.mark.parametrize("version", ALL_VERSIONS[1:])
def test_an_empty_list_asks_for_no_topic(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "a")
    response = drive(admin.broker, MetadataRequest(topics=[]), MetadataResponse, version)
    assert response.topics == []
    assert response.brokers


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_an_unknown_topic_is_created(admin: AdminBroker, version: int) -> None:
    (topic,) = ask(admin, version, "orders").topics
    assert (topic.error_code, len(topic.partitions)) == (0, 2)
    assert "orders" in admin.metadata.topics


def test_a_created_topic_has_one_audit_line(admin: AdminBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidelog.audit")
    for names in (("orders", "orders", "no/such"), ("orders", "__consumer_offsets")):
        ask(admin, 12, *names)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "tidelog.audit"]
    assert [(line["event"], line["name"], line["is_automatic"]) for line in lines] == [
        ("topic created", "orders", True),
        ("topic created", "__consumer_offsets", True),
    ]
    assert {line["user"] for line in lines} == {"User:ANONYMOUS"}


@pytest.mark.parametrize("version", ALL_VERSIONS[4:])
def test_a_client_can_forbid_creation(admin: AdminBroker, version: int) -> None:
    (topic,) = ask(admin, version, "orders", allow=False).topics
    assert (topic.error_code, topic.name) == (UnknownTopicOrPartitionError.code, "orders")
    assert not admin.metadata.topics


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_the_broker_can_forbid_creation(tmp_path: Path, version: int) -> None:
    admin = AdminBroker(tmp_path, {"auto.create.topics.enable": "false"})
    (topic,) = ask(admin, version, "orders").topics
    assert topic.error_code == UnknownTopicOrPartitionError.code


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_bad_name_is_reported(admin: AdminBroker, version: int) -> None:
    (topic,) = ask(admin, version, "no/such").topics
    assert topic.error_code == InvalidTopicError.code


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(admin: AdminBroker, version: int) -> None:
    image = create_topic(admin, "orders")
    asked = [
        MetadataRequestTopic(topic_id=image.topic_id, name=None),
        MetadataRequestTopic(topic_id=b"x" * 16, name=None),
    ]
    known, unknown = drive(admin.broker, MetadataRequest(topics=asked), MetadataResponse, version).topics
    assert (known.name, known.topic_id, known.error_code) == ("orders", image.topic_id, 0)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, b"x" * 16, UnknownTopicIdError.code)


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("topic", [MetadataRequestTopic(name=None), MetadataRequestTopic(name="a", topic_id=b"x" * 16)])
def test_topics_by_id_are_refused_before_version_12(
    admin: AdminBroker, version: int, topic: MetadataRequestTopic
) -> None:
    (answer,) = drive(admin.broker, MetadataRequest(topics=[topic]), MetadataResponse, version).topics
    assert answer.error_code == InvalidRequestError.code


@pytest.mark.parametrize("version", ALL_VERSIONS[8:])
def test_authorized_operations_are_included_on_request(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "orders")
    for asked in (False, True):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name="orders")],
            include_topic_authorized_operations=asked,
            include_cluster_authorized_operations=asked if version <= 10 else False,
        )
        response = drive(admin.broker, request, MetadataResponse, version)
        assert response.topics[0].topic_authorized_operations == (TOPIC_OPERATIONS if asked else NOT_REQUESTED)
        expected = CLUSTER_OPERATIONS if asked and version <= 10 else NOT_REQUESTED
        assert response.cluster_authorized_operations == expected


def test_responses_have_the_advertised_address_of_the_clients_listener(tmp_path: Path) -> None:
    texts = {
        "listeners": "IN://:1,OUT://:2",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
        "advertised.listeners": "OUT://kafka.example.com:443",
        "broker.rack": "r1",
    }
    admin = AdminBroker(tmp_path, texts)
    for listener, host, port in (("OUT", "kafka.example.com", 443), ("IN", "10.0.0.5", 9092)):
        context = context_of(1, listener_name=listener)
        (node,) = drive(admin.broker, MetadataRequest(topics=[]), MetadataResponse, 1, context).brokers
        assert (node.host, node.port, node.rack) == (host, port, "r1")


def test_without_an_advertised_host_responses_have_the_address_that_the_client_reached(tmp_path: Path) -> None:
    admin = AdminBroker(tmp_path, {"advertised.listeners": "PLAINTEXT://:443"})
    (node,) = drive(admin.broker, MetadataRequest(topics=[]), MetadataResponse, 1, context_of(1)).brokers
    assert (node.host, node.port) == ("10.0.0.5", 443)


def test_an_error_of_the_whole_request_is_in_each_topic() -> None:
    from tidelog.broker.handlers import metadata

    request = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
    response = response_of(metadata.error_response(request, UnknownServerError()))
    assert response.error_code == -1
    assert response.topics[0].error_code == -1


def test_a_request_creates_so_many_topics_and_the_next_one_the_rest(
    admin: AdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog.broker.handlers import metadata

    monkeypatch.setattr(metadata, "MAX_AUTO_CREATED", 3)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=f"t{number}") for number in range(5)], allow_auto_topic_creation=True
    )
    unknown = UnknownTopicOrPartitionError.code
    first = drive(admin.broker, request, MetadataResponse, 9)
    assert [topic.error_code for topic in first.topics] == [0, 0, 0, unknown, unknown]
    again = drive(admin.broker, request, MetadataResponse, 9)
    assert [topic.error_code for topic in again.topics] == [0] * 5
