"""The fetch loop of a follower: sessions, delays, divergence, offsets out of range, responses that arrive too late."""

from __future__ import annotations

import random

import pytest

from tests.support.model_leader import TOPIC, TOPIC_ID, ModelFollower, ModelLeader, do_all
from tidelog.broker.cluster.fetching.fetcher import THROTTLED_MS, LeaderFetcher
from tidelog.broker.cluster.fetching.session import FetchKey
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
from tidelog.protocol import errors
from tidelog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

CONFIG = FetcherConfig(replica_id=7, broker_epoch=42)
KEY = FetchKey(TOPIC_ID, 0)
OTHER = FetchKey(TOPIC_ID, 1)
EMPTY = LogPosition(0, -1, 0)
SEEDS = 300


def followed(leader_epoch: int = 1, position: LogPosition = EMPTY) -> FollowedPartition:
    return FollowedPartition(TOPIC, leader_epoch, position)


def fetcher_of(*keys: FetchKey, leader_epoch: int = 1) -> LeaderFetcher:
    """Build a loop with these partitions."""
    fetcher = LeaderFetcher(CONFIG)
    fetcher.set_partitions({key: followed(leader_epoch) for key in keys})
    return fetcher


def fetch_of(fetcher: LeaderFetcher, now_ms: float = 0) -> FetchRequest:
    """Return the next request, a Fetch."""
    request = fetcher.next_request(now_ms)
    assert isinstance(request, FetchRequest)
    return request


def fetch_offsets_of(request: FetchRequest) -> dict[int, int]:
    """Return the offset asked for, by partition."""
    return {one.partition: one.fetch_offset for topic in request.topics for one in topic.partitions}


def answer(*partitions: PartitionData, error_code: int = 0) -> FetchResponse:
    topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))] if partitions else []
    return FetchResponse(error_code=error_code, session_id=5, responses=topics)


def data(index: int = 0, records: bytes = b"", high_watermark: int = 0, error_code: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=index, error_code=error_code, high_watermark=high_watermark, records=memoryview(records)
    )


def after_first_answer(*keys: FetchKey) -> LeaderFetcher:
    """Build a loop whose session is open, with nothing new in the first answer but the watermarks."""
    fetcher = fetcher_of(*keys)
    fetch_of(fetcher)
    for work in fetcher.take_answer(answer(*(data(key.partition) for key in keys)), 0):
        fetcher.resume(work.key, work.leader_epoch, EMPTY)
    return fetcher


class TestThrottle:
    def test_a_throttled_partition_is_left_out_and_comes_back(self) -> None:
        fetcher = after_first_answer(KEY, OTHER)
        request = fetcher.next_request(0, [OTHER])
        assert isinstance(request, FetchRequest)
        assert [one.partitions for one in request.forgotten_topics_data] == [[1]]
        fetcher.take_answer(answer(), 0)
        assert fetch_offsets_of(fetch_of(fetcher, THROTTLED_MS - 1)) == {}
        fetcher.take_answer(answer(), 0)
        assert fetch_offsets_of(fetch_of(fetcher, THROTTLED_MS)) == {1: 0}

    def test_with_all_of_them_throttled_nothing_is_asked_for_a_while(self) -> None:
        fetcher = fetcher_of(KEY)
        assert fetcher.next_request(5, [KEY]) is None
        assert fetcher.wake_ms == 5 + THROTTLED_MS
        assert fetcher.next_request(5 + THROTTLED_MS, [KEY]) is None
        assert fetch_offsets_of(fetch_of(fetcher, 5 + 2 * THROTTLED_MS)) == {0: 0}

    def test_a_partition_that_is_no_longer_followed_is_not_throttled(self) -> None:
        assert fetch_offsets_of(fetch_of(fetcher_with_another_throttled())) == {0: 0}


def fetcher_with_another_throttled() -> LeaderFetcher:
    """Build a loop that is told to throttle a partition which it does not fetch."""
    fetcher = fetcher_of(KEY)
    fetcher.next_request(0, [OTHER])
    fetcher.take_failure(-1000)
    return fetcher


