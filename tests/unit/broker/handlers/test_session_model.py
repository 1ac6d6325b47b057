"""Fetch sessions (KIP-227) over topics that are created and deleted: a client that applies incremental responses always
knows what a fetch without a session would return.

``TIDELOG_FUZZ_SEEDS=400`` tries more walks.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.test_data_path import Wire
from tidelog.broker.replica.fetching.fetch_session import EVICTION_MS
from tidelog.protocol.errors import (
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tidelog.protocol.record.batches import iter_batches

SEEDS = int(os.environ.get("TIDELOG_FUZZ_SEEDS", "20"))
STEPS = 120
TOPICS = ("a", "b", "c")
PARTITIONS = 2
SLOTS = 2
LARGEST_EPOCH = 2**31 - 1
SESSION_ERRORS = {
    error.code for error in (FetchSessionIdNotFoundError, InvalidFetchSessionEpochError, FetchSessionTopicIdError)
}
MUCH = 1_000_000

Followed = tuple[str, bytes, int]
"""Topic, its id (of zeros where names are asked for), partition."""
Asked = tuple[int, int]
"""Fetch offset, ``partition_max_bytes``."""
Known = tuple[int, int, int]
"""Error code, high watermark, log start offset."""


def content(part: PartitionData | None) -> bytes:
    records = b"" if part is None or part.records is None else part.records
    assert isinstance(records, (bytes, memoryview))
    return bytes(records)


def next_offset(part: PartitionData, offset: int) -> int:
    records = part.records
    if not records:
        return offset
    assert isinstance(records, memoryview)
    return max([offset, *(batch.last_offset + 1 for batch in iter_batches(records))])


class Client:
    """A consumer with a session, which behaves like Java's FetchSessionHandler."""

    def __init__(self, data: DataBroker, dice: random.Random) -> None:
        self.wire, self.alone = Wire(data), Wire(data)
        self.data, self.dice = data, dice
        self.version = dice.choice([7, 11, 12, 13, 16, 18])
        self.isolation = dice.randrange(2)
        self.wanted: dict[Followed, Asked] = {}
        self.sent: dict[Followed, Asked] = {}
        self.known: dict[Followed, Known] = {}
        self.session_id = self.epoch = 0

    def name(self, topic: str) -> tuple[str, bytes] | None:
        """Return the client's name of a topic by its metadata; None if it does not know the id."""
        if self.version < 13:
            return topic, bytes(16)
        image = self.data.broker.metadata.topics.get(topic)
        return None if image is None else ("", image.topic_id)

    def follow(self) -> None:
        called = self.name(self.dice.choice(TOPICS))
        if called is not None:
            followed = (*called, self.dice.choice([0, 0, 0, 1, 1, 1, PARTITIONS]))
            self.wanted[followed] = (self.dice.randrange(6), self.dice.choice([1, 300, MUCH, 2**31 - 1]))

    def leave(self) -> None:
        if self.wanted:
            del self.wanted[self.dice.choice(sorted(self.wanted))]

    def restart(self) -> None:
        """Begin another session, in a request that ends the present one."""
        self.epoch = 0

    def lose_track(self) -> None:
        """Send a fetch with a wrong session epoch."""
        if self.epoch > 0:
            self.epoch = self.dice.choice(
                [1 if self.epoch == LARGEST_EPOCH else self.epoch + 1, max(1, self.epoch - 1)]
            )

    def wrap(self) -> None:
        """Set the session's next epoch to the largest one, as after 2^31 requests."""
        session = self.data.broker.fetch_sessions.sessions.get(self.session_id)
        if session is not None and session.epoch == self.epoch:
            session.epoch = self.epoch = LARGEST_EPOCH

    def fetch(self, max_bytes: int = MUCH) -> None:
        """Fetch with the session, and compare the resulting state with the response to a fetch without a session."""
        if self.epoch == 0:
            self.sent, self.known = {}, {}
        gone = [followed for followed in self.sent if followed not in self.wanted]
        changed = {f: asked for f, asked in self.wanted.items() if self.sent.get(f) != asked}
        read = dict(self.wanted)
        expected = self.ask(self.alone, self.wanted, [], (0, -1), max_bytes)
        response = self.ask(self.wire, changed, gone, (self.session_id, self.epoch), max_bytes)
        if response.error_code in SESSION_ERRORS:
            self.epoch = 0
            return
        assert response.error_code == 0
        self.sent = dict(self.wanted)
        for followed in gone:
            self.known.pop(followed, None)
        self.go_on(response)
        received = self.parts(response)
        assert received.keys() <= self.wanted.keys()
        self.take(received)
        if max_bytes == MUCH:
            alone = {f: (p.error_code, p.high_watermark, p.log_start_offset) for f, p in self.parts(expected).items()}
            assert self.known == alone
            for followed, part in self.parts(expected).items():
                got = received.get(followed)
                assert not part.error_code or got is not None
                if read[followed][1] >= MUCH:  # of others, the first in the session's order is told a batch
                    assert content(part) == content(got)

    def go_on(self, response: FetchResponse) -> None:
        """Continue with the session that the broker has, if there is one."""
        if self.epoch == 0:
            self.session_id, self.epoch = response.session_id, 1 if response.session_id else 0
        elif response.session_id == 0:
            self.epoch = 0
        else:
            assert response.session_id == self.session_id
            self.epoch = 1 if self.epoch == LARGEST_EPOCH else self.epoch + 1

    def take(self, received: dict[Followed, PartitionData]) -> None:
        for followed, part in received.items():
            self.known[followed] = (part.error_code, part.high_watermark, part.log_start_offset)
            offset, max_bytes = self.wanted[followed]
            if part.error_code == 0:
                self.wanted[followed] = (next_offset(part, offset), max_bytes)
            elif part.error_code == 1:
                self.wanted[followed] = (0 if self.dice.random() < 0.5 else self.dice.randrange(8), max_bytes)

    def parts(self, response: FetchResponse) -> dict[Followed, PartitionData]:
        found = [(t.topic, t.topic_id, part) for t in response.responses for part in t.partitions]
        parts = {(topic, topic_id, part.partition_index): part for topic, topic_id, part in found}
        assert len(parts) == len(found), "a partition is told once"
        return parts

    def ask(
        self, wire: Wire, asked: dict[Followed, Asked], gone: list[Followed], session: tuple[int, int], max_bytes: int
    ) -> FetchResponse:
        topics = [
            FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=[FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)],
            )
            for (topic, topic_id, index), (offset, max_bytes) in asked.items()
        ]
        forgotten = [ForgottenTopic(topic=topic, topic_id=topic_id, partitions=[n]) for topic, topic_id, n in gone]
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, isolation_level=self.isolation, session_id=session[0],
            session_epoch=session[1], topics=topics, forgotten_topics_data=forgotten,
        )  # fmt: skip
        return wire.ask_patiently(request, FetchResponse, self.version)


