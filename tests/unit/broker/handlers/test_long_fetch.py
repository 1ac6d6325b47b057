"""Fetches of many partitions, which are read in steps: what changes between them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.handlers import fetch
from tidelog.broker.handlers.fetch import MANY_TARGETS
from tidelog.protocol.errors import UnknownTopicOrPartitionError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1)
    yield data
    data.close()


def open_records() -> list[str]:
    """Return the record files that this process has open, as the system names them."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in names if ".log" in name]


def test_a_topic_that_goes_before_its_records_are_converted_for_old_clients_fails_alone(data: DataBroker) -> None:
    """A fetch of many partitions, read in steps: others have their records, and no file of the topic stays open."""
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
    for goes in (False, True):
        steps = fetch.handle(data.broker, data.context(3), request)
        assert isinstance(steps, GeneratorType)
        if not goes:
            turns = sum(1 for _ in steps)
            continue
        for _ in range(turns):
            next(steps)
        delete_topic(data, "t")
        with pytest.raises(StopIteration) as end:
            next(steps)
    gone, many = end.value.value.responses
    assert gone.partitions[0].error_code == UnknownTopicOrPartitionError.code
    assert not gone.partitions[0].records
    assert many.partitions[0].error_code == 0
    assert b"kept" in bytes(many.partitions[0].records)
    data.log_manager.environment.deletions.run(everything=True)
    assert not [name for name in open_records() if "/t-0" in name]