class TestSession:
    def test_the_first_request_names_all_partitions_and_the_follower(self) -> None:
        request = fetch_of(fetcher_of(KEY, OTHER))
        assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 42)
        assert (request.session_id, request.session_epoch, fetch_offsets_of(request)) == (0, 0, {0: 0, 1: 0})

    def test_later_requests_name_only_partitions_whose_offset_moved(self) -> None:
        fetcher = after_first_answer(KEY, OTHER)
        request = fetch_of(fetcher)
        assert (request.session_id, request.session_epoch, fetch_offsets_of(request)) == (5, 1, {})
        (work,) = fetcher.take_answer(answer(data(1, b"\1\1", 1)), 0)
        fetcher.resume(work.key, 1, LogPosition(2, 1, 0))
        request = fetch_of(fetcher)
        assert (request.session_epoch, fetch_offsets_of(request)) == (2, {1: 2})

    def test_a_removed_partition_is_forgotten(self) -> None:
        fetcher = after_first_answer(KEY, OTHER)
        fetcher.set_partitions({KEY: followed()})
        request = fetch_of(fetcher)
        assert [(one.topic_id, one.partitions) for one in request.forgotten_topics_data] == [(TOPIC_ID, [1])]

    @pytest.mark.parametrize("was_without_leader", [False, True])
    def test_a_high_watermark_in_a_late_answer_is_requested_again(self, was_without_leader: bool) -> None:
        """A new leader epoch came in between: at rest nothing else would ever tell the watermark."""
        fetcher = after_first_answer(KEY)
        fetch_of(fetcher)
        fetcher.set_partitions({} if was_without_leader else {KEY: followed(2)})
        assert fetcher.take_answer(answer(data(high_watermark=1)), 0) == []
        fetcher.set_partitions({KEY: followed(2)})
        assert fetch_of(fetcher).session_epoch == 0

    def test_a_partition_with_an_error_is_forgotten_and_named_again_later(self) -> None:
        fetcher = after_first_answer(KEY, OTHER)
        fetch_of(fetcher)
        assert fetcher.take_answer(answer(data(1, error_code=errors.UnknownTopicIdError.code)), 1000) == []
        request = fetch_of(fetcher, 1000)
        assert [one.partitions for one in request.forgotten_topics_data] == [[1]]
        fetcher.take_answer(answer(), 1010)
        assert fetch_offsets_of(fetch_of(fetcher, 1049)) == {}
        fetcher.take_answer(answer(), 1050)
        assert fetch_offsets_of(fetch_of(fetcher, 1050)) == {1: 0}

    @pytest.mark.parametrize(
        "code", [errors.FetchSessionIdNotFoundError.code, errors.InvalidFetchSessionEpochError.code]
    )
    def test_after_an_error_of_the_session_a_request_has_all_partitions(self, code: int) -> None:
        fetcher = after_first_answer(KEY, OTHER)
        fetch_of(fetcher)
        assert fetcher.take_answer(answer(error_code=code), 0) == []
        assert fetcher.next_request(0) is None
        request = fetch_of(fetcher, 50)
        assert (request.session_epoch, fetch_offsets_of(request)) == (0, {0: 0, 1: 0})

    def test_an_answer_about_a_strange_partition_ends_the_session(self) -> None:
        fetcher = after_first_answer(KEY)
        fetch_of(fetcher)
        assert fetcher.take_answer(answer(data(9, b"\1")), 0) == []
        assert fetch_of(fetcher, 50).session_epoch == 0

    def test_a_leader_that_opens_no_session_is_asked_in_full(self) -> None:
        fetcher = fetcher_of(KEY)
        fetch_of(fetcher)
        fetcher.take_answer(FetchResponse(session_id=0), 0)
        request = fetch_of(fetcher)
        assert (request.session_id, request.session_epoch, fetch_offsets_of(request)) == (0, 0, {0: 0})

    def test_a_lost_answer_doubles_the_pause(self) -> None:
        fetcher = after_first_answer(KEY)
        now, pauses = 0.0, []
        for _ in range(7):
            fetch_of(fetcher, now)
            fetcher.take_failure(now)
            assert fetcher.wake_ms is not None
            pauses.append(fetcher.wake_ms - now)
            now = fetcher.wake_ms
        assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
        assert fetch_offsets_of(fetch_of(fetcher, now)) == {0: 0}


