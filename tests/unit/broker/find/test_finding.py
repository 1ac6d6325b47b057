"""Waits of a search for the indices of its partitions: all of them together are bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.find.finding import SETTLE_S, WAIT_S, FindAnswer, FindRequest, IndexBehindError
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.lookup import Query

COUNT = 100


class SlowIndexing:
    """Indices that take ``seconds`` for each partition, and are never begun."""

    def __init__(self, seconds: float) -> None:
        self.now_s = 0.0
        self.seconds = seconds

    def wait_until_indexed(self, _partition: TopicPartition, _offset: int, timeout_s: float) -> bool:
        self.now_s += min(self.seconds, timeout_s)
        return self.seconds <= timeout_s

    def indexer(self, _partition: TopicPartition) -> None:
        return None


def wait(indexing: SlowIndexing, *, is_asked: bool) -> None:
    """Wait as a search in a topic of COUNT partitions does."""
    logs = [
        SimpleNamespace(topic_partition=TopicPartition("t", number), high_watermark=9, log_start_offset=0)
        for number in range(COUNT)
    ]
    request = FindRequest(topic="t", query=Query(key=b"k"), wait=is_asked)
    answer = FindAnswer(request, cast(Any, logs), None, clock=lambda: indexing.now_s)
    answer._wait(cast(Any, indexing))


def test_a_search_waits_for_indices_that_never_begin_once_not_for_each_partition() -> None:
    indexing = SlowIndexing(10**6)
    wait(indexing, is_asked=False)
    assert indexing.now_s == SETTLE_S


def test_a_search_that_waits_for_all_records_has_one_time_limit() -> None:
    indexing = SlowIndexing(1.0)
    with pytest.raises(IndexBehindError, match="after 30 s"):
        wait(indexing, is_asked=True)
    assert indexing.now_s == WAIT_S
    quick = SlowIndexing(0.25)
    wait(quick, is_asked=True)