class World:
    """Topics, and clients that read them."""

    def __init__(self, data: DataBroker, dice: random.Random) -> None:
        self.data, self.dice = data, dice
        self.clients = [Client(data, dice) for _ in range(SLOTS + 1)]

    def step(self) -> None:
        chance = self.dice.random()
        topic = self.dice.choice(TOPICS)
        exists = topic in self.data.broker.metadata.topics
        client = self.dice.choice(self.clients)
        if chance < 0.25:
            if not exists:
                create_topic(self.data, topic, PARTITIONS)
            else:
                values = [bytes(self.dice.choice([1, 400]))] * self.dice.randint(1, 2)
                self.data.append(topic, *values, partition=self.dice.randrange(PARTITIONS))
        elif chance < 0.28 and exists:
            delete_topic(self.data, topic)
        elif chance < 0.32 and exists:
            partition = self.data.replica_manager.partition(topic, self.dice.randrange(PARTITIONS))
            partition.delete_records(self.dice.randint(0, partition.high_watermark))
        elif chance < 0.34:
            self.data.time.advance(self.dice.choice([1, EVICTION_MS + 1]))
        else:
            moves = [client.follow] * 5 + [client.leave] * 2 + [client.restart, client.lose_track, client.wrap]
            if chance < 0.6:
                self.dice.choice(moves)()
            else:
                client.fetch(MUCH if chance < 0.9 else self.dice.choice([0, 1, 500]))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_session_gives_the_same_state_as_fetches_without_one(tmp_path: Path, seed: int) -> None:
    data = DataBroker(tmp_path, {"max.incremental.fetch.session.cache.slots": str(SLOTS)})
    world = World(data, random.Random(seed))
    for topic in TOPICS[:2]:
        create_topic(data, topic, PARTITIONS)
    for _ in range(STEPS):
        world.step()
    assert len(data.broker.fetch_sessions.sessions) <= SLOTS
    for client in world.clients:
        for _ in range(40):
            client.fetch(500)  # room for one batch or two: each partition has its turn
        client.fetch()
        if client.epoch:
            assert all(code or client.wanted[f][0] >= hw for f, (code, hw, _) in client.known.items())
    data.close()