class TestAnswers:
    def test_one_request_at_a_time_and_none_before_the_work_is_done(self) -> None:
        fetcher = fetcher_of(KEY, OTHER)
        fetch_of(fetcher)
        assert fetcher.next_request(0) is None
        first, second = fetcher.take_answer(answer(data(0, b"\1"), data(1, b"\1")), 0)
        fetcher.resume(first.key, 1, LogPosition(1, 1, 0))
        assert fetcher.next_request(0) is None
        fetcher.resume(second.key, 1, LogPosition(1, 1, 0))
        assert fetch_offsets_of(fetch_of(fetcher)) == {0: 1, 1: 1}

    def test_records_come_with_the_bounds_of_their_append(self) -> None:
        fetcher = fetcher_of(KEY, leader_epoch=3)
        fetch_of(fetcher)
        (work,) = fetcher.take_answer(answer(data(0, b"\3", 1)), 0)
        assert isinstance(work, Append)
        assert (work.leader_epoch, work.offset, bytes(work.records), work.high_watermark) == (3, 0, b"\3", 1)

    def test_a_high_watermark_without_records_is_handed_on_once(self) -> None:
        fetcher = after_first_answer(KEY)
        fetch_of(fetcher)
        (work,) = fetcher.take_answer(answer(data(0, b"", 1)), 0)
        fetcher.resume(work.key, 1, EMPTY)
        fetch_of(fetcher)
        assert fetcher.take_answer(answer(data(0, b"", 1)), 0) == []

    def test_an_answer_of_a_former_leader_epoch_is_dropped(self) -> None:
        fetcher = after_first_answer(KEY)
        fetch_of(fetcher)
        fetcher.set_partitions({KEY: followed(2)})
        assert fetcher.take_answer(answer(data(0, b"\1", 1)), 0) == []
        (partition,) = fetch_of(fetcher).topics[0].partitions
        assert partition.current_leader_epoch == 2

    def test_an_answer_about_a_removed_partition_is_dropped(self) -> None:
        fetcher = after_first_answer(KEY, OTHER)
        fetch_of(fetcher)
        fetcher.set_partitions({KEY: followed()})
        assert fetcher.take_answer(answer(data(1, b"\1", 1)), 0) == []

    def test_work_for_a_former_leader_epoch_changes_nothing(self) -> None:
        fetcher = fetcher_of(KEY)
        fetch_of(fetcher)
        fetcher.take_answer(answer(data(0, b"\1")), 0)
        fetcher.set_partitions({KEY: followed(2, LogPosition(9, 1, 0))})
        fetcher.resume(KEY, 1, LogPosition(1, 1, 0))
        fetcher.fail(KEY, 1)
        assert fetch_offsets_of(fetch_of(fetcher)) == {0: 9}

    def test_a_partition_whose_image_comes_again_continues(self) -> None:
        fetcher = after_first_answer(KEY)
        fetch_of(fetcher)
        (work,) = fetcher.take_answer(answer(data(0, b"\1")), 0)
        fetcher.set_partitions({KEY: followed()})
        fetcher.resume(work.key, 1, LogPosition(1, 1, 0))
        assert fetch_offsets_of(fetch_of(fetcher)) == {0: 1}

    def test_damaged_records_delay_their_partition_alone(self) -> None:
        fetcher = fetcher_of(KEY, OTHER)
        fetch_of(fetcher)
        first, second = fetcher.take_answer(answer(data(0, b"\1"), data(1, b"\1")), 0)
        fetcher.delay(first.key, 1, EMPTY, 0)
        fetcher.resume(second.key, 1, LogPosition(1, 1, 0))
        request = fetch_of(fetcher)
        assert fetch_offsets_of(request) == {1: 1}
        assert [one.partitions for one in request.forgotten_topics_data] == [[0]]

    def test_delays_double_while_the_work_of_each_answer_fails(self) -> None:
        """On a full disk the same records would be fetched 20 times a second."""
        fetcher, now_ms, waits = fetcher_of(KEY), 0.0, []
        for is_done in (False, False, False, True, False):
            fetch_of(fetcher, now_ms)
            fetcher.take_answer(answer(data(0, b"\1")), now_ms)
            if is_done:
                fetcher.resume(KEY, 1, EMPTY)
                continue
            fetcher.delay(KEY, 1, EMPTY, now_ms)
            wake_ms = fetcher.wake_ms
            assert wake_ms is not None
            waits.append(wake_ms - now_ms)
            now_ms = wake_ms
        assert waits == [50, 100, 200, 50]

    def test_a_failed_partition_waits_for_another_leader_epoch(self) -> None:
        fetcher = fetcher_of(KEY)
        fetch_of(fetcher)
        fetcher.take_answer(answer(data(0, b"\1")), 0)
        fetcher.fail(KEY, 1)
        assert (fetcher.next_request(10**9), fetcher.wake_ms, fetcher.failed_count) == (None, None, 1)
        fetcher.set_partitions({KEY: followed(2)})
        assert fetch_offsets_of(fetch_of(fetcher)) == {0: 0}

    def test_lag_is_the_distance_to_the_high_watermark(self) -> None:
        fetcher = fetcher_of(KEY, OTHER)
        fetch_of(fetcher)
        fetcher.take_answer(answer(data(0, b"\1", 10), data(1, b"\1", 4)), 0)
        assert fetcher.max_lag == 10

    def test_a_partition_that_was_not_fetched_yet_has_no_lag(self) -> None:
        assert fetcher_of(KEY).max_lag == 0


