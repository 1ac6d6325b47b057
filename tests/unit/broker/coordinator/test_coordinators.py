"""The coordinators of one broker together: committed offsets after their topic is deleted, over real logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.coordinator.runtime.test_committed import Client
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.loop.deferred import deferred_error
from tidelog.protocol.errors import NONE, KafkaStorageError
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse

TEXTS = {"offsets.topic.num.partitions": "1"}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path, TEXTS)
    create_topic(data, "t", 1)
    data.make_internal_topics("__consumer_offsets")
    commit(data)
    yield data
    data.close()


def commit(data: DataBroker) -> None:
    client = Client(data)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    (frame,) = client.answer(request, 8)
    assert client.decoded(frame, OffsetCommitResponse, 8).topics[0].partitions[0].error_code == NONE


def committed(data: DataBroker) -> int:
    client = Client(data)
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    (frame,) = client.answer(OffsetFetchRequest(group_id="g", topics=[topic]), 5)
    offset: int = client.decoded(frame, OffsetFetchResponse, 5).topics[0].partitions[0].committed_offset
    return offset


def delete(data: DataBroker, name: str = "t") -> list[bytes]:
    """Delete a topic. Returns the answer, once it is there."""
    return Client(data).answer(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]), 6)


def run_turns(data: DataBroker) -> None:
    """Run as many turns as a deletion, or a load of the internal topics, takes."""
    for _ in range(20):
        data.loop.run_soon()


def restarted(data: DataBroker, directory: Path) -> DataBroker:
    """Start again on the same directory, as after a kill."""
    data.broker.controller.close()
    again = DataBroker(directory, TEXTS)
    coordinators_of(again.broker).start()
    run_turns(again)
    return again


def test_offsets_go_when_the_deletion_of_their_topic_is_durable(data: DataBroker) -> None:
    answers = delete(data)
    assert (answers, committed(data)) == ([], 5)
    data.loop.run_soon()
    assert committed(data) == 5, "its logs are removed in a thread"
    data.loop.run_soon()
    assert committed(data) == -1
    while not answers:
        data.loop.run_soon()
    (response,) = Client(data).decoded(answers[0], DeleteTopicsResponse, 6).responses
    assert response.error_code == NONE


def test_offsets_are_deleted_with_a_topic_whose_partitions_are_being_added(data: DataBroker) -> None:
    widened = data.topics.changes.widen("t", 3)
    answers = delete(data)
    assert (widened.done, "t" in data.broker.metadata.topics, committed(data)) == (False, True, 5)
    while not widened.done:
        data.loop.run_soon()
    assert (answers, "t" in data.broker.metadata.topics, committed(data)) == ([], False, 5), "hidden, not yet durable"
    data.loop.run_soon()
    data.loop.run_soon()
    assert committed(data) == -1
    data.loop.run_soon()
    (response,) = Client(data).decoded(answers[0], DeleteTopicsResponse, 6).responses
    assert response.error_code == NONE


@pytest.mark.parametrize(("part", "offset"), [("logs", -1), ("metadata", 5)], ids=["logs stay", "not durable"])
def test_offsets_go_when_the_name_is_free(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch, part: str, offset: int
) -> None:
    def fail(*_: object) -> None:
        raise KafkaStorageError("the disk is full")

    if part == "metadata":
        monkeypatch.setattr("tidelog.broker.metadata.metadata_log.MetadataLog.sync", fail)
    else:
        monkeypatch.setattr(type(data.log_manager), "delete_log", fail)
    answers = delete(data)
    while not answers:
        data.loop.run_soon()
    (response,) = Client(data).decoded(answers[0], DeleteTopicsResponse, 6).responses
    assert response.error_code == KafkaStorageError.code
    assert committed(data) == offset


def test_the_next_start_forgets_offsets_of_topics_deleted_before_a_crash(data: DataBroker, tmp_path: Path) -> None:
    data.topics.begin_delete("t")
    again = restarted(data, tmp_path)
    assert committed(again) == -1
    create_topic(again, "t", 1)
    commit(again)
    last = restarted(again, tmp_path)
    assert committed(last) == 5, "of the topic that has the name now"
    last.close()


def test_offsets_that_cannot_be_deleted_now_are_logged(
    data: DataBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = coordinators_of(data.broker).groups
    full = deferred_error(KafkaStorageError("the disk is full"))
    monkeypatch.setattr(groups, "topic_deleted", lambda *_: full)
    with caplog.at_level(logging.WARNING):
        delete(data)
        run_turns(data)  # until it is answered: a request that still waits is closed by whichever thread frees it
    assert "deleted topic t are removed later" in caplog.text


@pytest.mark.parametrize("when", ["at the deletion", "at the next start"])
def test_a_deletion_is_unfinished_until_its_offsets_are_deleted(
    data: DataBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The deletion of another topic notes which ones are finished: a later start must still delete the offsets."""

    def fail(*_: object, **__: object) -> None:
        raise KafkaStorageError("the disk is full")

    create_topic(data, "u", 1)
    if when == "at the deletion":
        with monkeypatch.context() as patched:
            patched.setattr(InternalTopicLog, "append", fail)
            delete(data)
            run_turns(data)
            delete(data, "u")
            run_turns(data)
    else:
        data.topics.begin_delete("t")
        with monkeypatch.context() as patched:
            patched.setattr(InternalTopicLog, "append", fail)
            data = restarted(data, tmp_path)
            delete(data, "u")
            run_turns(data)
    again = restarted(data, tmp_path)
    assert committed(again) == -1
    again.close()


def test_a_deletion_is_finished_when_no_log_and_no_offset_is_left(tmp_path: Path) -> None:
    """Also if some partitions of the internal topic have no records: no request has loaded them."""
    data = DataBroker(tmp_path, {"offsets.topic.num.partitions": "3"})
    for name in ("t", "u"):
        create_topic(data, name, 1)
    data.make_internal_topics("__consumer_offsets")
    commit(data)
    for name in ("t", "u"):
        image = data.broker.metadata.topics[name]
        delete(data, name)
        run_turns(data)
    assert list(data.broker.controller.deletions) == [image.topic_id], "of u: no later deletion has noted its end"
    again = DataBroker(tmp_path, {"offsets.topic.num.partitions": "3"})
    coordinators_of(again.broker).start()
    run_turns(again)
    create_topic(again, "v", 1)
    delete(again, "v")
    run_turns(again)
    assert image.topic_id not in again.broker.controller.deletions
    data.broker.controller.close()
    again.close()
