"""Throttles of replication: the throttled replicas, and their bytes in each window of time."""

from __future__ import annotations

import random

import pytest

from tidelog.broker.metrics.rates import Window
from tidelog.broker.replica.replication.quotas import LEADER, ReplicationQuota

NODE = 101
WINDOW = Window(samples=11, sample_ms=1000)


def quota_of(limit: float) -> ReplicationQuota:
    return ReplicationQuota(LEADER, NODE, WINDOW, lambda: limit)


@pytest.mark.parametrize(
    ("listed", "partition", "is_named"),
    [
        ((), 0, False),
        (("*",), 7, True),
        (("0:101",), 0, True),
        (("0:101",), 1, False),
        (("0:102",), 0, False),
        (("0:102", "1:101"), 1, True),
        (("none",), 0, False),
        (("0:x", "0"), 0, False),
    ],
)
def test_replicas_are_named_by_partition_and_broker(listed: tuple[str, ...], partition: int, is_named: bool) -> None:
    assert quota_of(1).names(listed, partition) is is_named


def test_a_quota_is_exceeded_until_the_rate_is_below_the_limit_again() -> None:
    quota = quota_of(1000)
    assert not quota.is_exceeded(0)
    quota.record(3000, 0)
    assert quota.is_exceeded(0)
    assert quota.is_exceeded(2900)
    assert not quota.is_exceeded(3000)
    assert quota.byte_rate(3000) == 1000


def test_a_changed_limit_counts_at_once() -> None:
    limits = [1000.0]
    quota = ReplicationQuota(LEADER, NODE, WINDOW, lambda: limits[-1])
    quota.record(3000, 0)
    assert quota.is_exceeded(1000)
    limits.append(2.0**63)
    assert not quota.is_exceeded(1000)


@pytest.mark.parametrize("seed", range(20))
def test_no_window_has_more_than_the_limit_and_one_answer(seed: int) -> None:
    """A follower that takes answers of any size, as often as it is let, at any moments."""
    chance, now_ms, largest = random.Random(seed), 0.0, 0
    limit = chance.choice((500, 10_000, 1_000_000))
    quota = quota_of(limit)
    sent: list[tuple[float, int]] = []
    while now_ms < 60_000:
        now_ms += chance.choice((1, 20, 100, 700))
        if not quota.is_exceeded(now_ms):
            size = chance.randrange(1, 2 * limit)
            quota.record(size, now_ms)
            sent.append((now_ms, size))
            largest = max(largest, size)
    total = sum(size for _, size in sent)
    assert total <= limit * now_ms / 1000 * 11 / 10 + 2 * largest, "a window that moves drops a sample at most"
    assert total >= limit * now_ms / 1000 / 2, "what is allowed is used"