class TestDivergence:
    def test_the_log_is_cut_where_the_epoch_ends(self) -> None:
        fetcher = fetcher_of(KEY)
        fetch_of(fetcher)
        diverged = data()
        diverged.diverging_epoch = EpochEndOffset(epoch=0, end_offset=30)
        assert fetcher.take_answer(answer(diverged), 0) == [TruncateToEpochEnd(KEY, 1, 0, 30)]
        fetcher.resume(KEY, 1, EMPTY)
        assert fetch_of(fetcher).session_epoch == 0, "else the leader would not tell its watermark again"


def out_of_range(position: LogPosition) -> LeaderFetcher:
    """Build a loop whose partition was answered OFFSET_OUT_OF_RANGE."""
    fetcher = LeaderFetcher(CONFIG)
    fetcher.set_partitions({KEY: followed(1, position)})
    fetch_of(fetcher)
    fetcher.take_answer(answer(data(0, error_code=errors.OffsetOutOfRangeError.code)), 0)
    return fetcher


def offset_answer(fetcher: LeaderFetcher, leader: ModelLeader) -> tuple[list[int], list[Work]]:
    """Return the timestamps of the next question, and the work that its answer brings."""
    request = fetcher.next_request(0)
    assert isinstance(request, ListOffsetsRequest)
    timestamps = [one.timestamp for topic in request.topics for one in topic.partitions]
    return timestamps, fetcher.take_answer(leader.answer(request), 0)


class TestOffsetOutOfRange:
    def test_a_log_beyond_the_leaders_end_is_cut_to_it(self) -> None:
        fetcher = out_of_range(LogPosition(9, 1, 0))
        assert offset_answer(fetcher, ModelLeader(1, b"\1\1")) == ([-1], [TruncateTo(KEY, 1, 2)])

    def test_a_log_before_the_leaders_start_begins_there(self) -> None:
        fetcher = out_of_range(LogPosition(3, 1, 0))
        leader = ModelLeader(1, b"\1\1", start=7)
        assert offset_answer(fetcher, leader) == ([-1], [])
        assert offset_answer(fetcher, leader) == ([-4], [StartAt(KEY, 1, 7)])

    def test_a_log_within_the_leaders_is_asked_for_again_later(self) -> None:
        fetcher = out_of_range(LogPosition(1, 1, 0))
        leader = ModelLeader(1, b"\1\1")
        offset_answer(fetcher, leader)
        assert offset_answer(fetcher, leader) == ([-4], [])
        assert fetcher.next_request(49) is None
        fetch_of(fetcher, 50)  # the session has it still
        (work,) = fetcher.take_answer(answer(data(0, b"\1")), 50)
        assert isinstance(work, Append)

    def test_an_error_is_asked_again_later(self) -> None:
        fetcher = out_of_range(LogPosition(9, 1, 0))
        assert offset_answer(fetcher, ModelLeader(2, b"\1")) == ([-1], [])
        assert fetcher.next_request(49) is None
        assert isinstance(fetcher.next_request(50), ListOffsetsRequest)

    def test_a_partition_that_the_answer_lacks_is_asked_again_later(self) -> None:
        fetcher = out_of_range(LogPosition(9, 1, 0))
        assert isinstance(fetcher.next_request(0), ListOffsetsRequest)
        assert fetcher.take_answer(ListOffsetsResponse(), 0) == []
        assert fetcher.next_request(49) is None
        assert isinstance(fetcher.next_request(50), ListOffsetsRequest)

    def test_a_change_of_leader_ends_it(self) -> None:
        fetcher = out_of_range(LogPosition(9, 1, 0))
        request = fetcher.next_request(0)
        assert isinstance(request, ListOffsetsRequest)
        fetcher.set_partitions({KEY: followed(2)})
        assert fetcher.take_answer(ModelLeader(1).answer(request), 0) == []
        assert fetch_offsets_of(fetch_of(fetcher)) == {0: 0}


