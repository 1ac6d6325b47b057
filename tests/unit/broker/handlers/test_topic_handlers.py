from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.admin_broker import AdminBroker, context_of
from tests.unit.broker.handlers.drive import drive
from tests.unit.broker.stepping import response_of
from tidelog.broker.handlers import create_partitions, create_topics, delete_topics
from tidelog.protocol.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.protocol.types import ZERO_UUID


@pytest.fixture
def admin(tmp_path: Path) -> AdminBroker:
    return AdminBroker(tmp_path, {"num.partitions": "2"})


def topic(name: str = "orders", partitions: int = 3, replicas: int = 1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def topic_with_assignment(*replicas: tuple[int, list[int]], partitions: int = -1) -> CreatableTopic:
    made = topic(partitions=partitions, replicas=-1)
    made.assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in replicas]
    return made


def create(admin: AdminBroker, *topics: CreatableTopic, version: int = 7) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics))
    return drive(admin.broker, request, CreateTopicsResponse, version).topics


@pytest.mark.parametrize("version", range(8))
def test_a_topic_is_created(admin: AdminBroker, version: int) -> None:
    (result,) = create(admin, topic(retention_ms="5"), version=version)
    image = admin.metadata.topics["orders"]
    assert (image.partition_count, image.configs) == (3, {"retention.ms": "5"})
    assert (result.name, result.error_code, result.error_message or None) == ("orders", 0, None)
    assert result.topic_id == (image.topic_id if version >= 7 else ZERO_UUID)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.configs is not None
        values = {config.name: (config.value, config.config_source) for config in result.configs}
        assert values["retention.ms"] == ("5", 1)
        assert values["segment.bytes"] == ("1073741824", 5)


def test_each_topic_of_a_request_has_its_own_configs_in_the_answer(admin: AdminBroker) -> None:
    wanted: list[dict[str, Any]] = [
        {},
        {"retention_ms": "5"},
        {},
        {"retention_ms": "6"},
        {"retention_ms": "5"},
        {"segment_ms": "7000"},
    ]
    results = create(admin, *(topic(f"t{number}", **texts) for number, texts in enumerate(wanted)), version=7)
    for number, result in enumerate(results):
        (alone,) = create(admin, topic(f"alone{number}", **wanted[number]), version=7)
        assert (result.name, result.configs) == (f"t{number}", alone.configs)
        own = {config.name: config.value for config in alone.configs or () if config.config_source == 1}
        assert own == {key.replace("_", "."): value for key, value in wanted[number].items()}


def test_defaults_are_taken_for_minus_one(admin: AdminBroker) -> None:
    (result,) = create(admin, topic(partitions=-1, replicas=-1))
    assert (result.num_partitions, result.replication_factor) == (2, 1)


def test_validate_only_creates_nothing(admin: AdminBroker) -> None:
    request = CreateTopicsRequest(topics=[topic()], validate_only=True)
    (result,) = drive(admin.broker, request, CreateTopicsResponse, 7).topics
    assert (result.error_code, result.topic_id, result.num_partitions) == (0, ZERO_UUID, 3)
    assert not admin.metadata.topics


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (topic(name="no/such"), InvalidTopicError),
        (topic(partitions=0), InvalidPartitionsError),
        (topic(replicas=3), InvalidReplicationFactorError),
        (topic(what="1"), InvalidConfigError),
        (topic(retention_ms=None), InvalidConfigError),
        (topic_with_assignment((0, [1]), partitions=1), InvalidRequestError),
        (topic_with_assignment((0, [1]), (0, [1])), InvalidReplicaAssignmentError),
        (topic_with_assignment((0, [1]), (2, [1])), InvalidReplicaAssignmentError),
        (topic_with_assignment((0, [])), InvalidReplicaAssignmentError),
        (topic_with_assignment((0, [2])), InvalidReplicaAssignmentError),
        (topic_with_assignment((0, [1, 1])), InvalidReplicaAssignmentError),
    ],
)
@pytest.mark.parametrize("version", [0, 4, 5, 7])
def test_one_that_fails_does_not_hold_up_the_others(
    admin: AdminBroker, bad: CreatableTopic, error: type[KafkaError], version: int
) -> None:
    failed, made = create(admin, bad, topic(name="other"), version=version)
    assert failed.error_code == error.code
    assert made.error_code == 0
    assert list(admin.metadata.topics) == ["other"]
    if version >= 1:
        assert failed.error_message


