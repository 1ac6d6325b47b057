"""Answers of a simulated leader to its followers: sessions, waits for more, offsets."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.clock import Clock, Process
from tests.simulation.network import Reply
from tests.simulation.replicas import Replica
from tests.simulation.settings import TOPIC_ID
from tidelog.broker.replica.fetch_session import FetchContext, FetchSessionCache, Result
from tidelog.protocol.errors import KafkaError, NotLeaderOrFollowerError, UnknownTopicIdError
from tidelog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

VERSION = 18
OFFSETS_VERSION = 11
LATEST = -1


class Parked:
    """A fetch that waits for records."""

    def __init__(self, request: FetchRequest, context: FetchContext, reply: Reply) -> None:
        self.request = request
        self.context = context
        self.reply = reply


class FetchService:
    """Requests of followers at one process."""

    def __init__(self, clock: Clock, process: Process, replicas: dict[int, Replica], seed: int) -> None:
        self._clock = clock
        self._process = process
        self._replicas = replicas
        self._sessions = FetchSessionCache(100, clock.monotonic_ms, random.Random(seed))
        self._starts: dict[tuple[int, int], int] = {}
        self._parked: list[Parked] = []

    def serve(self, request: Any, reply: Reply) -> None:
        """Answer, at once or later."""
        if isinstance(request, ListOffsetsRequest):
            reply(self._offsets(ListOffsetsRequest.decode(request.encode(OFFSETS_VERSION), OFFSETS_VERSION)))
            return
        wired = FetchRequest.decode(request.encode(VERSION), VERSION)
        try:
            context = self._sessions.context_for(VERSION, wired)
        except KafkaError as error:
            reply(FetchResponse(error_code=error.code))
            return
        for topic in wired.topics:
            for asked in topic.partitions:
                self._starts[wired.replica_state.replica_id, asked.partition] = asked.log_start_offset
        parked = Parked(wired, context, reply)
        if not self._try(parked, is_last=False, is_new=True):
            self._parked.append(parked)
            self._process.after(wired.max_wait_ms, lambda: self._expire(parked))

    def touch(self, number: int) -> None:
        """Something moved in a partition: look again at what waits."""
        self.touch_all()

    def touch_all(self) -> None:
        """Look again at all that waits."""
        self._parked = [parked for parked in self._parked if not self._try(parked, is_last=False)]

    def _expire(self, parked: Parked) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            self._try(parked, is_last=True)

    def _try(self, parked: Parked, *, is_last: bool, is_new: bool = False) -> bool:
        results = self._read(parked, is_new=is_new)
        if not is_last and not any(is_news(data) for _, data in results):
            return False
        told = [
            (target, data)
            for target, data in results
            if is_news(data)
            or not parked.context.is_incremental
            or data.high_watermark != target.sent_high_watermark
            or data.log_start_offset != target.sent_log_start_offset
        ]
        session_id = parked.context.finish(told)
        for target, data in told:
            if data.diverging_epoch.epoch >= 0:
                target.sent_high_watermark = -1
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data for _, data in told])
        answer = FetchResponse(session_id=session_id, responses=[topic] if told else [])
        parked.reply(FetchResponse.decode(bytes(answer.encode(VERSION)), VERSION))
        return True

    def _read(self, parked: Parked, *, is_new: bool) -> list[Result]:
        follower, now_ms = parked.request.replica_state, self._clock.now_ms
        results: list[Result] = []
        for target in parked.context.targets:
            asked = FetchPartition(
                partition=target.index,
                current_leader_epoch=target.current_leader_epoch,
                fetch_offset=target.fetch_offset,
                last_fetched_epoch=target.last_fetched_epoch,
                log_start_offset=self._starts.get((follower.replica_id, target.index), -1),
            )
            replica = self._replicas.get(target.index)
            if replica is None:  # its image is older than the follower's
                error = UnknownTopicIdError.code
                results.append((target, PartitionData(partition_index=target.index, error_code=error, records=b"")))
            else:
                results.append((target, replica.answer(asked, follower, now_ms, is_new=is_new)))
        return results

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for asked in topic.partitions:
                one = ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=-1)
                replica = self._replicas[asked.partition_index]
                if replica.leader is None or replica.state.leader_epoch != asked.current_leader_epoch:
                    one.error_code = NotLeaderOrFollowerError.code
                else:
                    log = replica.log
                    one.offset = log.log_end_offset if asked.timestamp == LATEST else log.log_start_offset
                found.append(one)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)


def is_news(data: Any) -> bool:
    """Return whether a follower should have this at once."""
    return bool(data.error_code or data.records or data.diverging_epoch.epoch >= 0)