class World:
    """A follower and the leaders that a seed draws: tails that are lost, prefixes that are deleted, lost answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leader = ModelLeader(1)
        self.follower = ModelFollower()
        self.fetcher = fetcher_of(KEY)
        self.now_ms = 0.0

    def append(self) -> None:
        self.leader.records += bytes([self.leader.epoch]) * self.random.randint(1, 5)

    def commit(self) -> None:
        """Commit what the follower has as the leader has it."""
        common = common_end(self.leader, self.follower)
        self.leader.high_watermark = max(self.leader.high_watermark, self.random.randint(self.leader.start, common))

    def delete(self) -> None:
        start = self.random.randint(self.leader.start, self.leader.high_watermark)
        self.leader.records, self.leader.start = self.leader.records[start - self.leader.start :], start

    def elect(self) -> None:
        """Elect another leader, which has all that is committed, and a tail of its own or of the former leader."""
        old = self.leader
        end = self.random.randint(max(old.high_watermark, self.follower.high_watermark, old.start), old.end)
        tail = bytes([old.epoch + 1]) * self.random.randint(0, 3)
        self.leader = ModelLeader(old.epoch + 2, old.records[: end - old.start] + tail, old.start)
        self.leader.high_watermark = old.high_watermark
        self.append()
        self.fetcher.set_partitions({KEY: followed(self.leader.epoch, self.follower.position)})

    def misbehave(self) -> None:
        self.leader.error = self.random.choice([errors.UnknownTopicIdError.code, errors.KafkaStorageError.code])

    def fetch(self) -> None:
        request = self.fetcher.next_request(self.now_ms)
        if request is None:
            assert self.fetcher.wake_ms is not None
            self.now_ms = max(self.now_ms, self.fetcher.wake_ms)
        elif self.random.random() < 0.1:
            self.leader.answer(request)
            self.fetcher.take_failure(self.now_ms)
        else:
            do_all(self.fetcher, self.follower, self.fetcher.take_answer(self.leader.answer(request), self.now_ms))


def common_end(leader: ModelLeader, follower: ModelFollower) -> int:
    """Return the offset up to which both logs are equal, where both have it."""
    offset = max(leader.start, follower.start)
    while offset < min(leader.end, follower.end) and (
        leader.records[offset - leader.start] == follower.records[offset - follower.start]
    ):
        offset += 1
    return offset


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 100))
def test_a_follower_converges_and_nothing_committed_is_cut(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        world = World(seed)
        acts = [world.append, world.commit, world.delete, world.elect, world.misbehave, *[world.fetch] * 10]
        for _ in range(150):
            world.random.choice(acts)()
        world.leader.error = errors.NONE
        for _ in range(60):
            world.fetch()
        leader, follower = world.leader, world.follower
        assert follower.records == leader.records, f"seed {seed}"
        assert (follower.start, follower.cut) == (leader.start, []), f"seed {seed}"
        assert leader.fetches < 300, "no spin"
