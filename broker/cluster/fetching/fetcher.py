"""State machine of a follower's fetches from one leader: positions, session, pauses, divergence, out-of-range offsets.

At most one request is in flight. The next one is sent when all work that the last answer brought is done::

    request = fetcher.next_request(now_ms)           # None: not before fetcher.wake_ms, or work is still to be done
    for work in fetcher.take_answer(response, now_ms):      # or fetcher.take_failure(now_ms)
        ...                                          # do it, then call resume(), delay() or fail()

Stages of a partition::

    FETCHING --answer with news, divergence--> APPLYING --resume--> FETCHING    (delay: after a pause)
    FETCHING --OFFSET_OUT_OF_RANGE--> LATEST --end >= ours--> EARLIEST --start <= ours--> FETCHING, after a pause
                                      LATEST --end < ours--> APPLYING (TruncateTo)
                                                              EARLIEST --start > ours--> APPLYING (StartAt)
    APPLYING --fail--> FAILED, until another leader epoch, or until it is dropped and set again

``end`` and ``start`` are those of the leader's log; ``ours`` is the end of this broker's log. An answer counts for a
partition only if the partition's offsets and epochs are still those of the request. A follower truncates to the end of
a diverging epoch, never to its high watermark. Sans-io, not thread-safe.

Source: AbstractFetcherThread, ReplicaFetcherThread of Kafka 4.3; KIP-101, KIP-279, KIP-595, KIP-903.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import cast

from tidelog.broker.cluster.fetching.session import FetchKey, LeaderSession, PartitionAsk, SessionFields
from tidelog.broker.cluster.fetching.work import (
    Append,
    FetcherConfig,
    FollowedPartition,
    LogPosition,
    StartAt,
    TruncateTo,
    TruncateToEpochEnd,
    Work,
)
from tidelog.protocol.errors import NONE, OffsetOutOfRangeError
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

FIRST_DELAY_MS = 50
"""Pause in ms after a first error; each further error doubles it, up to ``replica.fetch.backoff.ms``."""
THROTTLED_MS = 100
"""Time in ms for which a throttled partition is left out."""
_NO_RECORDS = memoryview(b"")
LATEST_TIMESTAMP = -1
EARLIEST_LOCAL_TIMESTAMP = -4


Request = FetchRequest | ListOffsetsRequest
Response = FetchResponse | ListOffsetsResponse


class Stage(Enum):
    """Stages of a partition; the module's docstring has the transitions."""

    FETCHING = "fetching"
    APPLYING = "applying"
    LATEST = "asking where the leader's log ends"
    EARLIEST = "asking where the leader's log begins"
    FAILED = "failed"


_TIMESTAMPS = {Stage.LATEST: LATEST_TIMESTAMP, Stage.EARLIEST: EARLIEST_LOCAL_TIMESTAMP}


class _Partition:
    """One partition of the loop; while it is delayed, it is not fetched before ``not_before_ms``."""

    __slots__ = ("delay_ms", "high_watermark", "leader_epoch", "not_before_ms", "position", "stage", "topic")

    def __init__(self, followed: FollowedPartition) -> None:
        self.topic, self.leader_epoch, self.position = followed
        self.stage = Stage.FETCHING
        self.high_watermark = -1
        self.delay_ms = 0
        self.not_before_ms = 0.0

    def ask(self) -> PartitionAsk:
        """Return what the next Fetch asks for this partition."""
        end_offset, last_epoch, log_start_offset = self.position
        return PartitionAsk(self.leader_epoch, end_offset, last_epoch, log_start_offset)


