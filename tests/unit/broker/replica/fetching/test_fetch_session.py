from __future__ import annotations

from random import Random

import pytest

from tidelog.broker.replica.fetching.fetch_session import EVICTION_MS, FetchContext, FetchSessionCache, next_epoch
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import (
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData

NAMES, IDS = 12, 13
TOPIC_ID = bytes(range(16))


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def cache(time: ManualTime) -> FetchSessionCache:
    return FetchSessionCache(2, time.monotonic_ms, Random(1))


def fetch_of(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=100)


def request(
    *partitions: FetchPartition, session_id: int = 0, epoch: int = 0, forget: tuple[int, ...] = ()
) -> FetchRequest:
    forgotten = [ForgottenTopic(topic="t", partitions=list(forget))] if forget else []
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=list(partitions))] if partitions else [],
        forgotten_topics_data=forgotten,
    )


def answer(context: FetchContext, *, high_watermark: int = 0, records: bytes = b"", error: int = 0) -> int:
    return context.finish(
        [
            (
                target,
                PartitionData(
                    partition_index=target.index,
                    error_code=error,
                    high_watermark=high_watermark,
                    log_start_offset=0,
                    records=records,
                ),
            )
            for target in context.targets
        ]
    )


def new_session(cache: FetchSessionCache, *partitions: FetchPartition, version: int = NAMES) -> int:
    return answer(cache.context_for(version, request(*partitions)))


def test_a_full_fetch_makes_a_session(cache: FetchSessionCache) -> None:
    context = cache.context_for(NAMES, request(fetch_of(0), fetch_of(1)))
    assert not context.is_incremental
    assert answer(context) != 0
    assert cache.partition_count() == 2


def test_a_fetch_with_the_final_epoch_creates_no_session(cache: FetchSessionCache) -> None:
    assert answer(cache.context_for(NAMES, request(fetch_of(0), epoch=-1))) == 0
    assert not cache.sessions


def test_an_incremental_fetch_reads_all_partitions_of_the_session(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0), fetch_of(1))
    context = cache.context_for(NAMES, request(fetch_of(1, 7), session_id=session, epoch=1))
    assert context.is_incremental
    assert [(target.index, target.fetch_offset) for target in context.targets] == [(0, 0), (1, 7)]


def test_partitions_are_added_and_forgotten(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0), fetch_of(1))
    context = cache.context_for(NAMES, request(fetch_of(2), session_id=session, epoch=1, forget=(0,)))
    assert [target.index for target in context.targets] == [1, 2]


def test_a_session_that_forgot_everything_is_closed(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0))
    context = cache.context_for(NAMES, request(session_id=session, epoch=1, forget=(0,)))
    assert context.targets == []
    assert answer(context) == 0
    assert not cache.sessions


def test_epochs_must_follow_each_other(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0))
    answer(cache.context_for(NAMES, request(session_id=session, epoch=1)))
    with pytest.raises(InvalidFetchSessionEpochError):
        cache.context_for(NAMES, request(session_id=session, epoch=1))
    answer(cache.context_for(NAMES, request(session_id=session, epoch=2)))


def test_an_unknown_session_is_refused(cache: FetchSessionCache) -> None:
    with pytest.raises(FetchSessionIdNotFoundError):
        cache.context_for(NAMES, request(session_id=99, epoch=1))


def test_a_session_keeps_to_names_or_ids(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0))
    with pytest.raises(FetchSessionTopicIdError):
        cache.context_for(IDS, request(session_id=session, epoch=1))


def test_topic_ids_identify_partitions(cache: FetchSessionCache) -> None:
    full = FetchRequest(session_epoch=0, topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[fetch_of(0), fetch_of(1)])])
    session = answer(cache.context_for(IDS, full))
    change = FetchRequest(
        session_id=session,
        session_epoch=1,
        topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[fetch_of(0, 5)])],
        forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID, partitions=[1])],
    )
    context = cache.context_for(IDS, change)
    assert [(target.topic_id, target.fetch_offset) for target in context.targets] == [(TOPIC_ID, 5)]


def test_a_full_fetch_closes_the_session_it_names(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0))
    again = answer(cache.context_for(NAMES, request(fetch_of(0), session_id=session)))
    assert list(cache.sessions) == [again]


def test_a_session_remembers_the_high_watermark_that_was_sent(cache: FetchSessionCache) -> None:
    context = cache.context_for(NAMES, request(fetch_of(0)))
    answer(context, high_watermark=9)
    assert context.targets[0].sent_high_watermark == 9


def test_an_error_makes_the_partition_be_sent_again(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0))
    context = cache.context_for(NAMES, request(session_id=session, epoch=1))
    answer(context, error=3)
    assert context.targets[0].sent_high_watermark == -1


def test_partitions_that_returned_records_go_to_the_end(cache: FetchSessionCache) -> None:
    session = new_session(cache, fetch_of(0), fetch_of(1))
    context = cache.context_for(NAMES, request(session_id=session, epoch=1))
    first = context.targets[0]
    context.finish([(first, PartitionData(partition_index=0, high_watermark=1, records=b"x"))])
    context = cache.context_for(NAMES, request(session_id=session, epoch=2))
    assert [target.index for target in context.targets] == [1, 0]


def test_a_full_cache_creates_no_session(cache: FetchSessionCache) -> None:
    new_session(cache, fetch_of(0))
    new_session(cache, fetch_of(0))
    assert new_session(cache, fetch_of(0), fetch_of(1)) == 0


def test_a_session_unused_for_long_is_evicted(cache: FetchSessionCache, time: ManualTime) -> None:
    stale = new_session(cache, fetch_of(0), fetch_of(1), fetch_of(2))
    time.advance(EVICTION_MS + 1)
    used = new_session(cache, fetch_of(0))
    new = new_session(cache, fetch_of(0))
    assert list(cache.sessions) == [used, new]
    assert stale not in cache.sessions
    assert cache.evictions_total == 1


def test_a_larger_session_replaces_a_settled_smaller_one(cache: FetchSessionCache, time: ManualTime) -> None:
    small = new_session(cache, fetch_of(0))
    large = new_session(cache, fetch_of(0), fetch_of(1), fetch_of(2))
    time.advance(EVICTION_MS - 1)
    for session in (small, large):
        answer(cache.context_for(NAMES, request(session_id=session, epoch=1)))
    time.advance(2)
    assert new_session(cache, fetch_of(0)) == 0
    assert new_session(cache, fetch_of(0), fetch_of(1)) != 0
    assert small not in cache.sessions
    assert large in cache.sessions


def test_a_cache_without_slots_gives_no_sessions(time: ManualTime) -> None:
    cache = FetchSessionCache(0, time.monotonic_ms, Random(1))
    assert new_session(cache, fetch_of(0)) == 0


def test_epochs_wrap_to_one() -> None:
    assert next_epoch(2**31 - 1) == 1
    assert next_epoch(0) == 1