def test_a_manual_assignment_to_this_broker_is_accepted(admin: AdminBroker) -> None:
    (result,) = create(admin, topic_with_assignment((1, [1]), (0, [1])))
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_a_name_given_twice_is_created_by_none(admin: AdminBroker) -> None:
    results = create(admin, topic(), topic(), topic(name="other"))
    assert [(result.name, result.error_code) for result in results] == [
        ("orders", InvalidRequestError.code),
        ("other", 0),
    ]


def test_an_existing_topic_is_reported(admin: AdminBroker) -> None:
    create(admin, topic())
    (result,) = create(admin, topic())
    assert result.error_code == TopicAlreadyExistsError.code


@pytest.mark.parametrize("version", range(7))
def test_topics_are_deleted_by_name(admin: AdminBroker, version: int) -> None:
    image = create_topic(admin, "orders")
    if version >= 6:
        names = [DeleteTopicState(name="orders"), DeleteTopicState(name="other")]
        request = DeleteTopicsRequest(topics=names)
    else:
        request = DeleteTopicsRequest(topic_names=["orders", "other"])
    gone, unknown = drive(admin.broker, request, DeleteTopicsResponse, version).responses
    assert (gone.name, gone.error_code) == ("orders", 0)
    assert gone.topic_id == (image.topic_id if version >= 6 else ZERO_UUID)
    assert unknown.error_code == UnknownTopicOrPartitionError.code
    assert not admin.metadata.topics


def test_topics_are_deleted_by_id(admin: AdminBroker) -> None:
    image = create_topic(admin, "orders")
    states = [
        DeleteTopicState(topic_id=b"x" * 16),
        DeleteTopicState(name="orders", topic_id=image.topic_id),
        DeleteTopicState(topic_id=image.topic_id),
    ]
    responses = drive(admin.broker, DeleteTopicsRequest(topics=states), DeleteTopicsResponse, 6).responses
    assert [answer.error_code for answer in responses] == [UnknownTopicIdError.code, InvalidRequestError.code, 0]
    assert responses[2].name == "orders"


@pytest.mark.parametrize("is_name_first", [True, False])
def test_a_topic_that_is_named_and_meant_by_its_id_is_not_deleted(admin: AdminBroker, is_name_first: bool) -> None:
    image = create_topic(admin, "orders")
    states = [DeleteTopicState(name="orders"), DeleteTopicState(name=None, topic_id=image.topic_id)]
    request = DeleteTopicsRequest(topics=states if is_name_first else states[::-1])
    (answer,) = drive(admin.broker, request, DeleteTopicsResponse, 6).responses
    assert answer.error_code == InvalidRequestError.code
    assert "orders" in admin.metadata.topics


def test_a_name_that_is_repeated_is_refused_whatever_happens_to_its_topic_between_two_steps(admin: AdminBroker) -> None:
    """The authorizer passes on repeated names unchecked: a topic that is created meanwhile must stay."""
    create_topic(admin, "orders")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders"), DeleteTopicState(name="orders")])
    steps = delete_topics.handle(admin.broker, context_of(6), request)
    next(steps)
    delete_topic(admin, "orders")
    steps.send(None)
    created = create_topic(admin, "orders")
    (answer,) = response_of(steps).responses
    assert answer.error_code == InvalidRequestError.code
    assert admin.metadata.topics["orders"].topic_id == created.topic_id