class LeaderFetcher:
    """Fetch loop for partitions of one leader: those that one of its ``num.replica.fetchers`` loops has."""

    def __init__(self, config: FetcherConfig) -> None:
        self.config = config
        self._session = LeaderSession()
        self._partitions: dict[FetchKey, _Partition] = {}
        self._wanted: dict[FetchKey, PartitionAsk] = {}
        """Partitions to fetch, as they are asked for in the next full request."""
        self._changed: dict[FetchKey, None] = {}
        """Partitions that may have to be asked for in another way than in the last request, or not any more."""
        self._delayed: set[FetchKey] = set()
        self._unfinished: set[FetchKey] = set()
        """Partitions in the stage APPLYING."""
        self._out_of_range: set[FetchKey] = set()
        """Partitions in the stages LATEST and EARLIEST."""
        self._offsets_asked: dict[tuple[str, int], tuple[FetchKey, Stage, int]] = {}
        """Topic and partition of the ListOffsets in flight -> key, stage and leader epoch of the question."""
        self._in_flight = False
        self._delay_ms = 0
        self._not_before_ms = 0.0

    # ---- partitions

    @property
    def failed_count(self) -> int:
        """The number of partitions that failed."""
        return sum(one.stage is Stage.FAILED for one in self._partitions.values())

    @property
    def max_lag(self) -> int:
        """The largest number of records that a partition is behind its leader's high watermark."""
        lags = (one.high_watermark - one.position.end_offset for one in self._partitions.values())
        return max(0, max(lags, default=0))  # a log may be ahead of the last high watermark

    def set_partitions(self, partitions: Mapping[FetchKey, FollowedPartition]) -> None:
        """Fetch these partitions from now on. A partition that was fetched before keeps its position and stage, unless
        its leader epoch has changed.
        """
        for key in [key for key in self._partitions if key not in partitions]:
            self._drop(key)
        for key, followed in partitions.items():
            former = self._partitions.get(key)
            if former is None or former.leader_epoch != followed.leader_epoch:
                self._drop(key)
                self._partitions[key] = _Partition(followed)

    def _drop(self, key: FetchKey) -> None:
        self._partitions.pop(key, None)
        self._changed[key] = None
        for keys in (self._delayed, self._unfinished, self._out_of_range):
            keys.discard(key)

    # ---- results of the work

    def resume(self, key: FetchKey, leader_epoch: int, position: LogPosition) -> None:
        """Go on fetching at ``position``: the work is done, or was not needed any more."""
        partition = self._finish_work(key, leader_epoch)
        if partition is not None:
            partition.position = position
            partition.stage = Stage.FETCHING
            partition.delay_ms = 0

    def delay(self, key: FetchKey, leader_epoch: int, position: LogPosition, now_ms: float) -> None:
        """Go on at ``position`` after a pause, as the work changed nothing: for example, records were damaged, or a
        truncation had nothing to remove.
        """
        partition = self._finish_work(key, leader_epoch)
        if partition is not None:
            partition.position = position
            partition.stage = Stage.FETCHING
            self._delay(key, partition, now_ms)

    def fail(self, key: FetchKey, leader_epoch: int) -> None:
        """Stop fetching a partition whose log is out of service, or whose work ended with an unexpected error. It is
        fetched again in another leader epoch, or if ``set_partitions`` drops it and names it again later.
        """
        partition = self._finish_work(key, leader_epoch)
        if partition is not None:
            partition.stage = Stage.FAILED

    def _finish_work(self, key: FetchKey, leader_epoch: int) -> _Partition | None:
        """Note that a partition's work is over and return the partition; None if its leader epoch has changed since."""
        partition = self._partitions.get(key)
        if partition is None or partition.leader_epoch != leader_epoch or partition.stage is not Stage.APPLYING:
            return None
        self._unfinished.discard(key)
        self._changed[key] = None
        return partition

    # ---- requests

    @property
    def wake_ms(self) -> float | None:
        """The time (ms) from which ``next_request`` may return a request; None if no partition can be fetched."""
        due = [self._partitions[key].not_before_ms for key in self._delayed]
        others = self._partitions.keys() - self._delayed
        if others and any(self._partitions[key].stage is not Stage.FAILED for key in others):
            due.append(0.0)
        return max(min(due), self._not_before_ms) if due else None

    def next_request(self, now_ms: float, throttled: Iterable[FetchKey] = ()) -> Request | None:
        """Return the next request; None while one is in flight, work is to be done, or nothing is due. ``throttled``
        partitions are left out for THROTTLED_MS.
        """
        if self._in_flight or self._unfinished or now_ms < self._not_before_ms:
            return None
        for key in [key for key in self._delayed if self._partitions[key].not_before_ms <= now_ms]:
            self._delayed.discard(key)
            self._changed[key] = None
        for key in throttled:
            self._hold_back(key, now_ms)
        request = self._offsets_request() or self._fetch_request()
        self._in_flight = request is not None
        return request

    def _fetch_request(self) -> FetchRequest | None:
        changed: dict[FetchKey, PartitionAsk | None] = {}
        for key in self._changed:
            partition = self._partitions.get(key)
            is_wanted = partition is not None and partition.stage is Stage.FETCHING and key not in self._delayed
            changed[key] = ask = partition.ask() if partition is not None and is_wanted else None
            if ask is None:
                self._wanted.pop(key, None)
            else:
                self._wanted[key] = ask
        if not self._wanted:
            return None
        self._changed.clear()
        session = self._session
        fields = session.build_full(self._wanted) if session.is_full else session.build_incremental(changed)
        return _fetch_request_of(self.config, fields)

    def _offsets_request(self) -> ListOffsetsRequest | None:
        """Return the ListOffsets of partitions whose offset was out of range, for one stage; None if there are none."""
        for stage, timestamp in _TIMESTAMPS.items():
            keys = [key for key in self._out_of_range - self._delayed if self._partitions[key].stage is stage]
            if keys:
                found = {key: self._partitions[key] for key in sorted(keys)}
                self._offsets_asked = {
                    (one.topic, key.partition): (key, stage, one.leader_epoch) for key, one in found.items()
                }
                return _offsets_request_of(self.config, found, timestamp)
        return None

    # ---- answers

    def take_failure(self, now_ms: float) -> None:
        """Ask the leader again later, in a new session, as no answer came."""
        self._in_flight = False
        self._session.lose()
        self._pause(now_ms)

    def _pause(self, now_ms: float) -> None:
        self._delay_ms = min(max(2 * self._delay_ms, FIRST_DELAY_MS), self.config.backoff_ms)
        self._not_before_ms = now_ms + self._delay_ms

    def take_answer(self, response: Response, now_ms: float) -> list[Work]:
        """Take the answer to the last request; return the work that it brings."""
        self._in_flight = False
        if isinstance(response, ListOffsetsResponse):
            return self._take_offsets(response, now_ms)
        answers = {
            FetchKey(topic.topic_id, partition.partition_index): partition
            for topic in response.responses
            for partition in topic.partitions
        }
        if not self._session.take_answer(response.error_code, response.session_id, answers):
            self._pause(now_ms)
            return []
        self._delay_ms = 0
        found = (self._take_partition(key, answer, now_ms) for key, answer in answers.items())
        return [work for work in found if work is not None]

    def _take_partition(self, key: FetchKey, answer: PartitionData, now_ms: float) -> Work | None:
        """Take the leader's answer for one partition; return the work that it requires."""
        partition = self._partitions.get(key)
        asked = self._session.asked[key]
        if partition is None or partition.stage is not Stage.FETCHING or asked != partition.ask():
            # The answer's high watermark is dropped too. In this session the leader would not send it again.
            self._session.lose()
            return None
        if answer.error_code == NONE:
            work = _work_of(key, partition, answer)
            if isinstance(work, TruncateToEpochEnd):
                # The answer's high watermark is not used. In this session the leader would not send it again.
                self._session.lose()
            if work is None:
                partition.delay_ms = 0
            else:
                partition.stage = Stage.APPLYING
                self._unfinished.add(key)
            return work
        if answer.error_code == OffsetOutOfRangeError.code:
            partition.stage = Stage.LATEST
            self._out_of_range.add(key)
            self._changed[key] = None
        else:
            self._delay(key, partition, now_ms)
        return None

    def _delay(self, key: FetchKey, partition: _Partition, now_ms: float) -> None:
        """Leave a partition out for a while after an error: the leader may get new metadata later than this broker, or
        earlier.
        """
        partition.delay_ms = min(max(2 * partition.delay_ms, FIRST_DELAY_MS), self.config.backoff_ms)
        partition.not_before_ms = now_ms + partition.delay_ms
        self._delayed.add(key)
        self._changed[key] = None

    def _hold_back(self, key: FetchKey, now_ms: float) -> None:
        """Leave a throttled partition out for THROTTLED_MS."""
        partition = self._partitions.get(key)
        if partition is not None and partition.stage is Stage.FETCHING and key not in self._delayed:
            partition.not_before_ms = now_ms + THROTTLED_MS
            self._delayed.add(key)
            self._changed[key] = None

    # ---- offsets out of range

    def _take_offsets(self, response: ListOffsetsResponse, now_ms: float) -> list[Work]:
        """Take the ends or starts of the leader's logs; return the work that they require. A partition that the answer
        lacks is delayed, as after an error.
        """
        works = []
        for topic in response.topics:
            for answer in topic.partitions:
                asked = self._offsets_asked.pop((topic.name, answer.partition_index), None)
                if asked is None or (partition := self._asked_partition(*asked)) is None:
                    continue
                key = asked[0]
                if answer.error_code != NONE or answer.offset < 0:
                    self._delay(key, partition, now_ms)
                elif (work := self._take_offset(key, partition, answer.offset, now_ms)) is not None:
                    works.append(work)
        for asked in self._offsets_asked.values():
            if (partition := self._asked_partition(*asked)) is not None:
                self._delay(asked[0], partition, now_ms)
        return works

    def _asked_partition(self, key: FetchKey, stage: Stage, leader_epoch: int) -> _Partition | None:
        """Return the partition of a question about its leader's log; None if it has changed since."""
        partition = self._partitions.get(key)
        is_same = partition is not None and partition.leader_epoch == leader_epoch and partition.stage is stage
        return partition if is_same else None

    def _take_offset(self, key: FetchKey, partition: _Partition, offset: int, now_ms: float) -> Work | None:
        """Take the leader's log end or start. A partition whose log ends between the two is fetched after a pause."""
        end_offset = partition.position.end_offset
        work: Work | None = None
        if partition.stage is Stage.LATEST:
            if offset >= end_offset:
                partition.stage = Stage.EARLIEST
                return None
            work = TruncateTo(key, partition.leader_epoch, offset)
        elif offset > end_offset:
            work = StartAt(key, partition.leader_epoch, offset)
        self._out_of_range.discard(key)
        if work is None:
            partition.stage = Stage.FETCHING
            self._delay(key, partition, now_ms)
        else:
            partition.stage = Stage.APPLYING
            self._unfinished.add(key)
        return work


