"""A member of a share group that encodes its requests itself: join, fetch, acknowledge."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidelog.client import Client
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from tidelog.protocol.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

ACCEPT, RELEASE, REJECT = 1, 2, 3
GROUP_RESOURCE = 32
RETRIABLE = frozenset({3, 14, 15, 16, 100})
"""Errors that pass: coordinator loading, not available, not this broker; the topic is not known yet."""
LIMIT_S = 60.0
"""Seconds for which a request that gets such errors is repeated."""


class Run(NamedTuple):
    """Offsets that were acquired together, and how often they were delivered."""

    first: int
    last: int
    delivery_count: int


def read_from_earliest(client: Client, group: str) -> None:
    """Set ``share.auto.offset.reset`` of a group, so that it reads from the first record."""
    config = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=[config])
    answer = client.send(IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse, 1)
    assert answer.responses[0].error_code == 0, answer


class ShareClient:
    """A member of a share group that reads partition 0 of one topic. ``epoch`` is the next one of its share session."""

    def __init__(self, client: Client, group: str, topic: tuple[str, bytes], member_id: str) -> None:
        self._client = client
        self._group, self._member_id = group, member_id
        self._topic, self._topic_id = topic
        self.epoch = 0

    def join(self, coordinator: Client | None = None) -> None:
        """Join the group. ``coordinator`` is needed if the group's coordinator is another broker than the one read."""

        def beat() -> tuple[int, ShareGroupHeartbeatResponse]:
            request = ShareGroupHeartbeatRequest(
                group_id=self._group, member_id=self._member_id, member_epoch=0, subscribed_topic_names=[self._topic]
            )
            answer = (coordinator or self._client).send(request, ShareGroupHeartbeatResponse, 1)
            return answer.error_code, answer

        until_ready(beat)

    def fetch(self, max_records: int = 500, max_wait_ms: int = 0) -> list[Run]:
        """Acquire records of partition 0; return the runs of their offsets."""

        def ask() -> tuple[int, Any]:
            asked = FetchPartition(partition_index=0)
            request = ShareFetchRequest(
                group_id=self._group, member_id=self._member_id, share_session_epoch=self.epoch,
                max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, max_records=max_records,
                batch_size=max_records, share_acquire_mode=1,
                topics=[FetchTopic(topic_id=self._topic_id, partitions=[asked])],
            )  # fmt: skip
            answer = self._client.send(request, ShareFetchResponse, 2)
            self.epoch += answer.error_code == 0
            found = [data for topic in answer.responses for data in topic.partitions]
            return max([answer.error_code, *(data.error_code for data in found)]), found

        return [
            Run(run.first_offset, run.last_offset, run.delivery_count)
            for data in until_ready(ask)
            for run in data.acquired_records
        ]

    def acknowledge(self, first: int, last: int, kind: int) -> int:
        """Acknowledge acquired offsets; return the partition's error code."""
        batch = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
        request = ShareAcknowledgeRequest(
            group_id=self._group, member_id=self._member_id, share_session_epoch=self.epoch,
            topics=[AcknowledgeTopic(topic_id=self._topic_id, partitions=[partition])],
        )  # fmt: skip
        answer = self._client.send(request, ShareAcknowledgeResponse, 2)
        assert answer.error_code == 0, answer
        self.epoch += 1
        return answer.responses[0].partitions[0].error_code


def until_ready(ask: Callable[[], tuple[int, Any]]) -> Any:
    """Repeat a request while its error is in RETRIABLE, for LIMIT_S seconds at most; return the answer."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        code, answer = ask()
        if code not in RETRIABLE:
            assert code == 0, f"error {code}: {answer}"
            return answer
        assert time.monotonic() < deadline, f"error {code} for {LIMIT_S} s"
        time.sleep(0.005)
