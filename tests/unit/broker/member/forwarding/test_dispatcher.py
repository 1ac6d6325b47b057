"""Requests that a member forwards, and those that it handles itself."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.forwarding.dispatcher import (
    MemberDispatcher,
    has_transactional_id,
    is_about_loggers,
    producer_of,
)
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.requests.bounds import max_bytes
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.protocol.acl import AclOperation
from tidelog.protocol.acl import ResourceType as AclResource
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, NotControllerError
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.metadata_records.records import AccessControlEntryRecord
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.schema.fields import Message


def frame(api_key: int, version: int, request: Message) -> memoryview:
    header = RequestHeader(api_key, version, 7, "client")
    return memoryview(encode_request_header(header) + request.encode(version))


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_a_transactional_id_is_found_in_every_version_of_produce(version: int, transactional_id: str | None) -> None:
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1)
    assert has_transactional_id(frame(ApiKey.PRODUCE, version, request)) is (transactional_id is not None)


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        ([ResourceType.BROKER_LOGGER], True),
        ([ResourceType.BROKER_LOGGER, ResourceType.TOPIC], False),
        ([ResourceType.TOPIC], False),
        ([], False),
    ],
)
def test_levels_of_loggers_are_changed_here(kinds: list[ResourceType], answer: bool) -> None:
    resources = [AlterConfigsResource(resource_type=kind, resource_name="1") for kind in kinds]
    request = IncrementalAlterConfigsRequest(resources=resources)
    assert is_about_loggers(request) is answer


def test_only_a_transactional_batch_has_a_producer_to_ask_about() -> None:
    records = [Record(0, 1, None, b"value", [])]

    def batch(*, is_transactional: bool) -> memoryview:
        options = BatchOptions(producer_id=9, producer_epoch=2, base_sequence=0, is_transactional=is_transactional)
        return memoryview(build_batch(records, options))

    assert producer_of(batch(is_transactional=True)) == (9, 2)
    assert producer_of(batch(is_transactional=False)) is None
    assert producer_of(batch(is_transactional=True)[:60]) is None
    assert producer_of(None) is None


class Controller:
    """A forwarder whose answers a test gives."""

    def __init__(self) -> None:
        self.is_full = False
        self.answers: list[Deferred[bytes]] = []

    def forward(self, *_: object) -> Deferred[bytes]:
        self.answers.append(Deferred())
        return self.answers[-1]


def test_a_forwarded_request_without_an_answer_is_refused_for_each_topic(tmp_path: Path) -> None:
    data, controller = DataBroker(tmp_path), Controller()
    dispatcher = MemberDispatcher(data.broker, cast(Any, controller), cast(Any, SimpleNamespace()))
    context = data.context(0)
    names = [f"t{number}" for number in range(3_000)]
    answer = dispatcher.dispatch(context, frame(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=names)))
    assert isinstance(answer, Pending)
    assert context.api_key == ApiKey.DELETE_TOPICS
    frames: list[Any] = []
    answer.on_answer(frames.append)
    controller.answers[0].fail(NotControllerError())
    while not frames:
        data.run_turn()
    response = DeleteTopicsResponse.decode(memoryview(b"".join(map(bytes, frames[0])))[9:], 5)
    code = NotControllerError.code
    assert [(one.name, one.error_code) for one in response.responses] == [(name, code) for name in names]
    data.close()


def test_the_size_of_forwarded_requests_is_limited(tmp_path: Path) -> None:
    data, controller = DataBroker(tmp_path), Controller()
    dispatcher = MemberDispatcher(data.broker, cast(Any, controller), cast(Any, SimpleNamespace()))
    request = frame(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]))
    longest = bytes(request) + bytes(max_bytes(ApiKey.DELETE_TOPICS, data.broker.config) - len(request))
    waiting = dispatcher.dispatch(data.context(0), memoryview(longest))
    assert isinstance(waiting, Pending)
    with pytest.raises(InvalidRequestError):
        dispatcher.dispatch(data.context(0), memoryview(longest + b"x"))
    controller.is_full = True
    with pytest.raises(CloseConnectionError):
        dispatcher.dispatch(data.context(0), request)
    assert len(controller.answers) == 1
    waiting.abandon()
    data.close()


@pytest.mark.parametrize(
    ("rights", "asked"),
    [
        ({"id", "mine"}, ["mine"]),
        ({"id", "mine", "other"}, ["mine", "other"]),
        ({"mine", "other"}, []),
        ({"id"}, []),
        (None, ["mine", "other"]),
    ],
)
def test_coordinators_are_asked_only_about_partitions_that_the_client_may_write(
    tmp_path: Path, rights: set[str] | None, asked: list[str]
) -> None:
    """They take a broker's word: else a stranger could add partitions to a transaction of others."""
    data = DataBroker(tmp_path, {} if rights is None else {"authorizer.class.name": STANDARD_AUTHORIZER})
    if rights is not None:
        data.broker.controller.commit(VersionedRecord(right_to_write(name)) for name in rights)
    found: list[str] = []
    peers = SimpleNamespace(ask_coordinator=lambda _, partition, *__, **___: found.append(partition[0]))
    dispatcher = MemberDispatcher(data.broker, cast(Any, Controller()), cast(Any, peers))
    options = BatchOptions(producer_id=9, producer_epoch=2, base_sequence=0, is_transactional=True)
    records = memoryview(build_batch([Record(0, 1, None, b"value", [])], options))
    topics = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records)])
        for name in ("mine", "other")
    ]
    request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1, topic_data=topics)
    dispatcher.dispatch(data.context(12), frame(ApiKey.PRODUCE, 12, request))
    assert found == asked
    data.close()


