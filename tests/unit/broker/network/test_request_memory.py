from __future__ import annotations

import random

import pytest

from tidelog.broker.network.request_memory import SMALL_BYTES, RequestMemory

LIMIT = 10 * SMALL_BYTES
LARGE = 4 * SMALL_BYTES


class FakeHolder:
    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.wants = self.reads = True

    def wants_to_read(self) -> bool:
        return self.wants

    def update_reading(self) -> None:
        self.reads = self.wants and self.memory.admits(self)


@pytest.fixture
def memory() -> RequestMemory:
    return RequestMemory(LIMIT)


def test_all_connections_read_until_the_memory_is_full_then_the_oldest_alone(memory: RequestMemory) -> None:
    holders = [FakeHolder(memory) for _ in range(3)]
    for holder in holders:
        assert not memory.is_full
        memory.note(holder, LARGE)
    assert memory.is_full
    assert [memory.admits(holder) for holder in holders] == [True, False, False]


def test_small_requests_are_never_held_up(memory: RequestMemory) -> None:
    memory.note(FakeHolder(memory), 2 * LIMIT)
    small = FakeHolder(memory)
    memory.note(small, SMALL_BYTES)
    assert memory.admits(small)
    assert memory.held_bytes == 2 * LIMIT


def test_when_the_oldest_has_its_frame_the_next_continues(memory: RequestMemory) -> None:
    holders = [FakeHolder(memory) for _ in range(4)]
    for holder in holders:
        memory.note(holder, LARGE)
    for holder in holders:
        holder.update_reading()
    assert [holder.reads for holder in holders] == [True, False, False, False]
    memory.note(holders[0], 0)
    assert memory.held_bytes > LIMIT
    assert [holder.reads for holder in holders[1:]] == [True, False, False]
    memory.note(holders[1], 0)
    assert memory.held_bytes <= LIMIT
    assert [holder.reads for holder in holders[2:]] == [True, True]


def test_a_request_that_waits_for_its_answer_delays_no_other(memory: RequestMemory) -> None:
    waiting, other = FakeHolder(memory), FakeHolder(memory)
    waiting.wants = False
    memory.note(waiting, LIMIT)
    memory.note(other, LARGE)
    assert memory.admits(other)
    assert other.reads


@pytest.mark.parametrize("limit", [0, -1])
def test_without_a_limit_the_memory_is_never_full(limit: int) -> None:
    memory = RequestMemory(limit)
    memory.note(FakeHolder(memory), 1 << 40)
    assert not memory.is_full


@pytest.mark.parametrize("seed", range(20))
def test_every_request_becomes_whole(seed: int) -> None:
    """Random receives of random requests: held bytes stay within bounds, and no connection is left waiting."""
    generator = random.Random(seed)
    memory = RequestMemory(LIMIT)
    holders = {FakeHolder(memory): generator.randrange(1, LIMIT) for _ in range(30)}
    received = dict.fromkeys(holders, 0)
    piece = SMALL_BYTES // 2
    for _ in range(100_000):
        readers = [holder for holder in received if holder.reads]
        if not received:
            break
        assert readers, "no connection may read"
        holder = generator.choice(readers)
        holder.update_reading()
        if not holder.reads:
            continue
        received[holder] += piece
        whole = received[holder] >= holders[holder]
        if whole:
            del received[holder]
        memory.note(holder, 0 if whole else received[holder])
        holder.update_reading()
        assert memory.held_bytes <= LIMIT + LIMIT + len(holders) * (SMALL_BYTES + piece)
    assert not received
    assert memory.held_bytes == 0