def _fetch_request_of(config: FetcherConfig, fields: SessionFields) -> FetchRequest:
    """Return the Fetch request with these fields of the session."""
    topics: dict[bytes, FetchTopic] = {}
    for key, ask in fields.asked.items():
        topic = topics.get(key.topic_id)
        if topic is None:
            topic = topics[key.topic_id] = FetchTopic(topic_id=key.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=key.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.fetch_offset,
                last_fetched_epoch=ask.last_fetched_epoch,
                log_start_offset=ask.log_start_offset,
                partition_max_bytes=config.partition_max_bytes,
            )
        )
    return FetchRequest(
        replica_state=ReplicaState(replica_id=config.replica_id, replica_epoch=config.broker_epoch),
        max_wait_ms=config.max_wait_ms,
        min_bytes=config.min_bytes,
        max_bytes=config.response_max_bytes,
        session_id=fields.session_id,
        session_epoch=fields.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=[
            ForgottenTopic(topic_id=key.topic_id, partitions=[key.partition]) for key in fields.forgotten
        ],
    )


def _work_of(key: FetchKey, partition: _Partition, answer: PartitionData) -> Work | None:
    """Return the work that an answer without an error brings."""
    epoch, position = partition.leader_epoch, partition.position
    diverging = answer.diverging_epoch
    if diverging.end_offset >= 0 or diverging.epoch >= 0:
        return TruncateToEpochEnd(key, epoch, diverging.epoch, diverging.end_offset)
    is_new_watermark = answer.high_watermark != partition.high_watermark
    partition.high_watermark = answer.high_watermark
    records = cast("memoryview", answer.records or _NO_RECORDS)
    if not records and not is_new_watermark and answer.log_start_offset <= position.log_start_offset:
        return None
    return Append(key, epoch, position.end_offset, records, answer.high_watermark, answer.log_start_offset)


def _offsets_request_of(
    config: FetcherConfig, partitions: Mapping[FetchKey, _Partition], timestamp: int
) -> ListOffsetsRequest:
    """Return the ListOffsets for these partitions."""
    topics: dict[str, ListOffsetsTopic] = {}
    for key, partition in partitions.items():
        topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
        asked = ListOffsetsPartition(
            partition_index=key.partition, current_leader_epoch=partition.leader_epoch, timestamp=timestamp
        )
        topic.partitions.append(asked)
    return ListOffsetsRequest(replica_id=config.replica_id, topics=list(topics.values()))