@pytest.mark.parametrize(("version", "error"), [(2, InvalidRequestError), (3, TopicDeletionDisabledError)])
def test_disabled_deletion_has_the_error_code_of_the_version(
    tmp_path: Path, version: int, error: type[KafkaError]
) -> None:
    admin = AdminBroker(tmp_path, {"delete.topic.enable": "false"})
    create_topic(admin, "orders")
    request = DeleteTopicsRequest(topic_names=["orders"])
    (answer,) = drive(admin.broker, request, DeleteTopicsResponse, version).responses
    assert answer.error_code == error.code


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(admin: AdminBroker, version: int) -> None:
    create_topic(admin, "orders", 2)
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="orders", count=4, assignments=None)])
    (result,) = drive(admin.broker, request, CreatePartitionsResponse, version).results
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert admin.metadata.topics["orders"].partition_count == 4


@pytest.mark.parametrize(
    ("name", "count", "replicas", "error"),
    [
        ("orders", 2, None, InvalidPartitionsError),
        ("other", 5, None, UnknownTopicOrPartitionError),
        ("other", 5, [[1]], UnknownTopicOrPartitionError),
        ("orders", 4, [[1]], InvalidReplicaAssignmentError),
        ("orders", 3, [[2]], InvalidReplicaAssignmentError),
        ("orders", 4, [[1], [1, 1]], InvalidReplicaAssignmentError),
    ],
)
def test_partitions_that_cannot_be_added(
    admin: AdminBroker, name: str, count: int, replicas: list[list[int]] | None, error: type[KafkaError]
) -> None:
    create_topic(admin, "orders", 2)
    assignments = None if replicas is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in replicas]
    asked = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    request = CreatePartitionsRequest(topics=[asked])
    (result,) = drive(admin.broker, request, CreatePartitionsResponse).results
    assert result.error_code == error.code


def test_partitions_are_added_with_an_assignment(admin: AdminBroker) -> None:
    create_topic(admin, "orders", 2)
    asked = CreatePartitionsTopic(name="orders", count=3, assignments=[CreatePartitionsAssignment(broker_ids=[1])])
    request = CreatePartitionsRequest(topics=[asked], validate_only=True)
    (result,) = drive(admin.broker, request, CreatePartitionsResponse).results
    assert result.error_code == 0
    assert admin.metadata.topics["orders"].partition_count == 2


def test_a_topic_to_widen_given_twice_is_refused(admin: AdminBroker) -> None:
    create_topic(admin, "orders", 2)
    asked = CreatePartitionsTopic(name="orders", count=3, assignments=None)
    request = CreatePartitionsRequest(topics=[asked, asked])
    (result,) = drive(admin.broker, request, CreatePartitionsResponse).results
    assert result.error_code == InvalidRequestError.code


def test_errors_for_whole_requests_name_every_topic() -> None:
    error = UnknownServerError()
    made = response_of(create_topics.error_response(CreateTopicsRequest(topics=[topic()]), error))
    assert [(result.name, result.error_code) for result in made.topics] == [("orders", -1)]
    gone = delete_topics.error_response(DeleteTopicsRequest(topic_names=["orders"]), error)
    assert [(answer.name, answer.error_code) for answer in gone.responses] == [("orders", -1)]
    asked = CreatePartitionsTopic(name="orders", count=3, assignments=None)
    wider = create_partitions.error_response(CreatePartitionsRequest(topics=[asked]), error)
    assert [(result.name, result.error_code) for result in wider.results] == [("orders", -1)]


def test_more_partitions_than_one_request_may_make_are_refused_together(admin: AdminBroker) -> None:
    topics = [CreatableTopic(name=f"t{number}", num_partitions=2_501, replication_factor=1) for number in range(4)]
    response = drive(admin.broker, CreateTopicsRequest(topics=topics), CreateTopicsResponse)
    assert [result.error_code for result in response.topics] == [PolicyViolationError.code] * 4
    assert admin.metadata.topics == {}
    topics.pop()
    response = drive(admin.broker, CreateTopicsRequest(topics=topics), CreateTopicsResponse)
    assert [result.error_code for result in response.topics] == [0] * 3