def right_to_write(name: str) -> AccessControlEntryRecord:
    """Return the ACL that lets all clients write a topic, or use the transactional id."""
    kind = AclResource.TRANSACTIONAL_ID if name == "id" else AclResource.TOPIC
    return AccessControlEntryRecord(
        id=name.encode().ljust(16), resource_type=kind, resource_name=name, pattern_type=3, principal="User:*",
        host="*", operation=AclOperation.WRITE, permission_type=3,
    )  # fmt: skip


def test_coordinators_are_asked_about_many_batches_in_steps(tmp_path: Path) -> None:
    """All of a request were decoded and asked about in one turn, which held the others."""
    data, asked = DataBroker(tmp_path), 0

    def note_asked(*_: object, **__: object) -> None:
        nonlocal asked
        asked += 1

    peers = SimpleNamespace(ask_coordinator=note_asked)
    dispatcher = MemberDispatcher(data.broker, cast(Any, Controller()), cast(Any, peers))
    dispatcher.runner.clock = lambda: asked * 0.025  # milliseconds, as if each question took 25 us
    options = BatchOptions(producer_id=9, producer_epoch=2, base_sequence=0, is_transactional=True)
    records = memoryview(build_batch([Record(0, 1, None, b"value", [])], options))
    partitions = [PartitionProduceData(index=index, records=records) for index in range(2_000)]
    topics = [TopicProduceData(name="t", partition_data=partitions)]
    request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1, topic_data=topics)
    context = data.context(12)
    context.api_key = ApiKey.METADATA
    answer = dispatcher.dispatch(context, frame(ApiKey.PRODUCE, 12, request))
    assert isinstance(answer, Pending)
    assert context.api_key == ApiKey.PRODUCE, "the questions are audited and measured as those of another API"
    assert asked < 200
    frames: list[Any] = []
    answer.on_answer(frames.append)
    while not frames:
        data.run_turn()
    assert asked == 2_000
    assert frames[0] is not None
    data.close()


def test_a_malformed_transactional_request_is_refused(tmp_path: Path) -> None:
    data = DataBroker(tmp_path)
    dispatcher = MemberDispatcher(data.broker, cast(Any, Controller()), cast(Any, SimpleNamespace()))
    request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t")])
    with pytest.raises(InvalidRequestError):
        dispatcher.dispatch(data.context(12), frame(ApiKey.PRODUCE, 12, request)[:-3])
    data.close()


@pytest.mark.parametrize("version", [REGISTRY[ApiKey.PRODUCE].max_version + 1, 2**15 - 1])
@pytest.mark.parametrize("body", [b"\0", b"\3id", b""])
def test_a_produce_request_of_a_version_that_is_not_served_is_refused(
    tmp_path: Path, version: int, body: bytes
) -> None:
    """With a transactional id its version was not checked: the log had an error with a traceback."""
    data = DataBroker(tmp_path)
    dispatcher = MemberDispatcher(data.broker, cast(Any, Controller()), cast(Any, SimpleNamespace()))
    header = struct.pack(">hhihB", ApiKey.PRODUCE, version, 7, -1, 0)
    with pytest.raises(InvalidRequestError, match=f"API 0 is not served in version {version}"):
        dispatcher.dispatch(data.context(12), memoryview(header + body.ljust(20 * len(body), b"\0")))
    data.close()


@pytest.mark.parametrize("api_key", sorted(REGISTRY.keys() - {ApiKey.API_VERSIONS}))
def test_a_version_that_is_not_served_is_refused_for_each_api(tmp_path: Path, api_key: int) -> None:
    data = DataBroker(tmp_path)
    dispatcher = MemberDispatcher(data.broker, cast(Any, Controller()), cast(Any, SimpleNamespace()))
    version = REGISTRY[api_key].max_version + 1
    header = struct.pack(">hhihB", api_key, version, 7, -1, 0)
    with pytest.raises(InvalidRequestError, match=f"API {api_key} is not served in version {version}"):
        dispatcher.dispatch(data.context(0), memoryview(header + b"\3id".ljust(40, b"\0")))
    data.close()
