"""Fetches of many partitions, which are read in steps, and changes between the steps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.stepping import response_of
from tidelog.broker.handlers import fetch
from tidelog.broker.handlers.fetch import MANY_TARGETS
from tidelog.broker.loop.steps import Steps
from tidelog.broker.replica.fetching import down_conversion
from tidelog.protocol.errors import KafkaStorageError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1)
    yield data
    data.close()


def open_records(directory: Path) -> list[str]:
    """Return the record files below a directory that this process has open, as the system names them."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in names if name.startswith(f"{directory}/") and ".log" in name]


Between = Callable[[], object]


def fetch_of_old_client(data: DataBroker, between: Between) -> tuple[PartitionData, PartitionData]:
    """Fetch by version 3 from ``t`` and many others, with a change between the read and the conversion of records.

    Returns what it gets of ``t``, and of the first partition of the others."""
    create_topic(data, "many", MANY_TARGETS + 1)
    data.append("many", b"kept")
    data.append("t", b"gone")
    asked = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1000) for n in range(MANY_TARGETS + 1)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000_000,
        topics=[FetchTopic(topic="t", partitions=asked[:1]), FetchTopic(topic="many", partitions=asked)],
    )
    steps = fetch.handle(data.broker, data.context(3), request)
    assert isinstance(steps, GeneratorType)
    turns = sum(1 for _ in steps)
    steps = fetch.handle(data.broker, data.context(3), request)
    assert isinstance(steps, GeneratorType)
    for _ in range(turns):
        next(steps)
    between()
    with pytest.raises(StopIteration) as end:
        next(steps)
    topic, others = end.value.value.responses
    return topic.partitions[0], others.partitions[0]


def test_a_topic_that_goes_before_its_records_are_converted_for_old_clients_is_answered(
    data: DataBroker, tmp_path: Path
) -> None:
    """The client has the records that were read, as by newer versions, others have theirs, and no file stays open."""
    gone, kept = fetch_of_old_client(data, lambda: delete_topic(data, "t"))
    assert (gone.error_code, kept.error_code) == (0, 0)
    assert b"gone" in bytes(gone.records or b"")  # type: ignore[arg-type]
    assert b"kept" in bytes(kept.records or b"")  # type: ignore[arg-type]
    data.log_manager.environment.deletions.run(everything=True)
    assert not [name for name in open_records(tmp_path) if "/t-0" in name]


def test_records_are_converted_by_the_topic_that_they_were_read_from(data: DataBroker) -> None:
    """The topic of that name by then is not opened, and forbids conversion."""

    def make_anew() -> None:
        delete_topic(data, "t")
        create_topic(data, "t", 1, configs={"message.downconversion.enable": "false"})

    gone, _ = fetch_of_old_client(data, make_anew)
    assert gone.error_code == 0
    assert b"gone" in bytes(gone.records or b"")  # type: ignore[arg-type]


def test_old_clients_get_an_error_that_they_know_where_records_to_convert_cannot_be_read(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Iterator[bytes]:
        raise KafkaStorageError

    broken = partial(monkeypatch.setattr, down_conversion, "down_convert", fail)
    failed, _ = fetch_of_old_client(data, broken)
    assert (failed.error_code, failed.records) == (NotLeaderOrFollowerError.code, b"")


MOVED = MANY_TARGETS // 2
"""The partition to which records are appended while a fetch of others is under way."""


def begin_wait(data: DataBroker, topics: list[FetchTopic]) -> Steps[Any]:
    """Begin a fetch that waits for a minute if there is nothing to read."""
    request = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1_000_000, topics=topics)
    steps = fetch.handle(data.broker, data.context(12), request)
    assert isinstance(steps, GeneratorType)
    return steps


def all_partitions_of(topic: str, count: int) -> FetchTopic:
    asked = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1000) for n in range(count)]
    return FetchTopic(topic=topic, partitions=asked)


def count_steps_before_wait(data: DataBroker) -> int:
    steps = begin_wait(data, [all_partitions_of("many", MANY_TARGETS + 1)])
    count = next(number for number, waiting in enumerate(steps) if waiting is not None and not waiting.done)
    steps.close()
    return count


def answer_without_clock(data: DataBroker, steps: Steps[Any]) -> FetchResponse:
    """Return the answer that comes without any time passing."""
    answer = response_of(steps)
    while data.loop.soon:
        data.run_turn()
    response = response_of(answer)
    assert isinstance(response, FetchResponse), "it waits until its time is over"
    return response


@pytest.mark.parametrize("first", range(3))
def test_an_append_between_two_steps_is_answered_without_a_wait(data: DataBroker, first: int) -> None:
    """Also one to a partition that the fetch has read already: the fetch waited until another partition changed."""
    create_topic(data, "many", MANY_TARGETS + 1)
    last = count_steps_before_wait(data)
    assert last > MANY_TARGETS
    for number in range(first, last + 1, 3):
        topic = f"t{number}"
        create_topic(data, topic, MANY_TARGETS + 1)
        steps = begin_wait(data, [all_partitions_of(topic, MANY_TARGETS + 1)])
        for _ in range(number):
            next(steps)
        data.append(topic, b"new", partition=MOVED)
        (responses,) = answer_without_clock(data, steps).responses
        found = [each.partition_index for each in responses.partitions if each.records]
        assert found == [MOVED], f"after {number} steps"


def test_a_topic_deleted_between_two_steps_has_an_error(data: DataBroker) -> None:
    create_topic(data, "many", MANY_TARGETS + 1)
    last = count_steps_before_wait(data)
    for number in range(last + 1):
        create_topic(data, "gone", 1)
        steps = begin_wait(data, [all_partitions_of("many", MANY_TARGETS + 1), all_partitions_of("gone", 1)])
        for _ in range(number):
            next(steps)
        delete_topic(data, "gone")
        responses = answer_without_clock(data, steps).responses
        errors = {each.topic: each.partitions[0].error_code for each in responses}
        assert errors == {"many": 0, "gone": UnknownTopicOrPartitionError.code}, f"after {number} steps"


def test_a_fetch_that_is_answered_leaves_nothing_in_the_purgatory(data: DataBroker) -> None:
    create_topic(data, "many", MANY_TARGETS + 1)
    data.append("many", b"there")
    response_of(begin_wait(data, [all_partitions_of("many", MANY_TARGETS + 1)]))
    begin_wait(data, [all_partitions_of("many", MANY_TARGETS + 1)]).close()
    assert len(data.purgatory) == 0
